"""Which rows may go: of old good replays whose like keeps its own, of nothing that differs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleet.contract.model import Require
from fleet.evidence.manifest import Process
from fleet.evidence.states import Cause
from fleet.evidence.summary import AttemptSummary
from fleet.judge.retention import prunable
from fleet.judge.sets import pairs_needed
from tests.unit.evidence_builders import changed, dataset, flipped_logits, judged, replay, sha

ROWS = dataset()
LATER = 10_000.0


def night(number: int, rows: Any = ROWS, **changes: Any) -> list[tuple[AttemptSummary, Any]]:
    """A campaign of two replays, accepted a hundred seconds after the one before."""
    return [
        replay(
            f"{number}{slot}", rows, campaign=f"c{number}", slot=slot,
            accepted_at_s=100.0 * number + slot,
            process=Process("boot", "pid:[1]", 10 * number + slot, number),
            **changes,
        )
        for slot in (0, 1)
    ]  # fmt: skip


def may_go(cases: list[tuple[AttemptSummary, Any]], before_s: float = LATER) -> set[str]:
    return set(prunable([summary for summary, _ in cases], before_s))


def test_older_replays_go_and_the_newest_campaign_keeps_its_rows() -> None:
    cases = night(1) + night(2) + night(3)
    found = prunable([s for s, _ in cases], LATER)
    assert found.keys() == {"10", "11", "20", "21"}
    assert set(found.values()) <= {"30", "31"}


def test_one_campaign_keeps_everything() -> None:
    assert may_go(night(1)) == set()


def test_only_what_was_accepted_before_the_bound_goes() -> None:
    assert may_go(night(1) + night(2) + night(3), before_s=150.0) == {"10", "11"}
    assert may_go(night(1) + night(2), before_s=0.0) == set()


def test_nothing_of_a_contract_that_differs_goes() -> None:
    assert may_go(night(1) + night(2) + night(3, flipped_logits(ROWS, 1))) == set()
    moved = changed(ROWS, 0, prompt_sha256=sha("another prompt"))
    assert may_go(night(1) + night(2) + night(3, moved)) == set()


def test_a_difference_under_another_claim_keeps_the_exact_repeats_too() -> None:
    varied = [
        replay("v0", ROWS, campaign="c4", vary=("order",), accepted_at_s=400.0),
        replay(
            "v1", flipped_logits(ROWS, 1), campaign="c4", slot=1, vary=("order",),
            varied={"order": {"seed": 1}}, accepted_at_s=401.0,
        ),
    ]  # fmt: skip
    assert may_go(night(1) + night(2)) == {"10", "11"}
    assert may_go(night(1) + night(2) + varied) == set()


@pytest.mark.parametrize(
    "change",
    [
        {"unit": "unit-9"},
        {"stages": {"checkpoint": "x", "effective": "another"}},
        {"envelope": {"batch_size": 7}},
        {"platform": "sha256:" + "9" * 64},
        {"traced": True},
    ],
)
def test_a_like_is_of_the_same_set_unit_and_settings(change: dict[str, Any]) -> None:
    cases = night(1) + night(2)
    other = [(replace(s, **change), rows) if s.campaign == "c1" else (s, rows) for s, rows in cases]
    assert may_go(other) == set()


def test_a_campaign_with_an_attempt_that_is_no_evidence_stands_for_no_other() -> None:
    spoiled = night(3)
    void = replace(spoiled[1][0], state="VOID", cause=Cause("not-fresh", ""), roots={}, arms={})
    cases = night(1) + night(2) + [spoiled[0], (void, ROWS)]
    assert "20" not in may_go(cases)
    assert may_go(cases) == {"10", "11"}


def test_a_reference_that_another_attempt_is_held_against_stays() -> None:
    failed = replay("f", ROWS[:2], campaign="c1", slot=1, state="FAILED", roots={}, arms={})
    failed = (replace(failed[0], cause=Cause("killed", "signal 9"), accepted_at_s=None), ROWS[:2])
    cases = night(1) + night(2) + [failed]
    kept = {"10", "11"} - may_go(cases)
    summaries = [s for s, _ in cases]
    compared = {a for pair in pairs_needed(summaries, Require()) for a in pair}
    assert kept == compared - {"f"} != set()
    assert "f" not in may_go(cases)


@pytest.mark.parametrize("purpose", ["screen", "trace", "replay"])
def test_what_is_no_certification_is_never_pruned(purpose: Any) -> None:
    assert may_go(night(1, purpose=purpose) + night(2)) == set()


def pruned(cases: list[tuple[AttemptSummary, Any]]) -> list[tuple[AttemptSummary, Any]]:
    """The same after a prune: summaries stay, rows are gone."""
    gone = may_go(cases)
    return [(replace(s, pruned=True), []) if s.attempt in gone else (s, rows) for s, rows in cases]


def test_no_verdict_changes() -> None:
    cases = night(1) + night(2) + night(3)
    for campaign in ("c1", "c2", "c3", None):
        before = judged(cases, campaign=campaign)
        assert before.verdict == "PASS"
        assert judged(pruned(cases), campaign=campaign) == before


def test_a_later_difference_is_shown_row_by_row_against_one_that_kept_its_rows() -> None:
    cases = pruned(night(1) + night(2))
    verdict = judged([*cases, *night(3, flipped_logits(ROWS, 1))], campaign="c3")
    assert (verdict.verdict, verdict.records, verdict.mismatches) == ("FAIL", 8, 1)
    assert verdict.first_difference is not None
    assert verdict.first_difference["sample_id"] == "q1"


def test_a_second_prune_finds_nothing_new() -> None:
    assert may_go(pruned(night(1) + night(2) + night(3))) == set()
