"""Layer 4: rows, answers, and the protocol by which they land."""

from __future__ import annotations

from pathlib import Path

from fleet.replay.task import ReplayTask
from tests.cases.expectations import expect_fail, expect_pass, expect_void, samples
from tests.cases.harness import RECORDS, ContractSpec, Outcome, pair

PARSER = "def parse(raw, record):\n    return raw[:1]\n"


def edit_parser(index: int, task: ReplayTask) -> None:
    """Another parser in the same file, before the second process starts."""
    if index == 1:
        (Path(task.contract_file).parent / "first.py").write_text(PARSER.replace(":1", "-1:"))


@pair({1: "swapped_outputs"})
def test_swapped_outputs_are_layer_4_and_called_a_swap(outcome: Outcome) -> None:
    words = ("swap: A's output of s04 is B's of s09, and back",)
    expect_fail(outcome, 4, *words, stage="sample", mismatches=2)
    assert samples(outcome.verdict) == [("current", "s04"), ("current", "s09")]


@pair({1: "doubled_row"})
def test_a_doubled_row_is_void(outcome: Outcome) -> None:
    expect_void(outcome, "sample-set", "1 doubled of 20: current/s03")


@pair({1: "missing_row"})
def test_a_missing_row_is_void(outcome: Outcome) -> None:
    expect_void(outcome, "sample-set", "1 missing of 20: current/s03")


@pair({1: "unknown_sample"})
def test_a_row_of_an_unknown_sample_is_void(outcome: Outcome) -> None:
    expect_void(outcome, "sample-set", "1 unknown of 20: current/s99")


@pair({1: "one_missing_one_doubled"})
def test_equal_totals_with_one_missing_and_one_doubled_are_void(outcome: Outcome) -> None:
    expect_void(outcome, "sample-set", "1 missing of 20: current/s03")


@pair({0: "no_row", 1: "no_row"})
def test_two_replays_without_a_row_are_void(outcome: Outcome) -> None:
    expect_void(outcome, "sample-set", "20 missing of 20")


@pair({0: "no_decode_step", 1: "no_decode_step"})
def test_a_record_without_a_decode_step_is_void(outcome: Outcome) -> None:
    expect_void(outcome, "missing-evidence", "controlled/s04: no decode step")


@pair({1: "null_answer"})
def test_a_null_in_a_column_of_the_grade_is_void(outcome: Outcome) -> None:
    expect_void(outcome, "missing-evidence", "raw_answer is NULL in 1 rows")


@pair({1: "edited_answer"})
def test_a_row_that_contradicts_its_own_digest_is_void(outcome: Outcome) -> None:
    expect_void(outcome, "evidence-altered", "controlled/s00: prediction_sha256 does not match")


@pair({1: "no_logits_column"})
def test_a_missing_column_is_void(outcome: Outcome) -> None:
    expect_void(outcome, "missing-evidence", "no column step_logits_sha256")


@pair({1: "row_of_another_attempt"})
def test_a_row_that_names_another_attempt_is_void(outcome: Outcome) -> None:
    expect_void(outcome, "evidence-altered", "rows of another attempt: ['0000000000000000']")


@pair({1: "parser_answers_z"})
def test_a_parser_that_answers_differently_in_one_worker_is_layer_4(outcome: Outcome) -> None:
    words = ("parser: raw answer equal", "'Z' (not correct)")
    expect_fail(outcome, 4, *words, stage="parser", mismatches=2, broken="prediction")
    cells = outcome.verdict.arms["current"]
    assert [cells[g]["exact"] for g in ("prediction", "tokens", "logits")] == [9, 10, 10]


@pair(
    spec=ContractSpec(parser="file:first.py"), files={"first.py": PARSER}, before_start=edit_parser
)
def test_a_parser_file_edited_in_between_is_void(outcome: Outcome) -> None:
    expect_void(outcome, "pinned-content-changed", "parser of arm controlled: pinned sha256:")


@pair(
    {1: "parser_is_silent"}, spec=ContractSpec(parser="file:first.py"), files={"first.py": PARSER}
)
def test_parsed_in_one_and_unparsed_in_the_other_is_layer_4(outcome: Outcome) -> None:
    words = ("parser: raw answer equal", "UNPARSED (not correct)")
    expect_fail(outcome, 4, *words, stage="parser", mismatches=2, broken="prediction")


@pair(
    {0: "parser_is_silent", 1: "parser_is_silent"},
    spec=ContractSpec(parser="file:first.py"),
    files={"first.py": PARSER},
)
def test_both_unparsed_with_equal_answers_are_equal_and_left_out_of_the_share(
    outcome: Outcome,
) -> None:
    expect_pass(outcome)
    cell = outcome.verdict.arms["current"]["prediction"]
    assert cell == {"verdict": "PASS", "exact": 10, "total": 10, "rate": 1.0, "both_unparsed": 1}
    assert outcome.verdict.power is not None
    assert outcome.verdict.power["unparsed"] == 2


@pair({1: "other_detokeniser"})
def test_other_text_from_equal_ids_is_layer_4(outcome: Outcome) -> None:
    words = ("token ids equal, raw_answer differs", "sample s06", f"1 of {RECORDS} records")
    expect_fail(outcome, 4, *words, stage="output", mismatches=1, broken="tokens")


@pair({1: "slow"})
def test_other_times_are_no_difference(outcome: Outcome) -> None:
    expect_pass(outcome)
