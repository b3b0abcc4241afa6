"""What a case must end in: the exact word, layer, code, exit code, grade, count and words."""

from __future__ import annotations

from fleet.judge.verdict import Verdict
from tests.cases.harness import Outcome


def expect_pass(outcome: Outcome, *words: str, low: bool = False, grade: str = "logits") -> None:
    """PASS at a grade, exit code 0."""
    verdict = outcome.verdict
    assert (verdict.verdict, verdict.code) == ("PASS", None), verdict.reason
    assert outcome.answer.exit_code() == 0
    assert (verdict.layer, verdict.layers, verdict.mismatches) == (None, (), 0)
    assert verdict.attained_grade == grade
    assert verdict.power is not None and verdict.power["low"] is low
    says(verdict, "PASS, low power" if low else "PASS: ", *words)


def expect_void(outcome: Outcome, code: str, *words: str) -> None:
    """VOID with exactly this cause, exit code 3; nothing is counted or localised."""
    verdict = outcome.verdict
    assert (verdict.verdict, verdict.code) == ("VOID", code), verdict.reason
    assert outcome.answer.exit_code() == 3
    assert (verdict.layer, verdict.layers, verdict.mismatches) == (None, (), 0)
    assert (verdict.first_broken_grade, verdict.first_difference) == (None, None)
    says(verdict, f"VOID({code}): ", *words)


def expect_fail(
    outcome: Outcome,
    layer: int | tuple[int, ...],
    *words: str,
    broken: str | None = "logits",
    stage: str,
    mismatches: int,
) -> None:
    """FAIL at one layer, or with several candidates and none named; exit code 1."""
    verdict = outcome.verdict
    assert (verdict.verdict, verdict.code) == ("FAIL", None), verdict.reason
    assert outcome.answer.exit_code() == 1
    named = isinstance(layer, int)
    assert verdict.layer == (layer if named else None), verdict.reason
    assert verdict.layers == ((layer,) if named else layer), verdict.reason
    assert verdict.first_broken_grade == broken
    assert next(name for name in verdict.stages if name != "settings") == stage
    assert verdict.mismatches == mismatches
    says(verdict, f"FAIL(layer {layer}, " if named else "FAIL(2 or 3, not localised): ", *words)


def says(verdict: Verdict, start: str, *words: str) -> None:
    """The reason begins with ``start`` and contains every one of ``words``."""
    assert verdict.reason.startswith(start), verdict.reason
    for word in words:
        assert word in verdict.reason, verdict.reason


def samples(verdict: Verdict) -> list[tuple[str, str]]:
    """(arm, sample) of the records behind a FAIL."""
    return [(row["arm"], row["sample_id"]) for row in verdict.differing_samples]
