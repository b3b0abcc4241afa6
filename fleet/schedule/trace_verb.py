"""``fleet trace``: fresh traced replays of some samples, and where they part.

The attempts land with purpose *trace*: their agreement never helps a PASS, and a difference with
equal inputs and settings stays evidence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fleet.errors import UsageError
from fleet.evidence.landing import Landing
from fleet.judge.sets import in_order
from fleet.replay.task import TraceOrder
from fleet.report.answers import Answers, asked_of
from fleet.report.traces import trace_document, traced
from fleet.schedule.certify import Planned, Request, Say, run_request
from fleet.schedule.launcher import Launcher
from fleet.schedule.one_sample import check_sample
from fleet.schedule.places import Places
from fleet.schedule.plan import Work
from fleet.schedule.resolve import Resolved
from fleet.schedule.tracing import REPEATS, TracePlan, Tracing, batch_of, default_arm
from fleet.store import queries

ALL = "all"


@dataclass(frozen=True)
class TraceRequest:
    """What to trace. ``sample``: None for the first one known to differ, ``all`` for every one."""

    sample: str | None = None
    arm: str | None = None
    step: str = "all"
    replays: int | None = None
    repeats: int = REPEATS
    zoom: bool = False


def plan_trace(asked: TraceRequest, planned: Planned, places: Places) -> tuple[TracePlan, str]:
    """Which samples and arms, and why; fills in the slots, starts nothing.

    Raises:
        UsageError: the contract has no such sample or arm, or no modules.
    """
    resolved = planned.named[0]
    known = asked.sample if asked.sample not in (None, ALL) else resolved.dataset.ids[0]
    check_sample(planned, str(known), asked.arm or default_arm(resolved))
    _require_modules(resolved)
    sample, arm, why = _choose(asked, resolved, places)
    samples = tuple(resolved.dataset.ids) if sample == ALL else batch_of(resolved, sample)
    arms = tuple(sorted(resolved.loaded.contract.arms)) if arm is None else (arm,)
    work = Work("trace", samples, arms, TraceOrder(asked.step))
    replays = asked.replays or resolved.loaded.contract.require.replays
    plan = TracePlan(resolved, work, replays, "named", asked.repeats, asked.zoom)
    planned.slots = plan.first_slots(0)
    return plan, why


def _require_modules(resolved: Resolved) -> None:
    if not resolved.has_modules:
        raise UsageError(
            str(resolved.loaded.path),
            "model.engine",
            "an engine with modules: transformers or gptqmodel",
            '"synthetic"',
            "trace a contract of a torch engine, such as control-racy",
        )


def _choose(asked: TraceRequest, resolved: Resolved, places: Places) -> tuple[str, str | None, str]:
    """(sample, arm or None for all, why)."""
    if asked.sample is not None:
        arm = asked.arm or (None if asked.sample == ALL else default_arm(resolved))
        return asked.sample, arm, "as asked"
    known = _first_differing(asked, resolved, places)
    if known is not None:
        return known[0], known[1], "the first sample known to differ"
    arm = asked.arm or default_arm(resolved)
    return resolved.dataset.ids[0], arm, "the first sample: none is known to differ"


def _first_differing(
    asked: TraceRequest, resolved: Resolved, places: Places
) -> tuple[str, str] | None:
    """Sample and arm of the newest campaign that has a FAIL of this contract."""
    if not places.store.exists():
        return None
    question = asked_of(resolved.name, resolved.execution_id, resolved.loaded.contract)
    with places.open_store() as store:
        answers = Answers(store, places.open_landing())
        summaries = queries.summaries(store.con, execution_id=resolved.execution_id)
        campaigns = [s.campaign for s in in_order(summaries) if s.purpose == "certify"]
        for campaign in reversed(list(dict.fromkeys(campaigns))):
            for row in answers.verdict(campaign, question).differing_samples:
                if asked.arm in (None, row["arm"]) and row["sample_id"] in resolved.dataset.ids:
                    return row["sample_id"], row["arm"]
    return None


def run_trace(
    request: Request,
    planned: Planned,
    plan: TracePlan,
    why: str,
    places: Places,
    launcher: Launcher,
    say: Say,
) -> dict[str, Any]:
    """Run the traced replays and what they ask for; the document that says what came of it.

    Args:
        request: names the contract.
        planned: the request, resolved; its slots are those of :func:`plan_trace`.
        plan: what is traced.
        why: why these samples.
        places: where things are.
        launcher: what starts fresh processes.
        say: takes progress.
    """
    follow = Tracing(Landing(places.landing), {plan.resolved.name: plan})
    campaign, _ = run_request(request, planned, places, launcher, say, follow)
    with places.open_store() as store:
        landed = queries.summaries(store.con, campaign=campaign.id)
    about = traced(places.open_landing(), landed)
    head = {
        "execution_id": plan.resolved.execution_id,
        "platform": next((s.platform for s in landed if s.platform), None),
        "samples": list(plan.work.samples or ()),
        "chosen": why,
        "arms": list(plan.work.arms or ()),
        "steps": plan.work.trace.steps if plan.work.trace else "",
    }
    entry = trace_document(plan.resolved.name, about, head)
    return {"schema": 1, "campaign": campaign.id, "contracts": [entry], "controls": []}
