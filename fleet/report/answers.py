"""Ask the judge about what the store holds: the one place where summaries meet verdicts.

Fetches summaries, lets the judge name the pairs it needs, compares those row by row, and judges.
Holds no rule of its own and keeps no verdict: each call derives it from evidence (law 2).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from fleet.contract.model import Contract, Expect, Require
from fleet.evidence.landing import Landing
from fleet.evidence.platform import Platform
from fleet.evidence.states import Cause
from fleet.evidence.summary import AttemptSummary
from fleet.judge import rules
from fleet.judge.compare import PairComparison, compare_rows
from fleet.judge.sets import in_order, occasion
from fleet.judge.successors import Shown, predecessors
from fleet.judge.tracing.culprit import Localisation
from fleet.judge.verdict import Verdict
from fleet.report.traces import Traced, own_trace, traced
from fleet.store import pairs, queries
from fleet.store.open import Store
from fleet.store.seal import require_rows

Pair = tuple[str, str]
INJECTED = "@injected"
"""An expected culprit that is wherever the campaign put the fault."""


@dataclass(frozen=True)
class ControlAnswer:
    """A control's verdict, and where it did not behave as its contract expects."""

    verdict: Verdict
    mismatches: tuple[str, ...]


@dataclass(frozen=True)
class CampaignAnswer:
    """``contracts`` are those named, in that order; ``controls`` those the campaign added."""

    campaign: str
    contracts: tuple[Verdict, ...]
    controls: tuple[ControlAnswer, ...]
    behaved: frozenset[str]

    def exit_code(self) -> int:
        """0 PASS, 1 FAIL, 3 VOID; a named control that behaves counts as PASS."""
        code = rules.exit_code(self.contracts, self.behaved)
        return 3 if code == 0 and any(control.mismatches for control in self.controls) else code


@dataclass(frozen=True)
class Asked:
    """One contract as it is asked about."""

    name: str
    execution_id: str
    require: Require
    expect: Expect | None
    dtype: str

    def about(self, vary: tuple[str, ...]) -> Asked:
        """The same, asked about the replays that vary this."""
        return replace(self, require=self.require.model_copy(update={"vary": vary}))


@dataclass
class Answers:
    """Verdicts over one open store and its landing."""

    store: Store
    landing: Landing
    _compared: dict[Pair, PairComparison] = field(default_factory=dict)
    _traced: dict[tuple[str, ...], Traced] = field(default_factory=dict)
    _own: dict[tuple[str, ...], Localisation | None] = field(default_factory=dict)

    @cached_property
    def predecessors(self) -> dict[str, tuple[str, ...]]:
        """Platform -> those that its units showed just before; platforms that could not be read in
        full are one attempt's own and left out."""
        odd = {
            name
            for name, body in queries.platforms(self.store.con).items()
            if Platform(body["facts"]).unreadable_facts()
        }
        shown = (Shown(*row) for row in queries.shown_platforms(self.store.con))
        return predecessors(change for change in shown if change.platform not in odd)

    @cached_property
    def present(self) -> frozenset[str]:
        """Platforms that some unit showed last."""
        newest = queries.newest_platforms(self.store.con).values()
        return frozenset(platform for platform, _ in newest)

    def campaign(
        self, campaign: str, named: Sequence[Asked], controls: Sequence[Asked]
    ) -> CampaignAnswer:
        """What a campaign's own evidence says, over everything known of its contracts."""
        control_answers = [self.control(campaign, asked) for asked in controls]
        own = [asked for asked in named if asked.expect is not None]
        behaved_own = [self.control(campaign, asked) for asked in own]
        failed = [a.verdict.contract for a in (*control_answers, *behaved_own) if a.mismatches]
        verdicts = tuple(
            self.verdict(campaign, asked, () if asked.expect is not None else failed)
            for asked in named
        )
        behaved = frozenset(a.verdict.contract for a in behaved_own if not a.mismatches)
        return CampaignAnswer(campaign, verdicts, tuple(control_answers), behaved)

    def verdict(self, campaign: str, asked: Asked, controls_failed: Sequence[str] = ()) -> Verdict:
        """One contract's verdict for one campaign, with the retractions of its evidence."""
        summaries = queries.summaries(self.store.con, execution_id=asked.execution_id)
        verdict = self._verdict(campaign, asked, controls_failed, summaries)
        if rules.any_retracted(summaries):
            everything = rules.restored(summaries)
            without = self._verdict(campaign, asked, controls_failed, everything)
            verdict = rules.with_withdrawn(verdict, without)
        return rules.with_retractions(verdict, summaries)

    def _verdict(
        self,
        campaign: str,
        asked: Asked,
        controls_failed: Sequence[str],
        summaries: Sequence[AttemptSummary],
    ) -> Verdict:
        if asked.expect is not None and asked.expect.culprit is not None:
            about = self.traced(campaign, summaries)
            return self._of_trace(campaign, asked, summaries, about)
        needed = rules.pairs_needed_for_campaign(summaries, asked.require, campaign)
        verdict = rules.judge_campaign(
            summaries,
            asked.require,
            self.comparisons(needed, asked.dtype),
            campaign,
            contract_name=asked.name,
            controls_failed=controls_failed,
            platforms=self._platform_facts(),
            doubt=self.doubt(asked, summaries),
        )
        traceable = verdict.verdict == "FAIL" and not verdict.vary
        found = self.localised(campaign, asked.require, summaries) if traceable else None
        verdict = verdict if found is None else rules.with_culprit(verdict, found)
        verdict = self.with_counterfactual(verdict, asked, summaries)
        return rules.with_execution(verdict, summaries)

    def doubt(self, asked: Asked, summaries: Sequence[AttemptSummary]) -> Cause | None:
        """What was altered of a contract; a control answers for its own campaign alone.

        Args:
            asked: the contract.
            summaries: all of it, as it is or with what was retracted.
        """
        if asked.expect is not None:
            return None
        broken = (c for ids, c in self._broken if ids is None or asked.execution_id in ids)
        return rules.doubt_of(summaries, broken)

    @cached_property
    def _broken(self) -> list[tuple[frozenset[str] | None, Cause]]:
        """Chains that do not check: the execution ids that each names, None where its opening is
        lost, and what is wrong."""
        told = []
        for row in queries.campaigns(self.store.con):
            if row.fault is not None:
                code, _, text = row.fault.partition(": ")
                told.append((row.about, Cause(code, text)))
        return told

    def with_counterfactual(
        self, verdict: Verdict, asked: Asked, summaries: Sequence[AttemptSummary]
    ) -> Verdict:
        """A FAIL of varied replays, with what replays under the contract's own values say of it."""
        needed = rules.pairs_for_counterfactual(verdict, summaries, asked.require)
        compared = self.comparisons(needed, asked.dtype)
        return rules.with_counterfactual(verdict, summaries, asked.require, compared)

    def localised(
        self, campaign: str, require: Require, summaries: Sequence[AttemptSummary]
    ) -> Localisation | None:
        """Where a campaign's replays part: by the evidence of the failing replays where they were
        traced throughout, with what later traces prove of that call; else by later traces."""
        later = self.traced(campaign, summaries).found
        here = [s for s in summaries if occasion(s, require) == campaign]
        certified = [s for s in here if s.purpose == "certify"]
        mine = [s for s in certified if not s.pruned and not s.retracted]
        key = tuple(s.attempt for s in mine)
        if key not in self._own:
            self._own[key] = own_trace(self.landing, mine)
        own = self._own[key]
        return later if own is None else rules.proven_by(own, later)

    def traced(self, campaign: str, summaries: Sequence[AttemptSummary]) -> Traced:
        """What the campaign's traced attempts among these say; read once."""
        traces = [s for s in summaries if s.campaign == campaign and s.purpose == "trace"]
        mine = [s for s in traces if not s.retracted]
        key = tuple(s.attempt for s in mine)
        if key not in self._traced:
            self._traced[key] = traced(self.landing, mine)
        return self._traced[key]

    def with_newest_trace(
        self, verdict: Verdict, require: Require, summaries: Sequence[AttemptSummary]
    ) -> Verdict:
        """A FAIL with the culprit that the newest trace of its contract found, if any did."""
        found = None
        if verdict.verdict == "FAIL":
            found = self.newest_trace(require, summaries)
        return verdict if found is None else rules.with_culprit(verdict, found)

    def newest_trace(
        self, require: Require, summaries: Sequence[AttemptSummary]
    ) -> Localisation | None:
        """The newest localisation among these attempts that names a culprit."""
        traces = (s for s in in_order(summaries) if s.purpose == "trace" or s.trace)
        tracing = (occasion(s, require) for s in traces)
        for campaign in reversed(list(dict.fromkeys(tracing))):
            found = self.localised(campaign, require, summaries)
            if found is not None and found.culprit is not None:
                return found
        return None

    def _of_trace(
        self, campaign: str, asked: Asked, summaries: Sequence[AttemptSummary], about: Traced
    ) -> Verdict:
        platforms = {s.platform for s in summaries if s.campaign == campaign and s.platform}
        platform = platforms.pop() if len(platforms) == 1 else ""
        return rules.of_trace(
            asked.name, asked.execution_id, platform, campaign, asked.require, about.found
        )

    def comparisons(self, needed: Iterable[Pair], dtype: str) -> dict[Pair, PairComparison]:
        """Row by row, each pair once: evidence is append-only, so a comparison stays true."""
        found: dict[Pair, PairComparison] = {}
        for pair in needed:
            if pair not in self._compared:
                self._compared[pair] = self._compare(pair, dtype)
            found[pair] = self._compared[pair]
        return found

    def _compare(self, pair: Pair, dtype: str) -> PairComparison:
        a, b = pair
        con = self.store.con
        require_rows(con, str(self.store.path), pair)
        return compare_rows(
            pairs.pair_counts(con, a, b),
            pairs.differing_rows(con, self.landing, a, b),
            pairs.only_in(con, a, b),
            pairs.only_in(con, b, a),
            attempts=pair,
            dtype=dtype,
        )

    def control(self, campaign: str, asked: Asked) -> ControlAnswer:
        """A control's verdict, held against what its contract expects."""
        verdict = self.verdict(campaign, asked)
        expect = self._placed(campaign, asked)
        mismatches = rules.check_expectation(verdict, expect) if expect else []
        return ControlAnswer(verdict, tuple(mismatches))

    def _placed(self, campaign: str, asked: Asked) -> Expect | None:
        """The expectation, with the place that the workers say they put the fault at."""
        if asked.expect is None or asked.expect.culprit != INJECTED:
            return asked.expect
        summaries = queries.summaries(self.store.con, execution_id=asked.execution_id)
        place = self.traced(campaign, summaries).injected
        return asked.expect.model_copy(update={"culprit": place or INJECTED})

    def _platform_facts(self) -> dict[str, Mapping[str, Any]]:
        return {key: body["facts"] for key, body in queries.platforms(self.store.con).items()}


def known_contracts(store: Store) -> list[Asked]:
    """Every contract the store has evidence of, as the newest campaign asked for it.

    Where that is missing or unreadable, what is required is the default, which is the most that can
    be asked; nothing is expected of it, so that it can be no control that behaves.
    """
    return [_known(row) for row in queries.contracts(store.con)]


def _known(row: queries.ContractRow, campaign: str | None = None) -> Asked:
    """``campaign``: as that one asked for it as a control; the newest one for None."""
    try:
        body = row.body or {}
        asked = body["asked"] if campaign is None else body["asked_as_control"][campaign]
        dtype = str(body["execution_part"]["model"]["dtype"])
        require = Require.model_validate_json(json.dumps(asked["require"]))
        expect = asked["expect"] and Expect.model_validate_json(json.dumps(asked["expect"]))
    except (KeyError, TypeError, ValueError):
        return Asked(row.name, row.execution_id, Require(), None, "")
    return Asked(row.name, row.execution_id, require, expect or None, dtype)


def asked_of(name: str, execution_id: str, contract: Contract) -> Asked:
    """What the judge needs to know of a contract."""
    return Asked(name, execution_id, contract.require, contract.expect, contract.model.dtype)


class ControlsByCampaign(Mapping[str, Sequence[str]]):
    """Campaign -> its controls that did not behave; worked out only for campaigns that matter."""

    def __init__(self, answers: Answers, known: Sequence[Asked]) -> None:
        self._answers, self._known = answers, {(a.name, a.execution_id) for a in known}
        self._contracts = queries.contracts(answers.store.con)
        self._by_campaign: dict[str, list[str]] = {}
        for row in queries.controls(answers.store.con):
            self._by_campaign.setdefault(row.campaign, []).append(row.contract)
        self._failed: dict[str, tuple[str, ...]] = {}

    def __getitem__(self, campaign: str) -> Sequence[str]:
        if campaign not in self._failed:
            names = self._by_campaign[campaign]
            self._failed[campaign] = tuple(n for n in names if self._misbehaves(campaign, n))
        return self._failed[campaign]

    def _misbehaves(self, campaign: str, name: str) -> bool:
        """A control that cannot be found in its campaign, or expects nothing, proves nothing. It is
        held against what its own campaign asked of it, on one unit or on several."""
        landed = queries.summaries(self._answers.store.con, campaign=campaign, contract=name)
        ids = {s.execution_id for s in landed}
        asked = [
            _known(row, campaign)
            for row in self._contracts
            if row.execution_id in ids and (row.name, row.execution_id) in self._known
            and row.name == name
        ]  # fmt: skip
        if not asked or any(a.expect is None for a in asked):
            return True
        return any(self._answers.control(campaign, a).mismatches for a in asked)

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_campaign)

    def __len__(self) -> int:
        return len(self._by_campaign)
