"""Lines, states over time, exit codes and control expectations."""

from __future__ import annotations

from dataclasses import replace

from fleet.contract.model import Expect, Require
from fleet.judge.rules import check_expectation, exit_code, status_of, verdict_lines
from tests.unit.evidence_builders import (
    changed,
    dataset,
    flipped_logits,
    judged,
    other_token,
    pair,
    replay,
    sha,
)

ROWS = dataset()
PASS = judged(pair(ROWS, ROWS))
FAIL = judged(pair(ROWS, flipped_logits(ROWS, 1)))
VOID = judged([replay("a", ROWS)])
DAY = 86400.0


def test_a_pass_prints_tokens_and_bitwise() -> None:
    assert verdict_lines(PASS) == [
        "CURRENT_METHOD_TOKENS: PASS",
        "ALL_ARMS_TOKENS: PASS",
        "CURRENT_METHOD_BITWISE: PASS",
        "ALL_ARMS_BITWISE: PASS",
    ]


def test_logits_that_differ_fail_bitwise_only() -> None:
    assert verdict_lines(FAIL) == [
        "CURRENT_METHOD_TOKENS: PASS",
        "ALL_ARMS_TOKENS: PASS",
        "CURRENT_METHOD_BITWISE: FAIL",
        "ALL_ARMS_BITWISE: FAIL",
    ]


def test_another_arm_that_fails_leaves_the_current_method_passing() -> None:
    lines = verdict_lines(judged(pair(ROWS, flipped_logits(ROWS, 1, "controlled"))))
    assert "CURRENT_METHOD_BITWISE: PASS" in lines
    assert "ALL_ARMS_BITWISE: FAIL" in lines


def test_equal_logits_with_other_tokens_are_not_bitwise() -> None:
    lines = verdict_lines(judged(pair(ROWS, other_token(ROWS, 1))))
    assert lines == [
        "CURRENT_METHOD_TOKENS: FAIL",
        "ALL_ARMS_TOKENS: FAIL",
        "CURRENT_METHOD_BITWISE: FAIL",
        "ALL_ARMS_BITWISE: FAIL",
    ]


def test_tokens_alone_are_called_tokens_equal_and_never_bitwise() -> None:
    verdict = judged(pair(ROWS, flipped_logits(ROWS, 1)), Require(grade="tokens"))
    assert verdict_lines(verdict) == [
        "CURRENT_METHOD_TOKENS: PASS (tokens-equal)",
        "ALL_ARMS_TOKENS: PASS (tokens-equal)",
    ]


def test_a_lower_required_grade_has_its_own_lines() -> None:
    rows = other_token(ROWS, 1)
    verdict = judged(pair(ROWS, rows), Require(grade="prediction"))
    assert verdict_lines(verdict) == [
        "CURRENT_METHOD_PREDICTION: PASS",
        "ALL_ARMS_PREDICTION: PASS",
        "CURRENT_METHOD_TOKENS: FAIL",
        "ALL_ARMS_TOKENS: FAIL",
    ]


def test_an_arm_of_another_name_is_not_the_current_method() -> None:
    rows = dataset(arms=("controlled",))
    assert verdict_lines(judged(pair(rows, rows))) == [
        "ALL_ARMS_TOKENS: PASS",
        "ALL_ARMS_BITWISE: PASS",
    ]


def test_a_void_prints_void() -> None:
    assert {line.split(": ")[1] for line in verdict_lines(VOID)} == {"VOID"}


def test_an_input_that_differs_fails_the_lines_of_its_arm() -> None:
    verdict = judged(pair(ROWS, changed(ROWS, 1, prompt_sha256=sha("other"))))
    assert "ALL_ARMS_BITWISE: FAIL" in verdict_lines(verdict)


def test_nothing_tested_is_untested() -> None:
    assert status_of(None, None, 30, 0.0, False) == "UNTESTED"


def test_a_screen_alone_is_untested() -> None:
    screened = judged([replay("a", ROWS, purpose="screen")], campaign=None)
    assert status_of(screened, None, 30, 0.0, False) == "UNTESTED"


def test_a_pass_turns_stale_by_age() -> None:
    assert status_of(PASS, 0.0, 30, 30 * DAY, False) == "PASS"
    assert status_of(PASS, 0.0, 30, 30 * DAY + 1, False) == "STALE"


def test_a_fail_never_turns_stale() -> None:
    assert status_of(FAIL, 0.0, 30, 1000 * DAY, False) == "FAIL"


def test_a_fail_after_a_pass_is_regressed_and_stays_a_fail() -> None:
    assert status_of(FAIL, 0.0, 30, 0.0, True) == "REGRESSED"
    assert exit_code([replace(FAIL, state="REGRESSED")]) == 1


def test_a_void_is_shown_as_void() -> None:
    assert status_of(VOID, None, 30, 0.0, True) == "VOID"


def test_exit_codes_rank_fail_over_void_over_pass() -> None:
    assert exit_code([PASS]) == 0
    assert exit_code([PASS, VOID]) == 3
    assert exit_code([VOID, FAIL, PASS]) == 1
    assert exit_code([replace(PASS, state="STALE")]) == 3


def test_nothing_at_all_exits_3() -> None:
    assert exit_code([]) == 3


def test_a_control_that_behaves_counts_as_pass() -> None:
    control = replace(FAIL, contract="control-racy")
    assert exit_code([PASS, control], behaved={"control-racy"}) == 0
    assert exit_code([PASS, control]) == 1


def test_an_expectation_that_is_met_has_no_mismatch() -> None:
    assert check_expectation(FAIL, Expect(verdict="FAIL", first_broken_grade="logits")) == []


def test_every_part_of_an_expectation_is_compared() -> None:
    expect = Expect(
        verdict="PASS", layer=3, first_broken_grade="tokens", culprit="layers.0", fault="race"
    )
    keys = [text.split(":")[0] for text in check_expectation(FAIL, expect)]
    assert keys == ["verdict", "layer", "first_broken_grade", "culprit", "fault"]


def test_a_void_control_does_not_behave() -> None:
    assert check_expectation(VOID, Expect(verdict="PASS")) == [
        "verdict: expected 'PASS', got 'VOID'"
    ]
