"""Roots against golden values, and against a naive second implementation of the written format.

The rows are hand-written and small. The golden file was made by ``reference`` below, never by the
product: a change of format must be seen twice.
"""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from fleet.evidence.roots import ROOTED, ArmRoots, arm_roots, attempt_roots

GOLDEN = Path(__file__).parents[1] / "golden" / "roots.json"
GRADES = ["metric", "prediction", "tokens", "logits"]
Row = dict[str, Any]


def sha(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def row(
    sample: str,
    prompt: list[int],
    made: list[int],
    raw: str,
    parsed: str | None,
    correct: bool,
) -> Row:
    ids = struct.pack(f"<{len(prompt)}q", *prompt)
    sequence = prompt + made
    header = b"fleet-tokens-1\n" + struct.pack("<qq", len(prompt), len(sequence))
    return {
        "sample_id": sample,
        "prompt_ids_sha256": sha(ids),
        "generated_token_ids": made,
        "generated_token_count": len(made),
        "full_sequence_sha256": sha(header + struct.pack(f"<{len(sequence)}q", *sequence)),
        "step_logits_sha256": [sha(f"{sample} step {i}".encode()) for i in range(len(made))],
        "raw_answer": raw,
        "parsed_answer": parsed or "",
        "unparsed": parsed is None,
        "is_correct": correct,
    }


ROWS: dict[str, list[Row]] = {
    "current": [
        row("q1", [1, 2, 3], [7, 2], "A.", "A", True),
        row("q2", [1, 2], [2], "no idea", None, False),
        row("é", [1], [9, 9, 2], "B\n", "B", True),
    ],
    "controlled": [
        row("q1", [4], [5], "", None, False),
        row("q2", [4, 4], [2], "C", "C", False),
        row("é", [2**40], [3, 2], "D", "D", True),
    ],
}


def pieces(*parts: bytes) -> bytes:
    """Each part behind its length as little-endian int64."""
    return b"".join(struct.pack("<q", len(part)) + part for part in parts)


def own(r: Row, grade: str) -> bytes:
    if grade == "prediction":
        answer = (
            b"\0" + r["raw_answer"].encode()
            if r["unparsed"]
            else b"\1" + r["parsed_answer"].encode()
        )
        return pieces(answer, b"\1" if r["is_correct"] else b"\0")
    if grade == "tokens":
        ids = r["generated_token_ids"]
        return pieces(
            r["prompt_ids_sha256"],
            struct.pack(f"<{len(ids)}q", *ids),
            struct.pack("<q", r["generated_token_count"]),
            r["full_sequence_sha256"],
            r["raw_answer"].encode(),
        )
    return pieces(b"".join(r["step_logits_sha256"]))


def reference(arm: str, rows: list[Row], grade: str) -> bytes:
    """root(g): header, metric once, then per sample its id and its fields of g and all below."""
    data = f"fleet-root-1\n{grade}\n{arm}\n{len(rows)}\n".encode()
    data += pieces(struct.pack("<qq", sum(r["is_correct"] for r in rows), len(rows)))
    for r in rows:
        data += pieces(r["sample_id"].encode())
        for below in GRADES[1 : GRADES.index(grade) + 1]:
            data += own(r, below)
    return sha(data)


def reference_attempt(grade: str) -> bytes:
    return sha(b"".join(reference(arm, ROWS[arm], grade) for arm in sorted(ROWS)))


def test_roots_are_those_of_the_written_format() -> None:
    for arm, rows in ROWS.items():
        assert arm_roots(arm, rows) == {g: reference(arm, rows, g) for g in GRADES}
    found = attempt_roots({arm: arm_roots(arm, rows) for arm, rows in ROWS.items()})
    assert found == {g: reference_attempt(g) for g in GRADES}
    assert list(ROOTED) == GRADES


def test_roots_are_those_of_the_golden_file() -> None:
    golden = json.loads(GOLDEN.read_text())
    roots = {arm: arm_roots(arm, rows) for arm, rows in ROWS.items()}
    shown = {arm: {g: root.hex() for g, root in found.items()} for arm, found in roots.items()}
    assert golden["arms"] == shown
    assert golden["attempt"] == {g: root.hex() for g, root in attempt_roots(roots).items()}


def differing(change: Row, at: int = 0) -> list[str]:
    """Grades whose root moves when one row is changed."""
    rows = [dict(r) for r in ROWS["current"]]
    before = arm_roots("current", rows)
    rows[at] |= change
    after = arm_roots("current", rows)
    return [g for g in GRADES if before[g] != after[g]]


@pytest.mark.parametrize(
    ("change", "moved"),
    [
        ({"is_correct": False}, GRADES),
        ({"parsed_answer": "B"}, GRADES[1:]),
        ({"generated_token_ids": [8, 2]}, GRADES[2:]),
        ({"generated_token_count": 3}, GRADES[2:]),
        ({"prompt_ids_sha256": sha(b"x")}, GRADES[2:]),
        ({"full_sequence_sha256": sha(b"x")}, GRADES[2:]),
        ({"raw_answer": "A"}, GRADES[2:]),
        ({"step_logits_sha256": [sha(b"x"), sha(b"y")]}, ["logits"]),
        ({"sample_id": "q9"}, GRADES),
        ({"margin_logits": [0.5], "seconds": 9.0, "rng_sha256": sha(b"x"), "top_ids": []}, []),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) and value else None,
)
def test_a_field_moves_its_grade_and_every_higher_one(change: Row, moved: list[str]) -> None:
    assert differing(change) == moved


def test_the_raw_answer_is_the_prediction_of_an_unparsed_one() -> None:
    assert differing({"raw_answer": "other"}, at=1) == GRADES[1:]
    assert differing({"unparsed": False, "parsed_answer": "no idea"}, at=1) == GRADES[1:]


def test_the_order_of_rows_the_arm_and_the_count_are_in_the_root() -> None:
    rows = ROWS["current"]
    roots = [
        arm_roots("current", rows),
        arm_roots("current", rows[::-1]),
        arm_roots("controlled", rows),
        arm_roots("current", rows[:2]),
        arm_roots("current", [*rows, rows[0]]),
    ]
    for grade in GRADES:
        assert len({found[grade] for found in roots}) == len(roots)


def test_no_field_can_borrow_bytes_from_its_neighbour() -> None:
    a = [row("q1", [1], [2], "AB", None, False) | {"sample_id": "q"}]
    b = [row("q1", [1], [2], "B", None, False) | {"sample_id": "qA"}]
    assert arm_roots("x", a)["prediction"] != arm_roots("x", b)["prediction"]


def test_rows_fed_one_by_one_give_the_same_roots() -> None:
    rows = ROWS["controlled"]
    fed = ArmRoots("controlled", len(rows), 1)
    for r in rows:
        fed.add(r)
    assert fed.digests() == arm_roots("controlled", rows)


def test_an_attempt_without_rows_has_roots_that_equal_no_other() -> None:
    assert arm_roots("current", [])["logits"] == reference("current", [], "logits")
