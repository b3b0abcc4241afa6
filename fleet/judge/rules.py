"""From summaries and row comparisons to a verdict. The rules, in the order they are asked:

1. FAIL when anything counts as a difference (see ``findings``): two roots of good attempts at the
   required grade or below, inputs or weights that differ between good attempts, or rows of any
   attempt that differ with equal inputs and settings. Nothing absolves it.
2. VOID when the campaign's evidence is short of what is required, with the first cause; or when
   what landed of the contract was altered, in any campaign (see ``doubt``).
3. VOID when a control of the campaign did not behave. Controls never touch a FAIL.
4. PASS.

The layer of a FAIL is that of the earliest differing stage, when that stage has one layer and no
setting before it differs; otherwise the candidates are listed and the layer is None. Settings that
differ while every value is equal are a warning. Without a campaign the newest campaign with
complete evidence carries the PASS, and without one the newest campaign's cause is the VOID's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from fleet.contract.model import Require
from fleet.contract.vary import claim
from fleet.evidence.states import Cause
from fleet.evidence.summary import AttemptSummary
from fleet.judge.account import Arms
from fleet.judge.compare import PairComparison, compare_rows
from fleet.judge.doubt import doubt_of
from fleet.judge.findings import Comparisons, Findings
from fleet.judge.outcome import Outcome, decided
from fleet.judge.platforms import parted
from fleet.judge.present import check_expectation, exit_code, status_of, verdict_lines
from fleet.judge.retracted import (
    any_retracted,
    restored,
    retraction_lines,
    with_retractions,
    with_withdrawn,
)
from fleet.judge.sets import SetKey, groups, in_order, occasion, pairs_needed, set_key
from fleet.judge.sufficiency import Evidence
from fleet.judge.tracing.throughout import proven_by, with_execution
from fleet.judge.tracing.verdict import of_trace, with_culprit
from fleet.judge.varied import pairs_for_counterfactual, with_counterfactual
from fleet.judge.verdict import Verdict

__all__ = [
    "Arms",
    "Outcome",
    "PairComparison",
    "SetKey",
    "any_retracted",
    "campaigns_of",
    "check_expectation",
    "compare_rows",
    "doubt_of",
    "ever_passed",
    "exit_code",
    "first_failing",
    "groups",
    "had_pass",
    "judge",
    "judge_campaign",
    "of_trace",
    "outcomes",
    "pairs_for_counterfactual",
    "pairs_needed",
    "pairs_needed_for_campaign",
    "proven_by",
    "restored",
    "retraction_lines",
    "status_of",
    "verdict_lines",
    "with_counterfactual",
    "with_culprit",
    "with_execution",
    "with_retractions",
    "with_withdrawn",
]

NO_CONTROLS: Mapping[str, Sequence[str]] = {}


def judge(
    summaries: Sequence[AttemptSummary],
    require: Require,
    comparisons: Comparisons,
    *,
    campaign: str | None,
    contract_name: str,
    controls_failed: Sequence[str] = (),
    controls_failed_in: Mapping[str, Sequence[str]] = NO_CONTROLS,
    siblings: Sequence[AttemptSummary] = (),
    doubt: Cause | None = None,
) -> Verdict:
    """The verdict on one set.

    Args:
        summaries: every attempt of one set, of all campaigns, as :func:`groups` gives them.
        require: what is asked of the evidence.
        comparisons: by (attempt, attempt), at least those of :func:`pairs_needed`.
        campaign: whose evidence must suffice; None when any campaign's may.
        contract_name: for the reader.
        controls_failed: controls of ``campaign`` that did not behave.
        controls_failed_in: the same by campaign, when ``campaign`` is None.
        siblings: attempts of the same contract whose platform is unknown; they can only object.
        doubt: what was altered of the same contract, in whatever campaign and on any platform.

    Raises:
        ValueError: no attempt, attempts of several sets, or a needed comparison is missing.
    """
    if len({set_key(s) for s in summaries}) != 1:
        raise ValueError("a verdict is about one set of at least one attempt")
    found = Findings(in_order(summaries), require, comparisons, campaign)
    failed = {campaign: controls_failed} if campaign is not None else controls_failed_in
    outcome = Outcome("FAIL") if found.fails else _evidence(found, siblings, failed)
    outcome = _doubted(outcome, doubt)
    return decided(found, outcome, contract_name, siblings)


def _evidence(
    found: Findings, siblings: Sequence[AttemptSummary], failed: Mapping[Any, Sequence[str]]
) -> Outcome:
    """PASS or VOID: the campaign's own, or the newest that suffices, else the newest there is."""
    evidence = Evidence.of(found.attempts, siblings, found.require)
    if found.campaign is not None:
        return _campaign(evidence, found.campaign, failed)
    newest, *older = evidence.newest_first or [occasion(found.attempts[-1], found.require)]
    first = _campaign(evidence, newest, failed)
    others = (_campaign(evidence, name, failed) for name in older)
    return next((o for o in chain([first], others) if o.word == "PASS"), first)


def _campaign(evidence: Evidence, campaign: str, failed: Mapping[Any, Sequence[str]]) -> Outcome:
    cause = evidence.shortfall(campaign)
    if cause is not None:
        return Outcome("VOID", campaign, cause.code, cause.text)
    controls_failed = [n for part in evidence.parts(campaign) for n in failed.get(part, ())]
    if controls_failed:
        names = ", ".join(dict.fromkeys(controls_failed))
        return Outcome("VOID", campaign, "control-failed", f"control {names} did not behave")
    return Outcome("PASS", campaign)


def had_pass(
    summaries: Sequence[AttemptSummary],
    require: Require,
    comparisons: Comparisons,
    *,
    controls_failed_in: Mapping[str, Sequence[str]] = NO_CONTROLS,
) -> bool:
    """Was this set a PASS at the end of any earlier campaign, by today's rules? (REGRESSED)"""
    names = campaigns_of(summaries, require)
    first = first_failing(summaries, require, comparisons)
    before = names[:-1] if first is None else names[: names.index(first)]
    return ever_passed(summaries, require, before, controls_failed_in=controls_failed_in)


def ever_passed(
    summaries: Sequence[AttemptSummary],
    require: Require,
    campaigns: Iterable[str],
    *,
    controls_failed_in: Mapping[str, Sequence[str]] = NO_CONTROLS,
) -> bool:
    """Does the evidence of any of these campaigns suffice for a PASS? Asks no difference."""
    evidence = Evidence.of(in_order(summaries), (), require)
    return any(_campaign(evidence, n, controls_failed_in).word == "PASS" for n in campaigns)


def outcomes(
    summaries: Sequence[AttemptSummary],
    require: Require,
    siblings: Sequence[AttemptSummary] = (),
    *,
    controls_failed_in: Mapping[str, Sequence[str]] = NO_CONTROLS,
    doubt: Cause | None = None,
) -> dict[str, Outcome]:
    """Campaign -> PASS or VOID by its own evidence alone, of those that certified; ``doubt``: see
    :func:`judge`."""
    evidence = Evidence.of(in_order(summaries), siblings, require)
    names = evidence.by_campaign
    return {n: _doubted(_campaign(evidence, n, controls_failed_in), doubt) for n in names}


def _doubted(outcome: Outcome, doubt: Cause | None) -> Outcome:
    if outcome.word != "PASS" or doubt is None:
        return outcome
    return Outcome("VOID", outcome.campaign, doubt.code, doubt.text)


def campaigns_of(summaries: Sequence[AttemptSummary], require: Require) -> list[str]:
    """Campaigns in the order of evidence; a night, where the claim is about several units."""
    return list(dict.fromkeys(occasion(s, require) for s in in_order(summaries)))


def first_failing(
    summaries: Sequence[AttemptSummary], require: Require, comparisons: Comparisons
) -> str | None:
    """The campaign with whose evidence this set became a FAIL, by today's rules.

    A difference never goes away, so the states before it are halved until it is found.
    """
    ordered = in_order(summaries)
    names = campaigns_of(ordered, require)

    def fails(index: int) -> bool:
        seen = set(names[: index + 1])
        earlier = [s for s in ordered if occasion(s, require) in seen]
        return Findings(earlier, require, comparisons, None, lenient=True).fails

    index = bisect_left(range(len(names)), True, key=fails)
    return names[index] if index < len(names) else None


def pairs_needed_for_campaign(
    summaries: Sequence[AttemptSummary], require: Require, campaign: str
) -> list[tuple[str, str]]:
    """:func:`pairs_needed` of every set of this claim that the campaign has an attempt in."""
    return [
        pair
        for members in _sets_of(summaries, require, campaign).values()
        for pair in pairs_needed(members, require, campaign)
    ]


def _sets_of(
    summaries: Sequence[AttemptSummary], require: Require, campaign: str
) -> dict[SetKey, list[AttemptSummary]]:
    """Those that vary what is asked about: a campaign may hold other claims beside it."""
    return {
        key: members
        for key, members in groups(summaries).items()
        if key.vary == claim(require.vary)
        and any(occasion(s, require) == campaign and s.purpose == "certify" for s in members)
    }


def judge_campaign(
    summaries: Sequence[AttemptSummary],
    require: Require,
    comparisons: Comparisons,
    campaign: str,
    *,
    contract_name: str,
    controls_failed: Sequence[str] = (),
    platforms: Mapping[str, Mapping[str, Any]] | None = None,
    doubt: Cause | None = None,
) -> Verdict:
    """One claim of a contract in one campaign, over all platforms its replays landed on.

    FAIL on any platform wins. A replay whose platform is unknown counts against its campaign. When
    no platform has enough although the replays completed, the pair was parted: VOID, naming the
    fact that could not be read or that differs.

    Args:
        summaries: every attempt of one execution id, of all campaigns and platforms.
        require: what is asked of the evidence.
        comparisons: those of :func:`pairs_needed_for_campaign`.
        campaign: the one in question.
        contract_name: for the reader.
        controls_failed: controls of the campaign that did not behave.
        platforms: platform digest -> its facts.
        doubt: see :func:`judge`.
    """
    sets = _sets_of(summaries, require, campaign)
    if not sets:
        return _nothing(summaries, require, campaign, contract_name)
    lost = [s for key, members in sets.items() if not key.platform for s in members]
    placed = {key: members for key, members in sets.items() if key.platform} or sets
    verdicts = [
        judge(
            members,
            require,
            comparisons,
            campaign=campaign,
            contract_name=contract_name,
            controls_failed=controls_failed,
            siblings=[s for s in lost if s not in members],
            doubt=doubt,
        )
        for members in placed.values()
    ]
    order = {"FAIL": 0, "PASS": 1, "VOID": 2}
    best = min(verdicts, key=lambda v: (order[v.verdict], v.code == "missing-evidence"))
    if best.verdict != "VOID" or len(placed) == 1:
        return best
    return parted(best, placed, require, campaign, platforms or {})


def _nothing(
    summaries: Sequence[AttemptSummary], require: Require, campaign: str, contract_name: str
) -> Verdict:
    """The campaign ended before it planned a replay of this contract."""
    return Verdict(
        contract=contract_name,
        execution_id=summaries[0].execution_id if summaries else "",
        platform="",
        verdict="VOID",
        state="VOID",
        required_grade=require.grade,
        scope=require.scope,
        vary=claim(require.vary),
        code="missing-evidence",
        reason="VOID(missing-evidence): the campaign holds no certification replay",
        campaign=campaign,
    )
