"""Verdicts on varied sets: what is enough for a PASS, and what a FAIL may be said to depend on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleet.contract.model import Require
from fleet.evidence.summary import AttemptSummary
from fleet.judge.rules import (
    judge_campaign,
    pairs_for_counterfactual,
    pairs_needed_for_campaign,
    with_counterfactual,
)
from fleet.judge.verdict import Verdict
from tests.unit.evidence_builders import Rows, compared, ended, record, replay

ROWS: Rows = [record(n, arm) for arm in ("controlled", "current") for n in range(4)]
OTHER: Rows = [
    record(n, arm, **({"step_logits_sha256": (b"x" * 32,) * 3} if n == 2 else {}))
    for arm in ("controlled", "current") for n in range(4)
]  # fmt: skip
MOVED: Rows = [
    record(n, arm, prompt_text="other") | {"prompt_sha256": b"p" * 32, "input_sha256": b"i" * 32}
    for arm in ("controlled", "current") for n in range(4)
]  # fmt: skip
Case = tuple[AttemptSummary, Rows]
SEED = {"order": "ab"}


def exact(attempt: str, rows: Rows = ROWS, **changes: Any) -> Case:
    return replay(attempt, rows, **{"campaign": "c0"} | changes)


def varied(attempt: str, took: dict[str, Any], rows: Rows = ROWS, **changes: Any) -> Case:
    vary = changes.pop("vary", ("order",))
    return replay(attempt, rows, vary=vary, varied=took, **changes)


def judged(*cases: Case, vary: tuple[str, ...] = ("order",), campaign: str = "c1") -> Verdict:
    """The verdict of a campaign's claim, and what the others say of it."""
    require = Require(vary=vary)
    summaries, rows = [c[0] for c in cases], {c[0].attempt: c[1] for c in cases}

    def comparing(pairs: list[tuple[str, str]]) -> dict[tuple[str, str], Any]:
        return {(a, b): compared(a, rows[a], b, rows[b]) for a, b in pairs}

    needed = comparing(pairs_needed_for_campaign(summaries, require, campaign))
    verdict = judge_campaign(summaries, require, needed, campaign, contract_name="example")
    more = comparing(pairs_for_counterfactual(verdict, summaries, require))
    return with_counterfactual(verdict, summaries, require, more)


def test_a_reference_and_a_varied_replay_that_agree_pass_under_their_claim() -> None:
    verdict = judged(varied("a", {}), varied("b", SEED, slot=1))
    assert (verdict.verdict, verdict.vary) == ("PASS", ("order",))
    assert verdict.reason == (
        "PASS: 8 records of 2 fresh replays agree at the grade logits under varied order"
    )


@pytest.mark.parametrize(
    ("first", "second"), [({}, {}), (SEED, {"order": "cd"})], ids=["references", "no-reference"]
)
def test_replays_that_were_not_varied_against_a_reference_are_void(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    verdict = judged(varied("a", first), varied("b", second, slot=1))
    assert (verdict.verdict, verdict.code) == ("VOID", "missing-evidence")
    assert "a reference and 1 varied replays required" in verdict.reason


def test_a_reference_on_another_unit_is_none() -> None:
    three = [varied("a", {}, unit="u1"), *(varied(n, SEED, slot=1, unit="u2") for n in "bc")]
    assert judged(*three).verdict == "VOID"
    assert judged(*three, varied("d", {}, unit="u2")).verdict == "PASS"


def test_the_claims_of_one_campaign_do_not_help_or_harm_each_other() -> None:
    both = [exact("a", campaign="c1"), exact("b", campaign="c1", slot=1)]
    stressed = [varied("c", {}, slot=2), varied("d", SEED, OTHER, slot=3)]
    assert judged(*both, *stressed, vary=()).verdict == "PASS"
    assert judged(*both, *stressed).verdict == "FAIL"
    missing = judged(*both, vary=("memory",))
    assert (missing.verdict, missing.code) == ("VOID", "missing-evidence")
    assert missing.vary == ("memory",)
    assert judged(*both, stressed[0]).verdict == "VOID"


def test_a_joined_claim_is_another_one_than_its_parts() -> None:
    parts = [varied("a", {}), varied("b", SEED, slot=1)]
    assert judged(*parts, vary=("memory", "order")).verdict == "VOID"


AGREE = "all 3 replays in the contract's own order agree"
UNDECIDED = "undecided: depends on the order of the samples, or a race"
EXACT = [exact("x"), exact("y", slot=1)]
FAILING = [varied("a", {}), varied("b", SEED, OTHER, slot=1)]
BROKEN_OFF = ended("z", OTHER[:3], "FAILED", "killed", vary=("order",)), OTHER[:3]


def test_exact_repeats_that_agree_with_the_reference_name_what_it_depends_on() -> None:
    verdict = judged(*EXACT, *FAILING)
    assert verdict.verdict == "FAIL"
    assert verdict.reason.endswith(f"; depends on the order of the samples: {AGREE}")
    assert verdict.layer is None


def test_without_exact_repeats_it_is_undecided() -> None:
    assert UNDECIDED in judged(*FAILING).reason
    assert "certify with --vary none" in judged(*FAILING).reason


@pytest.mark.parametrize(
    "others",
    [
        pytest.param([exact("x"), exact("y", OTHER, slot=1)], id="exact repeats differ"),
        pytest.param([exact("x", OTHER), exact("y", OTHER, slot=1)], id="they have other logits"),
        pytest.param([exact("x", platform="sha256:q")], id="they ran on another platform"),
        pytest.param([exact("x", execution_id="sha256:f")], id="they are of another contract"),
        pytest.param([*EXACT, varied("c", {}, OTHER, slot=2)], id="two references differ"),
        pytest.param([*EXACT, varied("c", SEED, slot=2)], id="two of one order differ"),
        pytest.param([*EXACT, BROKEN_OFF], id="rows of an unfinished reference differ"),
    ],
)  # fmt: skip
def test_anything_else_behind_it_leaves_it_undecided(others: list[Case]) -> None:
    verdict = judged(*others, *FAILING)
    assert verdict.verdict == "FAIL"
    assert UNDECIDED in verdict.reason


def test_other_settings_or_inputs_or_weights_leave_it_undecided() -> None:
    one, (two, rows) = FAILING
    settings = replace(two, stages=two.stages | {"effective": "sha256:z"})
    weights = replace(two, stages=two.stages | {"post_init_weights": "sha256:z"})
    for changed in ((settings, rows), (weights, rows), varied("b", SEED, MOVED, slot=1)):
        verdict = judged(*EXACT, one, changed)
        assert verdict.verdict == "FAIL"
        assert UNDECIDED in verdict.reason


def test_other_batches_bring_another_order_unless_a_varied_order_agrees() -> None:
    took = {"batch": {"size": 3, "seed": "ab"}}
    failing = [
        varied("a", {}, vary=("batch",)),
        varied("b", took, OTHER, slot=1, vary=("batch",)),
    ]
    own = "all 3 replays with the contract's own batch agree"
    unclear = judged(*EXACT, *failing, vary=("batch",))
    assert unclear.reason.endswith(f"shape-dependent or order-dependent, repeatable: {own}")
    ordered = [varied("c", {}, campaign="c0"), varied("d", SEED, campaign="c0", slot=1)]
    clear = judged(*EXACT, *ordered, *failing, vary=("batch",))
    assert clear.reason.endswith(f"; shape-dependent, repeatable: {own}")
    half = judged(*EXACT, ordered[0], *failing, vary=("batch",))
    assert "order-dependent" in half.reason


def test_a_joined_claim_names_all_that_it_may_depend_on() -> None:
    vary = ("memory", "threads")
    took = {"memory": 7, "threads": 2}
    failing = [varied("a", {}, vary=vary), varied("b", took, OTHER, slot=1, vary=vary)]
    assert judged(*EXACT, *failing, vary=vary).reason.endswith(
        "depends on what memory held before or depends on the number of threads: all 3 replays "
        "with memory left alone and with the contract's own number of threads agree"
    )
