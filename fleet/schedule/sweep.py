"""``fleet sweep``: one checkpoint under every backend of its quantisation method.

Screens what can run, certifies what showed no difference, and lets a trace name the culprit of what
did. A backend that differed once is not certified: a difference sticks. Holds no rule: planning,
running, judging and measuring are each done where they always are.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fleet.evidence.landing import Landing
from fleet.evidence.states import Purpose
from fleet.evidence.summary import AttemptSummary
from fleet.judge.verdict import Verdict
from fleet.replay.backends import one_line
from fleet.report.answers import (
    Answers,
    CampaignAnswer,
    ControlsByCampaign,
    asked_of,
    known_contracts,
)
from fleet.report.document import campaign_document
from fleet.report.measured import measured
from fleet.report.status import rows_of
from fleet.report.swept import Entry, entry_of, sweep_document
from fleet.schedule.candidates import Candidate, SweepRequest
from fleet.schedule.certify import Planned, Request, Say, certify, plan_resolved, run_request
from fleet.schedule.claims import own_claim
from fleet.schedule.launcher import Launcher
from fleet.schedule.places import Places
from fleet.schedule.resolve import Resolved
from fleet.schedule.screening import choose, screen
from fleet.schedule.tracing import Tracing, plan_for
from fleet.store import queries

NEAR = 8
"""Records nearest to a tie that a screening runs, where the store knows margins."""


@dataclass
class _Sweep:
    """What came of it so far, by the variant's name. Its campaigns: what ran -> id."""

    asked: SweepRequest
    places: Places
    launcher: Launcher
    say: Say
    campaigns: dict[str, str] = field(default_factory=dict)
    screened: dict[str, str] = field(default_factory=dict)
    unloaded: dict[str, str] = field(default_factory=dict)
    verdicts: dict[str, Verdict] = field(default_factory=dict)

    def request(self, named: Sequence[Resolved], purpose: Purpose, trace: str = "never") -> Request:
        names = tuple(r.name for r in named)
        return Request(names, purpose, trace=trace, limits=self.asked.limits, argv=self.asked.argv)

    def screen(self, named: Sequence[Resolved]) -> None:
        """A campaign of few samples and one trace over all of them. Nothing is tried again here:
        what did not end is certified all the same, and tried again there."""
        self.say(f"screening {len(named)} backends")
        planned = Planned(list(named), [])
        selections = choose(planned, NEAR, self.places, self.launcher)
        request = self.request(named, "screen")
        request = replace(request, limits=replace(request.limits, retries=0))
        found = screen(request, planned, selections, self.places, self.launcher, self.say)
        self.campaigns["screen"] = found["campaign"]
        self.screened = {entry["contract"]: entry["result"] for entry in found["contracts"]}
        self._note_unloaded(named)

    def certify(self, named: Sequence[Resolved]) -> CampaignAnswer:
        """A campaign with controls; a FAIL is traced in it."""
        self.say(f"certifying {len(named)} backends")
        request = self.request(named, "certify", "on-fail")
        planned = plan_resolved(request, list(named), self.places, self.say)
        answer = certify(request, planned, self.places, self.launcher, self.say)
        self.campaigns["certify"] = answer.campaign
        self.verdicts |= {verdict.contract: verdict for verdict in answer.contracts}
        self._note_unloaded(named)
        return answer

    def judge_differing(self, named: Sequence[Resolved]) -> None:
        """What differed at the screen: the verdict over all evidence, and its culprit."""
        self.verdicts |= {r.name: self._standing(r) for r in named}
        dark = [r for r in named if _wants_a_trace(r, self.verdicts[r.name])]
        if dark:
            self._trace(dark)
            self.verdicts |= {r.name: self._standing(r) for r in dark}

    def _trace(self, named: Sequence[Resolved]) -> None:
        plans = {r.name: plan_for(self.verdicts[r.name], r) for r in named}
        planned = Planned(list(named), [])
        for plan in plans.values():
            planned.slots += plan.first_slots(len(planned.slots))
        follow = Tracing(Landing(self.places.landing), plans)
        request = self.request(named, "trace")
        campaign, _ = run_request(request, planned, self.places, self.launcher, self.say, follow)
        self.campaigns["trace"] = campaign.id

    def _standing(self, resolved: Resolved) -> Verdict:
        """Over all evidence of the platforms that the screening ran on."""
        asked = asked_of(resolved.name, resolved.execution_id, resolved.loaded.contract)
        with self.places.open_store() as store:
            answers = Answers(store, self.places.open_landing())
            controls = ControlsByCampaign(answers, known_contracts(store))
            facts = queries.platforms(store.con)
            rows = rows_of(answers, asked, controls, facts, time.time())
            here = {s.platform for s in self._landed(store.con, resolved, "screen")}
        vary = own_claim(resolved)
        told = [r for r in rows if r.verdict is not None and r.verdict.vary == vary] or rows
        judged = [(r.platform in here, r.verdict) for r in told if r.verdict is not None]
        verdicts = [v for on_it, v in judged if on_it] or [v for _, v in judged]
        return min(verdicts, key=lambda v: v.verdict != "FAIL")

    def _landed(self, con: Any, resolved: Resolved, *ran: str) -> list[AttemptSummary]:
        campaigns = [self.campaigns[name] for name in ran if name in self.campaigns]
        return [
            summary
            for campaign in campaigns
            for summary in queries.summaries(
                con, campaign=campaign, execution_id=resolved.execution_id
            )
        ]

    def _note_unloaded(self, named: Sequence[Resolved]) -> None:
        with self.places.open_store() as store:
            for r in named:
                reason = load_failure(self._landed(store.con, r, "screen", "certify"))
                if reason is not None:
                    self.unloaded[r.name] = reason

    def entry(self, candidate: Candidate) -> Entry:
        """One row, from all that is known of it."""
        backend, resolved, name = candidate.backend, candidate.resolved, candidate.name
        if resolved is None:
            return entry_of(name, backend.name, None, backend.reason)
        with self.places.open_store() as store:
            landing = self.places.open_landing()
            landed = self._landed(store.con, resolved, "certify", "screen")
            figures = measured(landing, landed)
            traced = self._landed(store.con, resolved, "trace")
        ran = {s.campaign for s in (*landed, *traced)}
        campaigns = {kind: c for kind, c in self.campaigns.items() if c in ran}
        return entry_of(
            name, backend.name, backend.dtype, self.unloaded.get(name), self.verdicts.get(name),
            figures, self.screened.get(name), campaigns,
        )  # fmt: skip


def load_failure(landed: Sequence[AttemptSummary]) -> str | None:
    """Why a contract cannot be loaded: every attempt says so, in the words of the first."""
    causes = [s.cause for s in landed if s.state == "FAILED" and s.cause is not None]
    codes = {cause.code for cause in causes}
    if len(causes) != len(landed) or codes != {"load-error"}:
        return None
    return f"load-error: {one_line([causes[0].text])}"


def _wants_a_trace(resolved: Resolved, verdict: Verdict) -> bool:
    """A FAIL that the screening did not localise."""
    return resolved.has_modules and verdict.verdict == "FAIL" and verdict.culprit is None


def run_sweep(
    asked: SweepRequest,
    candidates: Sequence[Candidate],
    places: Places,
    launcher: Launcher,
    say: Say,
) -> dict[str, Any]:
    """Screen, certify and judge what can run; the document of :func:`sweep_document`."""
    able = [c.resolved for c in candidates if c.resolved is not None]
    sweep = _Sweep(asked, places, launcher, say)
    if asked.screen and able:
        sweep.screen(able)
    loaded = [r for r in able if r.name not in sweep.unloaded]
    differing = [r for r in loaded if sweep.screened.get(r.name) == "DIFFERENT"]
    survivors = [r for r in loaded if r not in differing]
    answer = sweep.certify(survivors) if survivors else None
    sweep.judge_differing(differing)
    controls = campaign_document(answer)["controls"] if answer else []
    entries = [sweep.entry(c) for c in candidates]
    campaign = sweep.campaigns.get("certify", sweep.campaigns.get("screen"))
    return sweep_document(asked.contract, entries, controls, campaign)


def sweep_plan(
    asked: SweepRequest, candidates: Sequence[Candidate], places: Places, say: Say
) -> dict[str, Any]:
    """What a sweep would run, and what cannot run and why; nothing is written."""
    able = [c.resolved for c in candidates if c.resolved is not None]
    entries = [
        entry_of(c.name, c.backend.name, c.backend.dtype, c.backend.reason or None)
        for c in candidates
    ]
    document = sweep_document(asked.contract, entries, [], None)
    request = Request(tuple(r.name for r in able), limits=asked.limits)
    slots = plan_resolved(request, able, places, say).slots if able else []
    return document | {"screen": asked.screen, "plan": [slot.to_json() for slot in slots]}
