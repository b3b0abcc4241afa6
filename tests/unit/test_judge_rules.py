"""FAIL, VOID or PASS: what counts as a difference, and at which layer."""

from __future__ import annotations

from typing import Any

import pytest

from fleet.contract.model import Require
from fleet.judge.rules import judge, pairs_needed
from fleet.judge.verdict import Verdict
from tests.unit.evidence_builders import (
    changed,
    changed_all,
    dataset,
    ended,
    flipped_logits,
    judged,
    other_token,
    pair,
    replay,
    sha,
    summary,
)

ROWS = dataset()
TOKENS = Require(grade="tokens")
SAME_CLASS = Require(scope="same-class")


def exact(verdict: Verdict, arm: str, grade: str) -> tuple[str, int, int]:
    cell = verdict.arms[arm][grade]
    return cell["verdict"], cell["exact"], cell["total"]


def test_two_equal_replays_pass() -> None:
    verdict = judged(pair(ROWS, ROWS))
    assert (verdict.verdict, verdict.state, verdict.attained_grade) == ("PASS", "PASS", "logits")
    assert (verdict.layer, verdict.layers, verdict.first_difference) == (None, (), None)
    assert (verdict.records, verdict.mismatches) == (8, 0)
    assert exact(verdict, "current", "logits") == ("PASS", 4, 4)
    assert verdict.scope == "same-unit"
    assert "exact repeat" in verdict.reason


def test_two_roots_are_a_fail() -> None:
    verdict = judged(pair(ROWS, flipped_logits(ROWS, 1)))
    assert verdict.verdict == "FAIL"
    assert (verdict.layer, verdict.layers) == (None, (2, 3))
    assert "2 or 3, not localised" in verdict.reason
    assert verdict.first_broken_grade == "logits"
    assert verdict.attained_grade == "tokens"
    assert (verdict.mismatches, verdict.stages) == (1, {"logits": 1})
    assert exact(verdict, "current", "logits") == ("FAIL", 3, 4)
    assert exact(verdict, "current", "tokens") == ("PASS", 4, 4)
    assert exact(verdict, "controlled", "logits") == ("PASS", 4, 4)
    assert len(verdict.roots["logits"]) == 2
    assert len(verdict.roots["tokens"]) == 1


def test_a_fail_shows_its_first_sample() -> None:
    verdict = judged(pair(ROWS, flipped_logits(flipped_logits(ROWS, 3), 1, step=2)))
    first = verdict.first_difference
    assert first is not None
    assert (first["sample_id"], first["arm"], first["step"]) == ("q1", "current", 2)
    assert first["attempts"] == ["a", "b"]
    assert [s["sample_id"] for s in verdict.differing_samples] == ["q1", "q3"]


def test_one_replay_of_three_that_differs_is_a_fail() -> None:
    cases = [*pair(ROWS, ROWS), replay("c", flipped_logits(ROWS, 2), slot=2)]
    assert judged(cases, Require(replays=3)).verdict == "FAIL"


def test_three_roots_are_one_fail_and_two_comparisons() -> None:
    cases = [
        *pair(ROWS, flipped_logits(ROWS, 1)),
        replay("c", flipped_logits(ROWS, 2), slot=2),
    ]
    summaries = [case[0] for case in cases]
    assert pairs_needed(summaries, Require()) == [("a", "b"), ("a", "c")]
    verdict = judged(cases)
    assert verdict.verdict == "FAIL"
    assert "3 classes on unit cpu-1" in verdict.reason


def test_two_roots_from_two_nights_are_a_fail() -> None:
    old = pair(ROWS, ROWS, campaign="night-1", accepted_at_s=1.0)
    new = [
        replay(name, flipped_logits(ROWS, 1), slot=i, campaign="night-2", accepted_at_s=2.0)
        for i, name in enumerate("cd")
    ]
    verdict = judged([*old, *new], campaign="night-2")
    assert verdict.verdict == "FAIL"
    assert [a["attempt"] for a in verdict.attempts] == ["a", "c", "d"]
    assert exact(verdict, "current", "logits") == ("FAIL", 3, 4)


def test_a_token_from_equal_logits_is_the_sampler_at_layer_2() -> None:
    verdict = judged(pair(ROWS, other_token(ROWS, 1)))
    assert (verdict.verdict, verdict.layer, verdict.layers) == ("FAIL", 2, (2,))
    assert verdict.first_broken_grade == "tokens"
    assert exact(verdict, "current", "logits") == ("FAIL", 4, 4)
    assert verdict.arms["current"]["logits"]["rate"] == 1.0


def test_a_parser_that_changed_is_layer_4() -> None:
    verdict = judged(pair(ROWS, changed(ROWS, 1, parsed_answer="B")))
    assert (verdict.layer, verdict.first_broken_grade) == (4, "prediction")
    assert "parser" in verdict.reason
    assert exact(verdict, "current", "tokens") == ("FAIL", 4, 4)
    assert exact(verdict, "current", "metric") == ("PASS", 4, 4)


def test_a_metric_that_moved_counts_all_its_records() -> None:
    verdict = judged(pair(ROWS, changed(ROWS, 1, is_correct=True)))
    assert exact(verdict, "current", "metric") == ("FAIL", 0, 4)
    assert exact(verdict, "controlled", "metric") == ("PASS", 4, 4)
    assert verdict.attained_grade is None


def test_a_raw_answer_from_equal_ids_is_layer_4() -> None:
    verdict = judged(pair(ROWS, changed(ROWS, 1, raw_answer="other")))
    assert (verdict.layer, list(verdict.stages)) == (4, ["output"])


@pytest.mark.parametrize(
    "column",
    ["raw_record_sha256", "prompt_sha256", "attention_mask_sha256"],
)
def test_an_input_that_differs_is_a_fail_though_every_root_is_equal(column: str) -> None:
    verdict = judged(pair(ROWS, changed(ROWS, 2, **{column: sha("other")})))
    assert (verdict.verdict, verdict.layer, verdict.layers) == ("FAIL", 1, (1,))
    assert len(verdict.roots["logits"]) == 1
    assert verdict.first_difference is not None
    assert verdict.first_difference["sample_id"] == "q2"
    assert verdict.mismatches == 1
    assert exact(verdict, "current", "logits")[0] == "FAIL"
    assert exact(verdict, "controlled", "logits")[0] == "PASS"


def test_an_input_on_another_unit_is_a_fail_in_either_scope() -> None:
    moved = changed(ROWS, 2, prompt_sha256=sha("other"))
    cases = [*pair(ROWS, ROWS), replay("c", moved, unit="cpu-2")]
    assert judged(cases).verdict == "FAIL"


def test_prompt_ids_that_differ_clear_the_kernel() -> None:
    moved = flipped_logits(changed(ROWS, 1, prompt_ids_sha256=sha("bos")), 1)
    verdict = judged(pair(ROWS, moved))
    assert (verdict.layer, list(verdict.stages)) == (1, ["prompt_ids"])


def test_exactly_the_samples_that_differ_are_named() -> None:
    moved = ROWS
    for sample in (0, 3):
        moved = changed(moved, sample, raw_record_sha256=sha(f"edited {sample}"))
    verdict = judged(pair(ROWS, moved))
    assert [s["sample_id"] for s in verdict.differing_samples] == ["q0", "q3"]
    assert verdict.mismatches == 2


def staged(**stages: str) -> dict[str, str]:
    base = {"checkpoint": "sha256:k", "post_init_weights": "sha256:w", "end_weights": "sha256:w"}
    return {**base, "effective": "sha256:s", **stages}


def test_weights_after_initialisation_that_differ_are_layer_3() -> None:
    other = staged(post_init_weights="sha256:v", end_weights="sha256:v")
    cases = [replay("a", ROWS, slot=0), replay("b", ROWS, slot=1, stages=other)]
    verdict = judged(cases)
    assert (verdict.verdict, verdict.layer) == ("FAIL", 3)
    assert exact(verdict, "current", "metric")[0] == "FAIL"


def test_weights_that_differ_explain_logits_that_differ() -> None:
    other = staged(post_init_weights="sha256:v", end_weights="sha256:v")
    cases = [replay("a", ROWS), replay("b", flipped_logits(ROWS, 1), slot=1, stages=other)]
    verdict = judged(cases)
    assert (verdict.layer, verdict.layers) == (3, (3,))
    assert verdict.first_difference is not None
    assert verdict.first_difference["earliest_stage"] == "post_init_weights"


def test_a_checkpoint_that_differs_is_layer_2() -> None:
    other = staged(checkpoint="sha256:j", post_init_weights="sha256:v")
    cases = [replay("a", ROWS), replay("b", ROWS, slot=1, stages=other)]
    assert judged(cases).layer == 2


def test_weights_that_differ_only_at_the_end_are_layer_5() -> None:
    cases = [replay("a", ROWS), replay("b", ROWS, slot=1, stages=staged(end_weights="sha256:v"))]
    assert judged(cases).layer == 5


def test_an_undeclared_setting_with_equal_values_is_a_warning() -> None:
    cases = [
        replay("a", ROWS, effective={"threads": 1}),
        replay("b", ROWS, slot=1, effective={"threads": 2}, stages=staged(effective="sha256:t")),
    ]
    verdict = judged(cases)
    assert verdict.verdict == "PASS"
    assert verdict.warnings == ("undeclared effective settings differ between replays: threads",)


def test_a_setting_of_one_row_with_equal_values_is_a_warning() -> None:
    verdict = judged(pair(ROWS, changed(ROWS, 2, settings_sha256=sha("threads 2"))))
    assert verdict.verdict == "PASS"
    assert len(verdict.warnings) == 1


def test_a_harmless_setting_does_not_outrank_logits_that_differ() -> None:
    cases = [
        replay("a", ROWS),
        replay("b", flipped_logits(ROWS, 1), slot=1, stages=staged(effective="sha256:t")),
    ]
    verdict = judged(cases)
    assert (verdict.verdict, verdict.layer, verdict.layers) == ("FAIL", None, (2, 3))
    assert "settings differ too, a candidate cause" in verdict.reason
    assert set(verdict.stages) == {"logits", "settings"}


def test_a_setting_beside_a_parser_fault_is_a_candidate() -> None:
    moved = changed(ROWS, 1, parsed_answer="B", settings_sha256=sha("t"))
    verdict = judged(pair(ROWS, moved))
    assert (verdict.layer, verdict.layers) == (None, (2, 4))


def test_a_difference_above_the_required_grade_is_a_pass_at_that_grade() -> None:
    verdict = judged(pair(ROWS, flipped_logits(ROWS, 1)), TOKENS)
    assert (verdict.verdict, verdict.attained_grade) == ("PASS", "tokens")
    assert verdict.warnings == ("logits differ above the required grade: tokens-equal only",)
    assert "(tokens-equal)" in verdict.reason
    assert verdict.first_broken_grade == "logits"
    assert exact(verdict, "current", "logits") == ("FAIL", 3, 4)
    assert verdict.mismatches == 0


def test_a_difference_below_the_required_grade_is_a_fail() -> None:
    assert judged(pair(ROWS, changed(ROWS, 1, parsed_answer="B")), Require()).verdict == "FAIL"


def test_equal_metrics_with_other_answers_are_a_fail_of_predictions() -> None:
    moved = changed(changed(ROWS, 0, is_correct=False), 1, is_correct=True)
    verdict = judged(pair(ROWS, moved), Require(grade="prediction"))
    assert (verdict.verdict, verdict.attained_grade) == ("FAIL", "metric")
    assert judged(pair(ROWS, moved), Require(grade="metric")).verdict == "PASS"


def test_modules_cannot_be_certified_without_their_roots() -> None:
    verdict = judged(pair(ROWS, ROWS), Require(grade="modules"))
    assert verdict.verdict == "VOID"
    assert "no root at the grade modules" in verdict.reason


# Rows of attempts that ended otherwise


@pytest.mark.parametrize(
    ("state", "code"),
    [("LOST", "node-unreachable"), ("FAILED", "killed"), ("VOID", "setting-not-in-force")],
)
def test_a_row_of_any_attempt_sticks(state: str, code: str) -> None:
    landed = flipped_logits(ROWS, 1)[:6]
    cases = [*pair(ROWS, ROWS), (ended("z", landed, state, code), landed)]
    verdict = judged(cases)
    assert verdict.verdict == "FAIL"
    assert f"rows of attempt z ({state}: {code}) differ from attempt" in verdict.reason
    assert verdict.first_difference is not None
    assert verdict.attained_grade == "tokens"
    assert exact(verdict, "current", "logits") == ("FAIL", 1, 2)


def test_pass_then_fail_from_the_rows_of_a_later_lost_attempt() -> None:
    good = pair(ROWS, ROWS, campaign="night-1", accepted_at_s=1.0)
    assert judged(good, campaign="night-1").verdict == "PASS"
    landed = flipped_logits(ROWS, 0, "controlled")[:1]
    lost = ended("z", landed, "LOST", "node-unreachable", campaign="night-2")
    again = [
        replay(n, ROWS, slot=i, campaign="night-2", accepted_at_s=2.0) for i, n in enumerate("cd")
    ]
    assert judged([*good, (lost, landed), *again], campaign="night-2").verdict == "FAIL"


@pytest.mark.parametrize("purpose", ["screen", "trace", "replay"])
def test_a_difference_from_a_screen_sticks_and_its_agreement_never_helps(purpose: str) -> None:
    other = replay("z", flipped_logits(ROWS, 1), slot=1, purpose=purpose)
    assert judged([*pair(ROWS, ROWS), other]).verdict == "FAIL"
    same = replay("z", ROWS, slot=1, purpose=purpose)
    assert judged([replay("a", ROWS), same]).verdict == "VOID"


def test_agreement_from_an_attempt_that_was_not_accepted_never_helps() -> None:
    verdict = judged([replay("a", ROWS), replay("b", ROWS, slot=1, accepted_at_s=None)])
    assert (verdict.verdict, verdict.code) == ("VOID", "not-accepted")


def test_rows_of_a_void_attempt_with_other_settings_do_not_fail() -> None:
    landed = changed_all(flipped_logits(ROWS, 1), settings_sha256=sha("wrong"))
    void = ended("z", landed, "VOID", "setting-not-in-force")
    verdict = judged([*pair(ROWS, ROWS), (void, landed)])
    assert (verdict.verdict, verdict.code) == ("VOID", "setting-not-in-force")


def test_rows_of_a_lost_attempt_with_other_inputs_do_not_fail() -> None:
    landed = flipped_logits(changed(ROWS, 1, prompt_ids_sha256=sha("bos")), 1)
    verdict = judged([*pair(ROWS, ROWS), (ended("z", landed, "LOST", "hang"), landed)])
    assert verdict.verdict == "PASS"


def test_a_null_in_a_void_attempt_is_no_difference() -> None:
    landed = [row | {"raw_answer": None, "tokens_sha256": sha("null")} for row in ROWS]
    void = ended("z", landed, "VOID", "missing-evidence")
    assert judged([*pair(ROWS, ROWS), (void, landed)]).verdict == "VOID"


@pytest.mark.parametrize(
    "code", ["evidence-altered", "weights-not-of-checkpoint", "pinned-content-changed"]
)
def test_rows_that_are_not_this_contracts_are_never_compared(code: str) -> None:
    landed = flipped_logits(ROWS, 1)
    void = ended("z", landed, "VOID", code)
    cases = [*pair(ROWS, ROWS), (void, landed)]
    assert pairs_needed([c[0] for c in cases], Require()) == []
    verdict = judged(cases)
    assert (verdict.verdict, verdict.code) == ("VOID", code)


def test_two_lost_attempts_that_differ_are_a_fail_without_any_complete_one() -> None:
    cases: list[Any] = [
        (ended("y", ROWS, "LOST", "driver-gone"), ROWS),
        (ended("z", flipped_logits(ROWS, 1), "LOST", "driver-gone"), flipped_logits(ROWS, 1)),
    ]
    verdict = judged(cases)
    assert verdict.verdict == "FAIL"
    assert verdict.attained_grade is None
    assert verdict.records == 8


def test_a_difference_above_the_required_grade_does_not_stick() -> None:
    landed = flipped_logits(ROWS, 1)
    cases = [*pair(ROWS, ROWS), (ended("z", landed, "LOST", "hang"), landed)]
    assert judged(cases, TOKENS).verdict == "PASS"


def test_a_needed_comparison_that_is_missing_is_an_error() -> None:
    summaries = [summary("a", ROWS), ended("z", ROWS, "LOST", "hang")]
    with pytest.raises(ValueError, match="missing"):
        judge(summaries, Require(), {}, campaign="c1", contract_name="x")


def test_two_roots_fail_even_when_no_row_was_compared() -> None:
    summaries = [s for s, _ in pair(ROWS, flipped_logits(ROWS, 1))]
    verdict = judge(summaries, Require(), {}, campaign="c1", contract_name="x")
    assert (verdict.verdict, verdict.layer, verdict.layers) == ("FAIL", None, ())
    assert "roots differ at logits" in verdict.reason
    assert verdict.first_broken_grade == "logits"


def test_one_sample_replayed_alone_counts_when_batch_and_decoding_make_it_independent() -> None:
    one = [row for row in flipped_logits(ROWS, 1) if row["sample_id"] == "q1"]
    alone = replay("z", one, purpose="replay")
    assert judged([*pair(ROWS, ROWS), alone]).verdict == "FAIL"
    in_batches = [
        replay(n, rows, purpose=p, envelope={"batch_size": 8})
        for n, rows, p in [("a", ROWS, "certify"), ("b", ROWS, "certify"), ("z", one, "replay")]
    ]
    assert judged(in_batches).verdict == "PASS"


# Units and scope


def test_two_classes_over_two_units_pass_per_unit_and_fail_the_class() -> None:
    cases = [
        *pair(ROWS, ROWS),
        *[replay(n, flipped_logits(ROWS, 1), slot=i, unit="cpu-2") for i, n in enumerate("cd")],
    ]
    per_unit = judged(cases)
    assert (per_unit.verdict, per_unit.scope) == ("PASS", "same-unit")
    assert any("2 classes over 2 units" in w for w in per_unit.warnings)
    assert [u["agrees"] for u in per_unit.units] == [True, True]
    across = judged(cases, SAME_CLASS)
    assert (across.verdict, across.scope) == ("FAIL", "same-class")
    assert "2 classes over 2 units" in across.reason


def test_two_roots_on_one_unit_fail_both_scopes() -> None:
    cases = [*pair(ROWS, ROWS), replay("c", ROWS, unit="u2")]
    cases.append(replay("d", flipped_logits(ROWS, 1), unit="u2", slot=1))
    assert judged(cases).verdict == "FAIL"
    assert judged(cases, SAME_CLASS).verdict == "FAIL"
    assert "2 classes on unit u2" in judged(cases).reason


def test_equal_replays_on_two_units_are_same_class() -> None:
    cases = [replay("a", ROWS), replay("b", ROWS, slot=1, unit="cpu-2")]
    verdict = judged(cases, SAME_CLASS)
    assert (verdict.verdict, verdict.scope) == ("PASS", "same-class")


def test_a_lost_row_of_another_unit_warns_under_same_unit_and_fails_the_class() -> None:
    landed = flipped_logits(ROWS, 1)
    cases = [*pair(ROWS, ROWS), (ended("z", landed, "LOST", "hang", unit="cpu-2"), landed)]
    verdict = judged(cases)
    assert verdict.verdict == "PASS"
    assert any("another unit differs" in w for w in verdict.warnings)
    assert judged(cases, SAME_CLASS).verdict == "FAIL"


def test_a_lost_row_of_an_unknown_unit_sticks() -> None:
    landed = flipped_logits(ROWS, 1)
    cases = [*pair(ROWS, ROWS), (ended("z", landed, "LOST", "hang", unit=""), landed)]
    assert judged(cases).verdict == "FAIL"


# Swaps and samples


def test_outputs_that_changed_places_are_layer_4() -> None:
    names = ("generated_token_ids", "step_logits_sha256", "raw_answer", "full_sequence_sha256")
    mine = {r["sample_id"]: r for r in ROWS if r["arm"] == "current"}
    moved = changed(ROWS, 1, **{n: mine["q2"][n] for n in names})
    moved = changed(moved, 2, **{n: mine["q1"][n] for n in names})
    verdict = judged(pair(ROWS, moved))
    assert (verdict.verdict, verdict.layer) == ("FAIL", 4)
    assert "swap: A's output of q1 is B's of q2" in verdict.reason


def test_replays_of_different_samples_are_a_protocol_difference() -> None:
    renamed = [row | {"sample_id": f"p{row['position']}"} for row in ROWS]
    verdict = judged(pair(ROWS, renamed))
    assert (verdict.verdict, verdict.layer, verdict.mismatches) == ("FAIL", 4, 8)
    assert verdict.first_difference is not None
    assert verdict.first_difference["stage"] == "sample"
