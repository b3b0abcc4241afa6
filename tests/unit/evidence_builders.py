"""Hand-made evidence for the judge's tests: rows, summaries and comparisons, made without a store.

Roots and column digests here are made from the same own fields as the product's, by other code, so
that equal rows have equal roots and nothing else does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from fleet.contract.model import Require
from fleet.evidence.images import DIGEST_COLUMNS
from fleet.evidence.manifest import Process
from fleet.evidence.records import (
    Record,
    logits_fields,
    prediction_fields,
    row_digests,
    tokens_fields,
)
from fleet.evidence.states import Cause
from fleet.evidence.summary import STAGE_COLUMNS, ArmSummary, AttemptSummary, Power
from fleet.judge.compare import PairComparison, compare_rows
from fleet.judge.rules import judge, pairs_needed
from fleet.judge.verdict import Verdict

Rows = list[dict[str, Any]]
ARMS = ("controlled", "current")
OWN = {"prediction": prediction_fields, "tokens": tokens_fields, "logits": logits_fields}
DIGESTS = (
    "input_sha256",
    "settings_sha256",
    "prediction_sha256",
    "tokens_sha256",
    "logits_sha256",
)


def sha(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def text_digest(*parts: object) -> str:
    return "sha256:" + hashlib.sha256(repr(parts).encode()).hexdigest()


def record(sample: int, arm: str = "current", steps: int = 3, **changes: Any) -> dict[str, Any]:
    """One row; ``changes`` are fields of :class:`Record`."""
    name = f"q{sample}"
    ids = tuple(10 * sample + step for step in range(steps))
    values: dict[str, Any] = {
        "attempt": "x",
        "arm": arm,
        "position": sample,
        "sample_id": name,
        "raw_record_sha256": sha(f"raw {name}"),
        "prompt_text": f"{arm} asks {name}",
        "prompt_sha256": sha(f"prompt {arm} {name}"),
        "prompt_ids": (1, 2, sample),
        "prompt_ids_sha256": sha(f"ids {arm} {name}"),
        "attention_mask_sha256": sha("111"),
        "settings_sha256": sha("settings"),
        "rng_sha256": sha("rng"),
        "batch_ordinal": sample,
        "generated_token_ids": ids,
        "generated_token_count": steps,
        "full_sequence_sha256": sha(f"sequence {ids}"),
        "step_logits_sha256": tuple(sha(f"{arm} {name} {step}") for step in range(steps)),
        "raw_answer": f"answer {name}",
        "parsed_answer": "A",
        "unparsed": False,
        "is_correct": sample % 2 == 0,
        "top_ids": tuple((i, i + 1) for i in ids),
        "top_bits": tuple((16256, 16255) for _ in ids),
        "margin_logits": tuple(0.015625 for _ in ids),
        "margin_ulps": tuple(1 for _ in ids),
        "nonfinite": 0,
        "stop": "length",
        "seconds": 0.5,
        "finished_at_s": 1.0,
    }
    return Record(**values | changes).to_row()


def dataset(num_samples: int = 4, arms: Sequence[str] = ARMS) -> Rows:
    """All rows of one replay."""
    return [record(i, arm) for arm in arms for i in range(num_samples)]


def changed(rows: Rows, sample: int, arm: str = "current", **changes: Any) -> Rows:
    """The rows, one of them with other fields and row digests that fit."""
    return [
        rederived(row | changes) if (row["sample_id"], row["arm"]) == (f"q{sample}", arm) else row
        for row in rows
    ]


def changed_all(rows: Rows, **changes: Any) -> Rows:
    return [rederived(row | changes) for row in rows]


def rederived(row: dict[str, Any]) -> dict[str, Any]:
    """Row digests follow the fields, except where a field is NULL."""
    return row if any(value is None for value in row.values()) else row | row_digests(row)


def flipped_logits(rows: Rows, sample: int, arm: str = "current", step: int = 0) -> Rows:
    """One logits bit flipped at a step, every token equal."""
    (row,) = [r for r in rows if (r["sample_id"], r["arm"]) == (f"q{sample}", arm)]
    digests = list(row["step_logits_sha256"])
    digests[step] = sha(f"flipped {sample} {step} {digests[step].hex()}")
    return changed(rows, sample, arm, step_logits_sha256=tuple(digests))


def other_token(rows: Rows, sample: int, arm: str = "current", step: int = 1) -> Rows:
    """Equal logits, another token."""
    (row,) = [r for r in rows if (r["sample_id"], r["arm"]) == (f"q{sample}", arm)]
    ids = list(row["generated_token_ids"])
    ids[step] += 1
    return changed(
        rows,
        sample,
        arm,
        generated_token_ids=tuple(ids),
        full_sequence_sha256=sha(f"sequence {ids}"),
        raw_answer=f"other answer {sample}",
    )


def process(pid: int) -> Process:
    return Process(boot_id="boot", pid_namespace="4026531836", pid=pid, start_tick=100)


def power(rows: Rows, **changes: Any) -> Power:
    values: dict[str, Any] = {
        "records": len(rows),
        "distinct_inputs": len({row["input_sha256"] for row in rows}),
        "distinct_outputs": len({row["generated_token_ids"] for row in rows}),
        "duplicates": 0,
        "decode_steps": sum(row["generated_token_count"] for row in rows),
        "ended_at_step_1": 0,
        "unparsed": sum(row["unparsed"] for row in rows),
        "truncated": 0,
        "nonfinite": sum(row["nonfinite"] for row in rows),
        "exact_ties": 0,
        "smallest_margin": 0.015625,
    }
    return Power(**values | changes)


def arm_summary(rows: Rows) -> ArmSummary:
    if any(value is None for row in rows for value in row.values()):
        return ArmSummary(len(rows), 0, 0, 0, {}, {})
    correct = sum(row["is_correct"] for row in rows)
    roots = {"metric": text_digest("metric", correct, len(rows))}
    grades = ["metric"]
    for grade in OWN:
        grades.append(grade)
        below = [OWN[g](row) for row in rows for g in grades if g in OWN]
        roots[grade] = text_digest(grade, correct, [r["sample_id"] for r in rows], below)
    return ArmSummary(
        rows=len(rows),
        correct=correct,
        unparsed=sum(row["unparsed"] for row in rows),
        truncated=0,
        roots=roots,
        columns={
            name: text_digest(name, [row[name] for row in rows])
            for name in (*STAGE_COLUMNS, *DIGEST_COLUMNS)
            if all(name in row for row in rows)
        },
    )


def summary(attempt: str, rows: Rows, **changes: Any) -> AttemptSummary:
    """A COMPLETE, accepted certification replay over ``rows``; ``changes`` are its fields."""
    names = sorted({row["arm"] for row in rows})
    arms = {name: arm_summary([r for r in rows if r["arm"] == name]) for name in names}
    grades = ("metric", "prediction", "tokens", "logits")
    roots = {g: text_digest(g, [arms[name].roots.get(g) for name in names]) for g in grades}
    values: dict[str, Any] = {
        "attempt": attempt,
        "campaign": "c1",
        "slot": 0,
        "purpose": "certify",
        "contract": "example",
        "execution_id": "sha256:e",
        "platform": "sha256:p",
        "unit": "cpu-1",
        "state": "COMPLETE",
        "cause": None,
        "accepted_at_s": 100.0 + int.from_bytes(sha(attempt)[:1]) / 1000,
        "traced": False,
        "vary": (),
        "num_samples": len(rows) // max(1, len(names)),
        "rows": len(rows),
        "arms": arms,
        "roots": roots,
        "stages": {
            "checkpoint": "sha256:k",
            "post_init_weights": "sha256:w",
            "end_weights": "sha256:w",
            "effective": "sha256:s",
        },
        "process": process(int.from_bytes(sha(attempt)[:4])),
        "power": power(rows) if rows else None,
        "envelope": {"batch_size": 1, "prefill_shapes": 3},
        "effective": {"threads": 1, "decoding.generation_config": {"do_sample": False}},
    }
    return AttemptSummary(**values | changes)


def ended(attempt: str, rows: Rows, state: str, code: str, **changes: Any) -> AttemptSummary:
    """An attempt that ended otherwise, with the rows that landed before."""
    values: dict[str, Any] = {
        "state": state,
        "cause": Cause(code, f"because of {code}"),
        "arms": {},
        "roots": {},
        "power": None,
        "num_samples": 4,
        "accepted_at_s": None if state == "LOST" else 100.5,
    }
    return summary(attempt, rows, **values | changes)


def compared(a: str, rows_a: Rows, b: str, rows_b: Rows, dtype: str | None = None) -> Any:
    """The comparison that a store would hand over."""
    left = {(row["arm"], row["sample_id"]): row for row in rows_a}
    right = {(row["arm"], row["sample_id"]): row for row in rows_b}
    both = [key for key in left if key in right]
    pairs = [(left[k], right[k]) for k in both if _any_differs(left[k], right[k])]
    return compare_rows(
        {arm: _counts([(left[k], right[k]) for k in both if k[0] == arm]) for arm in ARMS},
        pairs,
        [k for k in left if k not in right],
        [k for k in right if k not in left],
        attempts=(a, b),
        dtype=dtype,
    )


def _any_differs(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return any(a[name] != b[name] for name in DIGESTS)


def _counts(pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> dict[str, tuple[int, int]]:
    total = len(pairs)
    counts = {
        grade: (sum(a[f"{grade}_sha256"] == b[f"{grade}_sha256"] for a, b in pairs), total)
        for grade in OWN
    }
    unparsed = [
        a["unparsed"] and b["unparsed"] and a["raw_answer"] == b["raw_answer"] for a, b in pairs
    ]
    return counts | {"both_unparsed": (sum(unparsed), total)}


def comparisons(
    summaries: Sequence[AttemptSummary],
    rows: Mapping[str, Rows],
    require: Require,
    campaign: str | None = None,
) -> dict[tuple[str, str], PairComparison]:
    """Every comparison that the judge asks for."""
    needed = pairs_needed(summaries, require, campaign)
    return {(a, b): compared(a, rows[a], b, rows[b]) for a, b in needed}


def judged(
    cases: Sequence[tuple[AttemptSummary, Rows]],
    require: Require | None = None,
    campaign: str | None = "c1",
    **options: Any,
) -> Verdict:
    """The verdict on some attempts and their rows."""
    require = require or Require()
    summaries = [case[0] for case in cases]
    rows = {case[0].attempt: case[1] for case in cases}
    return judge(
        summaries,
        require,
        comparisons(summaries, rows, require, campaign),
        campaign=campaign,
        contract_name="example",
        **options,
    )


def replay(attempt: str, rows: Rows, **changes: Any) -> tuple[AttemptSummary, Rows]:
    """A good attempt and its rows."""
    return summary(attempt, rows, **changes), rows


def pair(rows_a: Rows, rows_b: Rows, **changes: Any) -> list[tuple[AttemptSummary, Rows]]:
    """Two good attempts of one campaign, on one unit."""
    return [replay("a", rows_a, slot=0, **changes), replay("b", rows_b, slot=1, **changes)]
