"""Layer 3: bits that differ with equal inputs. Without a trace no kernel is blamed by name."""

from __future__ import annotations

from fleet.judge.rules import verdict_lines
from tests.cases.expectations import expect_fail, expect_pass, expect_void, samples
from tests.cases.harness import ContractSpec, Outcome, pair

OPEN = (2, 3)
BITS = "logits differ from step 1"


@pair({1: "flipped_bit"})
def test_one_flipped_logits_bit_with_equal_tokens_is_a_fail_not_localised(
    outcome: Outcome,
) -> None:
    words = ("2 or 3, not localised", "logits with equal inputs", BITS, "1 of 20 records differ")
    expect_fail(outcome, OPEN, *words, stage="logits", mismatches=1)
    verdict = outcome.verdict
    assert samples(verdict) == [("current", "s03")]
    assert verdict.attained_grade == "tokens"
    cells = verdict.arms["current"]
    assert (cells["logits"]["exact"], cells["logits"]["total"]) == (9, 10)
    assert cells["tokens"]["verdict"] == "PASS"
    assert verdict_lines(verdict) == [
        "CURRENT_METHOD_TOKENS: PASS",
        "ALL_ARMS_TOKENS: PASS",
        "CURRENT_METHOD_BITWISE: FAIL",
        "ALL_ARMS_BITWISE: FAIL",
    ]


@pair({1: "flipped_bit"}, spec=ContractSpec(grade="tokens"))
def test_tokens_are_asked_for_and_logits_differ_is_a_pass_at_tokens(outcome: Outcome) -> None:
    expect_pass(outcome, "at the grade tokens (tokens-equal)", grade="tokens")
    assert outcome.verdict.warnings == (
        "logits differ above the required grade: tokens-equal only",
    )
    assert verdict_lines(outcome.verdict) == [
        "CURRENT_METHOD_TOKENS: PASS (tokens-equal)",
        "ALL_ARMS_TOKENS: PASS (tokens-equal)",
    ]


@pair({0: "nan_payload_1", 1: "nan_payload_1"})
def test_equal_nans_are_a_pass_with_low_power(outcome: Outcome) -> None:
    expect_pass(outcome, "1 non-finite logits", low=True)


@pair({0: "nan_payload_1", 1: "nan_payload_2"})
def test_two_payloads_of_nan_are_a_fail(outcome: Outcome) -> None:
    expect_fail(outcome, OPEN, BITS, stage="logits", mismatches=1)


@pair({0: "plus_zero", 1: "minus_zero"})
def test_zero_and_minus_zero_are_a_fail(outcome: Outcome) -> None:
    expect_fail(outcome, OPEN, BITS, stage="logits", mismatches=1)


@pair({1: "other_weights"})
def test_other_weights_after_load_with_equal_outputs_are_layer_3(outcome: Outcome) -> None:
    words = ("weights after initialisation, checkpoint equal",)
    expect_fail(outcome, 3, *words, stage="post_init_weights", mismatches=0, broken=None)


@pair({1: "weights_move_unseen"})
def test_weights_that_change_during_a_replay_are_void(outcome: Outcome) -> None:
    expect_void(outcome, "weights-changed", "slot 1", "changed during the replay")


@pair({1: "weights_move"})
def test_weights_that_change_and_show_in_the_logits_are_a_fail(outcome: Outcome) -> None:
    words = ("5 of 20 records differ", "(VOID: weights-changed) differ from attempt")
    expect_fail(outcome, OPEN, *words, stage="logits", mismatches=5)
    assert list(outcome.verdict.stages) == ["logits", "end_weights"]
