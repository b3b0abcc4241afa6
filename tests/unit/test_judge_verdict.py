"""What a verdict carries: counts, rates, bounds, and its JSON form."""

from __future__ import annotations

import json

import pytest

from fleet.contract.model import Require
from fleet.judge.rules import judge, pairs_needed
from tests.unit.evidence_builders import (
    changed,
    dataset,
    flipped_logits,
    judged,
    pair,
    replay,
    summary,
)

ROWS = dataset()


def test_both_unparsed_is_reported_and_left_out_of_the_share() -> None:
    rows = changed(ROWS, 0, unparsed=True, parsed_answer="", is_correct=False)
    cell = judged(pair(rows, rows)).arms["current"]["prediction"]
    assert (cell["exact"], cell["total"], cell["both_unparsed"], cell["rate"]) == (4, 4, 1, 1.0)
    moved = changed(rows, 1, parsed_answer="B")
    cell = judged(pair(rows, moved)).arms["current"]["prediction"]
    assert (cell["exact"], cell["total"], cell["both_unparsed"]) == (3, 4, 1)
    assert cell["rate"] == 2 / 3


def test_a_verdict_is_json_with_the_promised_keys() -> None:
    keys = (
        "contract execution_id platform verdict attained_grade required_grade scope vary traced "
        "layer layers reason arms records mismatches bounds power envelope attempts roots "
        "first_difference warnings first_broken_grade rule_version units stages state"
    )
    for cases in (pair(ROWS, ROWS), pair(ROWS, flipped_logits(ROWS, 1)), [replay("a", ROWS)]):
        raw = json.loads(json.dumps(judged(cases).to_json(), allow_nan=False))
        assert set(keys.split()) <= set(raw)
        assert raw["rule_version"] == 1
        assert set(raw["bounds"]) >= {"record", "process"}


def test_a_void_has_no_rate_and_counts_nothing() -> None:
    verdict = judged([replay("a", ROWS)])
    assert verdict.verdict == "VOID"
    assert (verdict.records, verdict.mismatches, verdict.attained_grade) == (0, 0, None)
    assert verdict.bounds["record"] is None
    cell = verdict.arms["current"]["logits"]
    assert (cell["verdict"], cell["exact"], cell["total"], cell["rate"]) == ("VOID", 0, 0, None)
    assert verdict.power is not None
    assert verdict.power["share_ended_at_step_1"] is None


def test_a_pass_carries_both_bounds() -> None:
    bounds = judged(pair(ROWS, ROWS)).bounds
    assert bounds["record"] == 1 - 0.05 ** (1 / bounds["n_eff"])
    assert (bounds["process"], bounds["replays"]) == (None, 2)
    six = [replay(n, ROWS, slot=i) for i, n in enumerate("abcdef")]
    assert judged(six, Require(replays=6)).bounds["process"] is not None


def test_a_fail_has_no_bound() -> None:
    assert judged(pair(ROWS, flipped_logits(ROWS, 1))).bounds["record"] is None


def test_the_verdict_does_not_depend_on_the_order_of_arrival() -> None:
    cases = [*pair(ROWS, flipped_logits(ROWS, 1)), replay("c", ROWS, slot=2)]
    assert judged(cases) == judged(list(reversed(cases)))


def test_attempts_of_two_sets_are_refused() -> None:
    summaries = [summary("a", ROWS), summary("b", ROWS, platform="sha256:q")]
    with pytest.raises(ValueError, match="one set"):
        judge(summaries, Require(), {}, campaign="c1", contract_name="x")


def test_many_classes_need_a_bounded_number_of_comparisons() -> None:
    many = [summary(f"{i:03d}", changed(ROWS, 1, raw_answer=str(i)), slot=i) for i in range(40)]
    assert len(pairs_needed(many, Require())) == 16
