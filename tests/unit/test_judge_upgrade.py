"""What moved between two stacks: the whole table, and where a change starts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleet.contract.model import GRADES
from fleet.judge.compare import PairComparison, compare_rows
from fleet.judge.tracing.culprit import Culprit
from fleet.judge.upgrade import Word, exit_code, moved, start
from fleet.judge.verdict import Verdict
from tests.unit.evidence_builders import changed, dataset, flipped_logits

UP_TO_LOGITS = GRADES[:4]


def verdict(word: Any = "PASS", root: str = "r", required: str = "logits", **more: Any) -> Verdict:
    """``root``: of every grade up to logits; ``REASON`` of a verdict that is none."""
    roots = {grade: [f"{root}-{grade}"] for grade in UP_TO_LOGITS}
    made = Verdict(
        "c", "id", "p", word, required, "same-unit", f"{word} because", word, roots=roots
    )
    return replace(made, **more)


WORDS: dict[tuple[str, str], Word] = {
    ("PASS", "PASS"): "KEPT",
    ("PASS", "FAIL"): "REGRESSED",
    ("FAIL", "PASS"): "FIXED",
    ("FAIL", "FAIL"): "STILL_FAIL",
    ("PASS", "VOID"): "NOT_COVERED",
    ("VOID", "PASS"): "NOT_COVERED",
    ("FAIL", "VOID"): "NOT_COVERED",
    ("VOID", "FAIL"): "NOT_COVERED",
    ("VOID", "VOID"): "NOT_COVERED",
}
CODES = {"KEPT": 0, "FIXED": 0, "CHANGED": 1, "REGRESSED": 1, "STILL_FAIL": 1, "NOT_COVERED": 3}


@pytest.mark.parametrize("pair", WORDS)
def test_two_verdicts_of_equal_roots_have_one_word(pair: tuple[str, str]) -> None:
    found = moved(verdict(pair[0]), verdict(pair[1]))
    assert found.word == WORDS[pair]
    assert exit_code([found.word]) == CODES[found.word]
    assert (found.grade == "logits") == (found.word == "KEPT")


@pytest.mark.parametrize("state", ["STALE", "UNTESTED"])
@pytest.mark.parametrize("other", ["PASS", "FAIL"])
def test_what_does_not_stand_today_is_not_covered(state: str, other: str) -> None:
    old = verdict(state=state)
    assert moved(old, verdict(other)).word == moved(verdict(other), old).word == "NOT_COVERED"
    assert moved(None, verdict(other)).reason == "base UNTESTED"
    assert moved(verdict(other), None).reason == "new UNTESTED"


@pytest.mark.parametrize("grade", UP_TO_LOGITS)
def test_a_change_is_named_by_the_first_grade_that_parts(grade: str) -> None:
    parted = UP_TO_LOGITS[UP_TO_LOGITS.index(grade) :]  # type: ignore[arg-type]
    roots = {g: [f"{'other' if g in parted else 'r'}-{g}"] for g in UP_TO_LOGITS}
    found = moved(verdict(), verdict(roots=roots))
    assert found.in_words() == f"CHANGED({grade})" and exit_code([found.word]) == 1


def test_what_is_not_required_may_part_and_is_said() -> None:
    roots = verdict().roots | {"logits": ["other"]}
    found = moved(verdict(required="tokens"), verdict(required="tokens", roots=roots))
    assert found.in_words() == "KEPT(tokens)" and "at logits, which is not required" in found.reason
    assert moved(verdict(required="tokens"), verdict(roots=roots)).in_words() == "CHANGED(logits)"


def test_bits_are_kept_as_high_as_both_attain() -> None:
    roots = verdict().roots | {"modules": ["m"]}
    assert moved(verdict(roots=roots), verdict(roots=roots)).in_words() == "KEPT(modules)"
    assert moved(verdict(), verdict(roots=roots)).in_words() == "KEPT(logits)"


def test_a_pass_without_one_root_covers_nothing() -> None:
    for roots in ({}, verdict().roots | {"logits": ["a", "b"]}):
        assert moved(verdict(), verdict(roots=roots)).word == "NOT_COVERED"


def test_two_contracts_or_claims_are_not_compared() -> None:
    for other in (verdict(execution_id="x"), verdict(vary=("order",)), verdict(traced=True)):
        assert moved(verdict(), other).word == "NOT_COVERED"


def test_over_several_contracts_a_change_outranks_what_is_not_covered() -> None:
    assert exit_code(["KEPT", "NOT_COVERED", "CHANGED"]) == 1
    assert exit_code(["KEPT", "NOT_COVERED"]) == 3
    assert exit_code(["KEPT", "FIXED"]) == 0
    assert exit_code([]) == 3


# where it starts

ROWS = dataset()
SAME = {"checkpoint": ("a", "a"), "post_init_weights": ("b", "b")}


def rows(other: Any) -> PairComparison:
    pairs = [(a, b) for a, b in zip(ROWS, other, strict=True) if a != b]
    return compare_rows({}, pairs)


def culprit(kind: Any, **more: Any) -> Culprit:
    return Culprit("layers.0.mlp", kind, "later", "the words", True, **more)


def test_nothing_starts_where_nothing_differs() -> None:
    assert start(rows(ROWS), SAME, False) is None
    assert start(rows(ROWS), SAME, True) is None


def test_an_earlier_stage_names_the_layer() -> None:
    found = start(rows(changed(ROWS, 1, prompt_sha256=b"x" * 32)), SAME, False)
    assert found is not None and (found.stage, found.layer) == ("prompt", 1)
    found = start(rows(flipped_logits(ROWS, 1)), SAME | {"post_init_weights": ("b", "c")}, False)
    assert found is not None and (found.stage, found.layers) == ("post_init_weights", (2, 3))
    assert found.layer is None  # two versions of a framework may convert otherwise at load


def test_logits_alone_are_of_framework_or_kernel() -> None:
    found = start(rows(flipped_logits(ROWS, 1)), SAME, True)
    assert found is not None and (found.stage, found.layer, found.layers) == (
        "logits",
        None,
        (2, 3),
    )


@pytest.mark.parametrize(
    ("named", "layers"),
    [
        (culprit("undecided"), (2, 3)),
        (culprit("undecided", zoom={"how": "output", "hashed": True}), (3,)),
        (culprit("gap", zoom={"how": "output", "hashed": True}), (3,)),
        (culprit("undecided", zoom={"how": "output", "hashed": False}), (2, 3)),
        (culprit("undecided", zoom={"how": "input", "hashed": True}), (2, 3)),
        (culprit("kernel_choice", zoom={"how": "operation", "hashed": True}), (2, 3)),
        (culprit("race"), (3,)),
        (culprit("gap"), (2, 3)),
        (culprit("structure"), (2,)),
        (culprit("input"), (1,)),
    ],
)
def test_a_trace_of_both_stacks_names_the_place(named: Culprit, layers: tuple[int, ...]) -> None:
    found = start(rows(flipped_logits(ROWS, 1)), SAME, False, named)
    assert found is not None and (found.words, found.layers) == (
        "layers.0.mlp: logits with equal inputs", layers,
    )  # fmt: skip
    assert found.layer == (layers[0] if len(layers) == 1 else None)
