"""Is the evidence enough: VOID with its cause, never a word that means "differs"."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest

from fleet.contract.model import Require
from fleet.evidence.states import Cause
from fleet.evidence.summary import AttemptSummary
from fleet.judge.rules import (
    groups,
    had_pass,
    judge_campaign,
    pairs_needed_for_campaign,
)
from fleet.judge.verdict import Verdict
from tests.unit.evidence_builders import (
    Rows,
    changed_all,
    compared,
    comparisons,
    dataset,
    ended,
    flipped_logits,
    judged,
    pair,
    power,
    process,
    replay,
    sha,
    summary,
)

ROWS = dataset()


def campaign_verdict(
    cases: list[tuple[AttemptSummary, Rows]], campaign: str = "c1", **options: Any
) -> Verdict:
    summaries = [case[0] for case in cases]
    rows = {case[0].attempt: case[1] for case in cases}
    needed = pairs_needed_for_campaign(summaries, Require(), campaign)
    return judge_campaign(
        summaries,
        Require(),
        {(a, b): compared(a, rows[a], b, rows[b]) for a, b in needed},
        campaign,
        contract_name="example",
        **options,
    )


def test_one_complete_replay_is_not_a_pair() -> None:
    verdict = judged([replay("a", ROWS)])
    assert (verdict.verdict, verdict.code) == ("VOID", "missing-evidence")
    assert "2 complete replays required, 1 on one unit" in verdict.reason


def test_a_failed_attempt_that_was_retried_is_no_objection() -> None:
    failed = ended("z", [], "FAILED", "out-of-memory", slot=1)
    assert judged([*pair(ROWS, ROWS), (failed, [])]).verdict == "PASS"


def test_a_failed_attempt_that_never_completed_is_the_cause() -> None:
    failed = ended("z", [], "FAILED", "out-of-memory", slot=1)
    verdict = judged([replay("a", ROWS), (failed, [])])
    assert verdict.code == "out-of-memory"
    assert verdict.reason.startswith("VOID(out-of-memory): slot 1 (attempt z)")


def test_a_void_attempt_voids_its_campaign_though_a_pair_is_complete() -> None:
    void = ended("z", [], "VOID", "setting-not-in-force", slot=1)
    verdict = judged([*pair(ROWS, ROWS), (void, [])])
    assert verdict.reason.startswith("VOID(setting-not-in-force): ")


def test_a_ledger_gap_voids_its_campaign() -> None:
    gap = ended("z", [], "VOID", "ledger-gap", slot=2)
    assert judged([*pair(ROWS, ROWS), (gap, [])]).code == "ledger-gap"


def test_a_void_attempt_of_another_campaign_is_no_objection() -> None:
    void = ended("z", [], "VOID", "not-fresh", campaign="c0")
    assert judged([*pair(ROWS, ROWS), (void, [])]).verdict == "PASS"


def test_fail_wins_over_void() -> None:
    void = ended("z", [], "VOID", "not-fresh", slot=1)
    cases = [*pair(ROWS, flipped_logits(ROWS, 1)), (void, [])]
    assert judged(cases).verdict == "FAIL"


def test_the_evidence_of_another_campaign_does_not_complete_this_one() -> None:
    cases = [replay("a", ROWS, campaign="c0"), replay("b", ROWS, slot=1)]
    assert judged(cases).verdict == "VOID"


def test_two_replays_on_two_units_are_no_same_unit_pair() -> None:
    cases = [replay("a", ROWS), replay("b", ROWS, slot=1, unit="cpu-2")]
    assert judged(cases).code == "missing-evidence"


def test_same_class_needs_two_units() -> None:
    verdict = judged(pair(ROWS, ROWS), Require(scope="same-class"))
    assert "two units" in verdict.reason


def test_three_required_replays_need_three() -> None:
    assert judged(pair(ROWS, ROWS), Require(replays=3)).verdict == "VOID"


def test_two_replays_in_one_process_are_not_fresh() -> None:
    verdict = judged(pair(ROWS, ROWS, process=process(7)))
    assert (verdict.verdict, verdict.code) == ("VOID", "not-fresh")


def test_a_pid_that_came_again_with_another_start_tick_is_fresh() -> None:
    later = replace(process(7), start_tick=200)
    cases = [replay("a", ROWS, process=process(7)), replay("b", ROWS, slot=1, process=later)]
    assert judged(cases).verdict == "PASS"


def test_a_process_that_served_an_older_campaign_is_not_fresh() -> None:
    old = replay("o", ROWS, campaign="c0", accepted_at_s=1.0, process=process(7))
    mine = [replay("a", ROWS, process=process(7)), replay("b", ROWS, slot=1)]
    assert judged([old, *mine]).code == "not-fresh"


def test_the_same_attempt_offered_twice_is_void() -> None:
    cases = [replay("a", ROWS), replay("a", ROWS, slot=1)]
    assert judged(cases).code == "duplicate-attempt"


def test_zero_rows_are_void() -> None:
    empty = [summary(n, [], slot=i, num_samples=4) for i, n in enumerate("ab")]
    verdict = judged([(s, []) for s in empty])
    assert verdict.code == "missing-evidence"
    assert "zero rows" in verdict.reason


def test_zero_decode_steps_are_void() -> None:
    verdict = judged(pair(ROWS, ROWS, power=power(ROWS, decode_steps=0)))
    assert "zero decode steps" in verdict.reason


def test_a_missing_column_is_void() -> None:
    whole = summary("a", ROWS)
    arm = whole.arms["current"]
    columns = {k: v for k, v in arm.columns.items() if k != "attention_mask_sha256"}
    arms = whole.arms | {"current": replace(arm, columns=columns)}
    verdict = judged(pair(ROWS, ROWS, arms=arms))
    assert "no digest of the column attention_mask_sha256" in verdict.reason


def test_a_missing_root_is_void() -> None:
    roots = {k: v for k, v in summary("a", ROWS).roots.items() if k != "tokens"}
    assert "no root at the grade tokens" in judged(pair(ROWS, ROWS, roots=roots)).reason


def test_half_the_rows_are_void() -> None:
    verdict = judged(pair(ROWS, ROWS, num_samples=8))
    assert (verdict.verdict, verdict.code) == ("VOID", "missing-evidence")


def test_an_unknown_process_is_void() -> None:
    assert judged(pair(ROWS, ROWS, process=None)).code == "cannot-observe"


def test_a_control_that_did_not_behave_voids_a_pass() -> None:
    verdict = judged(pair(ROWS, ROWS), controls_failed=["control-racy"])
    assert verdict.reason == "VOID(control-failed): control control-racy did not behave"


def test_a_control_that_did_not_behave_never_touches_a_fail() -> None:
    cases = pair(ROWS, flipped_logits(ROWS, 1))
    assert judged(cases, controls_failed=["control-racy"]).verdict == "FAIL"


# Power


def test_one_distinct_output_is_a_pass_of_low_power() -> None:
    rows = changed_all(ROWS, generated_token_ids=(1, 2, 3))
    verdict = judged(pair(rows, rows))
    assert verdict.verdict == "PASS"
    assert verdict.power is not None
    assert (verdict.power["low"], verdict.power["reasons"]) == (True, ["one distinct output"])
    assert verdict.reason.startswith("PASS, low power (one distinct output)")


def test_any_non_finite_value_is_low_power() -> None:
    cases = [replay("a", ROWS), replay("b", ROWS, slot=1, power=power(ROWS, nonfinite=2))]
    verdict = judged(cases)
    assert verdict.power is not None
    assert verdict.power["reasons"] == ["2 non-finite logits"]
    assert verdict.verdict == "PASS"


def test_two_equal_runs_of_nan_are_a_pass_of_low_power() -> None:
    rows = changed_all(ROWS, nonfinite=3, margin_logits=(float("nan"),) * 3)
    verdict = judged(pair(rows, rows))
    assert verdict.verdict == "PASS"
    assert verdict.power is not None
    assert verdict.power["low"] is True


def test_logits_of_minus_zero_are_not_logits_of_zero() -> None:
    zero = changed_all(ROWS, step_logits_sha256=(sha(repr(struct.pack("<f", 0.0))),) * 3)
    minus = changed_all(ROWS, step_logits_sha256=(sha(repr(struct.pack("<f", -0.0))),) * 3)
    assert judged(pair(zero, zero)).verdict == "PASS"
    assert judged(pair(zero, minus)).verdict == "FAIL"


def test_two_nan_payloads_are_two_values() -> None:
    quiet, other = struct.pack("<I", 0x7FC00000), struct.pack("<I", 0x7FC00001)
    a = changed_all(ROWS, step_logits_sha256=(sha(repr(quiet)),) * 3, nonfinite=3)
    b = changed_all(ROWS, step_logits_sha256=(sha(repr(other)),) * 3, nonfinite=3)
    assert judged(pair(a, b)).verdict == "FAIL"


def test_one_input_shape_is_a_note_and_not_low() -> None:
    verdict = judged(pair(ROWS, ROWS, envelope={"batch_size": 1, "prefill_shapes": 1}))
    assert verdict.power is not None
    assert verdict.power["notes"] == ["one distinct input shape"]
    assert verdict.power["low"] is False


def test_power_states_attempts_started_and_used() -> None:
    failed = ended("z", [], "FAILED", "killed", slot=1)
    verdict = judged([*pair(ROWS, ROWS), (failed, [])])
    assert verdict.power is not None
    assert (verdict.power["attempts_started"], verdict.power["attempts_used"]) == (3, 2)


def test_the_share_ended_at_step_1_is_stated_beside_a_verdict() -> None:
    verdict = judged(pair(ROWS, ROWS, power=power(ROWS, ended_at_step_1=2)))
    assert verdict.power is not None
    assert verdict.power["share_ended_at_step_1"] == 0.25


# Status: any campaign


def test_status_passes_when_some_campaign_has_complete_evidence() -> None:
    old = pair(ROWS, ROWS, campaign="n1", accepted_at_s=10.0)
    new = replay("c", ROWS, campaign="n2", accepted_at_s=20.0)
    verdict = judged([*old, new], campaign=None)
    assert (verdict.verdict, verdict.campaign, verdict.accepted_at_s) == ("PASS", "n1", 10.0)


def test_status_names_the_newest_campaigns_cause() -> None:
    old = replay("a", ROWS, campaign="n1", accepted_at_s=10.0)
    new = ended("z", [], "VOID", "not-fresh", campaign="n2", accepted_at_s=20.0)
    verdict = judged([old, (new, [])], campaign=None)
    assert (verdict.verdict, verdict.code) == ("VOID", "not-fresh")


def test_status_does_not_pass_on_a_campaign_whose_control_failed() -> None:
    cases = pair(ROWS, ROWS, campaign="n1")
    verdict = judged(cases, campaign=None, controls_failed_in={"n1": ["control-clean"]})
    assert verdict.code == "control-failed"


def test_a_void_attempt_without_a_platform_voids_its_campaign_in_status_too() -> None:
    gap = ended("z", [], "VOID", "ledger-gap", platform="")
    verdict = judged(pair(ROWS, ROWS), campaign=None, siblings=[gap])
    assert verdict.code == "ledger-gap"


def test_a_pass_before_a_fail_is_remembered() -> None:
    old = pair(ROWS, ROWS, campaign="n1", accepted_at_s=10.0)
    new = [
        replay(n, flipped_logits(ROWS, 1), slot=i, campaign="n2", accepted_at_s=20.0)
        for i, n in enumerate("cd")
    ]
    assert passed_before([*old, *new])
    assert not passed_before(new)
    assert not passed_before([replay("a", ROWS, campaign="n1", accepted_at_s=1.0), *new])


def test_a_pass_after_the_first_fail_is_not_looked_for() -> None:
    failed = [
        replay(n, rows, slot=i, campaign="n1", accepted_at_s=1.0)
        for i, (n, rows) in enumerate([("a", ROWS), ("b", flipped_logits(ROWS, 1))])
    ]
    later = [
        replay(n, ROWS, slot=i, campaign=c, accepted_at_s=at)
        for c, at in (("n2", 2.0), ("n3", 3.0))
        for i, n in enumerate((c + "x", c + "y"))
    ]
    assert not passed_before([*failed, *later])


def passed_before(cases: list[tuple[AttemptSummary, Rows]]) -> bool:
    summaries = [c[0] for c in cases]
    rows = {c[0].attempt: c[1] for c in cases}
    known = comparisons(summaries, rows, Require())
    return had_pass(summaries, Require(), known)


# Platforms


def test_sets_are_told_apart_by_platform_vary_trace_and_execution() -> None:
    base = summary("a", ROWS)
    others = [
        replace(base, attempt="b", platform="sha256:q"),
        replace(base, attempt="c", vary=("order",)),
        replace(base, attempt="d", traced=True),
        replace(base, attempt="e", execution_id="sha256:f"),
    ]
    assert len(groups([base, *others])) == 5


def test_an_attempt_that_died_before_its_platform_joins_the_one_its_campaign_showed() -> None:
    lost = ended("z", ROWS[:2], "LOST", "killed", platform="", unit="", process=None)
    (members,) = groups([summary("a", ROWS), lost]).values()
    assert [s.attempt for s in members] == ["a", "z"]


def test_an_attempt_of_another_boot_joins_nothing() -> None:
    elsewhere = replace(process(1), boot_id="other")
    lost = ended("z", ROWS[:2], "LOST", "killed", platform="", unit="", process=elsewhere)
    assert len(groups([summary("a", ROWS), lost])) == 2


def test_an_attempt_between_two_platforms_joins_none() -> None:
    lost = ended("z", [], "LOST", "killed", platform="", unit="", process=None)
    other = summary("b", ROWS, platform="sha256:q")
    assert len(groups([summary("a", ROWS), other, lost])) == 3


def test_the_rows_of_a_killed_attempt_without_a_manifest_stick() -> None:
    landed = flipped_logits(ROWS, 1)
    lost = ended("z", landed, "LOST", "killed", platform="", unit="", process=None)
    assert campaign_verdict([*pair(ROWS, ROWS), (lost, landed)]).verdict == "FAIL"


def test_an_unreadable_platform_fact_parts_the_pair() -> None:
    cases = [replay("a", ROWS), replay("b", ROWS, slot=1, platform="sha256:q")]
    facts = {
        "sha256:p": {"driver": {"unreadable_in": "a", "why": "denied"}, "os": "Linux"},
        "sha256:q": {"driver": {"unreadable_in": "b", "why": "denied"}, "os": "Linux"},
    }
    verdict = campaign_verdict(cases, platforms=facts)
    assert verdict.verdict == "VOID"
    assert verdict.reason == (
        "VOID(cannot-observe): no two attempts share a platform: fact driver unreadable"
    )
    assert [a["attempt"] for a in verdict.attempts] == ["a", "b"]


def test_a_platform_fact_that_differs_is_named() -> None:
    cases = [replay("a", ROWS), replay("b", ROWS, slot=1, platform="sha256:q")]
    facts = {"sha256:p": {"cpu_isa": "AVX512"}, "sha256:q": {"cpu_isa": "DEFAULT"}}
    verdict = campaign_verdict(cases, platforms=facts)
    assert "fact cpu_isa differs" in verdict.reason


def test_rows_that_differ_across_platforms_are_never_compared() -> None:
    cases = [replay("a", ROWS), replay("b", flipped_logits(ROWS, 1), slot=1, platform="sha256:q")]
    assert campaign_verdict(cases).verdict == "VOID"


def test_a_fail_on_one_platform_is_the_campaigns_verdict() -> None:
    cases = [
        *pair(ROWS, flipped_logits(ROWS, 1)),
        *[replay(n, ROWS, slot=i, platform="sha256:q") for i, n in enumerate("cd")],
    ]
    assert campaign_verdict(cases).verdict == "FAIL"


def test_a_campaign_verdict_holds_older_campaigns_against_it() -> None:
    old = replay("o", flipped_logits(ROWS, 1), campaign="c0")
    assert campaign_verdict([old, *pair(ROWS, ROWS)]).verdict == "FAIL"


def test_an_unplaced_void_attempt_voids_its_campaign() -> None:
    elsewhere = replace(process(1), boot_id="other")
    void = ended("z", [], "VOID", "ledger-gap", platform="", unit="", process=elsewhere)
    assert campaign_verdict([*pair(ROWS, ROWS), (void, [])]).code == "ledger-gap"


def test_the_cause_of_a_void_attempt_is_told_before_a_lack_of_replays() -> None:
    void = ended("z", [], "VOID", "setting-not-in-force", slot=1, platform="sha256:q")
    verdict = campaign_verdict([replay("a", ROWS), (void, [])])
    assert verdict.code == "setting-not-in-force"


def test_a_campaign_that_planned_nothing_is_void() -> None:
    verdict = campaign_verdict([], campaign="c9")
    assert (verdict.verdict, verdict.code) == ("VOID", "missing-evidence")


@pytest.mark.parametrize("state", ["FAILED", "LOST"])
def test_a_campaign_whose_every_attempt_died_is_void_with_its_cause(state: str) -> None:
    died = ended("z", [], state, "hang", platform="", unit="", process=None)
    verdict = campaign_verdict([(died, [])])
    assert (verdict.verdict, verdict.code) == ("VOID", "hang")


def test_a_cause_without_a_known_code_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="unknown cause"):
        Cause("bad-luck", "x")
