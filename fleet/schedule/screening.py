"""``fleet screen``: the cheap gate before a full run.

Fresh replays of few samples, chosen to cover every input shape and the records nearest to a tie,
and traced replays of the first sample. It says what it covered and what that bounds; it gives a
difference or none seen, never a verdict: a race can be rarer than the gate is wide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fleet.contract.canonical import canonical_json
from fleet.evidence.landing import Landing
from fleet.evidence.summary import AttemptSummary
from fleet.judge.bounds import process_bound, record_bound
from fleet.report.answers import Answers
from fleet.report.diff import PairDiff, attempt_diff
from fleet.report.traces import result_of, trace_document, traced
from fleet.schedule.asking import prompt_lengths
from fleet.schedule.certify import Planned, Request, Say, run_request
from fleet.schedule.coverage import Selection, select
from fleet.schedule.driver import Campaign
from fleet.schedule.launcher import Launcher
from fleet.schedule.one_sample import newest_certified
from fleet.schedule.places import Places
from fleet.schedule.plan import Slot, Work
from fleet.schedule.resolve import Resolved
from fleet.schedule.tracing import TracePlan, Tracing, first_sample
from fleet.store import queries
from fleet.store.margins import margins_of
from fleet.store.open import Store

NEAR_ULPS = 2
"""A record is near a boundary when its smallest margin is at most this many units in the last
place: the width in which a rounding error of one step can choose another token."""


def choose(planned: Planned, near: int, places: Places, launcher: Launcher) -> dict[str, Selection]:
    """Contract -> what of it is run. Prompts are tokenised on the node; nothing is written."""
    contracts = {r.name: r for r in planned.named}
    campaign = Campaign(Landing(places.landing), launcher, contracts, places.scratch)
    lengths: dict[bytes, Mapping[str, Sequence[int]]] = {}
    for r in planned.named:
        if (key := _prompts(r)) not in lengths:
            lengths[key] = prompt_lengths(campaign, r.name)
    return {
        r.name: select(
            r.dataset.ids,
            lengths[_prompts(r)],
            r.loaded.contract.decoding.batch_size,
            _known_near(r, near, places),
        )
        for r in planned.named
    }


def _prompts(resolved: Resolved) -> bytes:
    """What prompts follow from: variants of a contract that differ in a kernel share them."""
    body = resolved.body()
    part = body["execution_part"]
    model = {key: value for key, value in part["model"].items() if key != "dtype"}
    return canonical_json(body | {"execution_part": part | {"model": model, "quantization": None}})


def _known_near(resolved: Resolved, near: int, places: Places) -> list[tuple[str, str]]:
    if not places.store.exists() or not near:
        return []
    with places.open_store() as store:
        rows = queries.smallest_margins(store.con, resolved.execution_id, near)
    return [(row.arm, row.sample_id) for row in rows]


def screen(
    request: Request,
    planned: Planned,
    selections: dict[str, Selection],
    places: Places,
    launcher: Launcher,
    say: Say,
) -> dict[str, Any]:
    """Run it; the document that says what was covered and what was seen."""
    traces = {r.name: p for r in planned.named if (p := _trace_plan(r)) is not None}
    planned.slots = _slots(planned.named, selections, traces)
    follow = Tracing(Landing(places.landing), traces)
    campaign, ends = run_request(request, planned, places, launcher, say, follow)
    with places.open_store() as store:
        answers = Answers(store, places.open_landing())
        entries = [
            _entry(answers, store, r, selections[r.name], campaign.id) for r in planned.named
        ]
    for entry in entries:
        entry["ended"] = [
            f"{e.attempt} {e.state} {e.cause}"
            for e in ends
            if e.cause is not None and e.slot.contract == entry["contract"]
        ]
    return {"schema": 1, "campaign": campaign.id, "contracts": entries, "controls": []}


def _trace_plan(resolved: Resolved) -> TracePlan | None:
    """The first sample, traced; the synthetic engine has no modules."""
    contract = resolved.loaded.contract
    if not resolved.has_modules:
        return None
    return TracePlan(resolved, first_sample(resolved), contract.require.replays)


def _slots(
    named: Sequence[Resolved], selections: dict[str, Selection], traces: dict[str, TracePlan]
) -> list[Slot]:
    works = []
    for resolved in named:
        replays = range(resolved.loaded.contract.require.replays)
        gate = Work("screen", selections[resolved.name].sample_ids)
        works += [(resolved.name, i, gate) for i in replays]
        if resolved.name in traces:
            works += [(resolved.name, i, traces[resolved.name].work) for i in replays]
    return [Slot(n, name, i, "named", work) for n, (name, i, work) in enumerate(works)]


def _entry(
    answers: Answers, store: Store, resolved: Resolved, chosen: Selection, campaign: str
) -> dict[str, Any]:
    landed = queries.summaries(store.con, campaign=campaign, execution_id=resolved.execution_id)
    complete = [s for s in landed if s.purpose == "screen" and s.state == "COMPLETE"]
    known = queries.summaries(store.con, execution_id=resolved.execution_id)
    pairs = _pairs(answers, complete, known)
    about = traced(answers.landing, [s for s in landed if s.purpose == "trace"])
    first = first_sample(resolved)
    head = {
        "execution_id": resolved.execution_id,
        "platform": next((s.platform for s in complete), None),
        "samples": list(first.samples or ()),
        "chosen": "the first sample",
        "arms": list(first.arms or ()),
        "steps": "all",
    }
    body = trace_document(resolved.name, about, head)
    return body | {
        "result": _result(pairs, result_of(about) if resolved.has_modules else None, len(complete)),
        "traced": resolved.has_modules,
        "pairs": [pair.to_json() for pair in pairs],
        "covered": _covered(resolved, chosen, complete),
        "bounds": _bounds(complete),
        "margins": _margins(answers, complete),
    }


def _pairs(
    answers: Answers, complete: Sequence[AttemptSummary], known: Sequence[AttemptSummary]
) -> list[PairDiff]:
    """Each screened replay against the first, and the first against the newest certified one."""
    pairs = [attempt_diff(answers, complete[0], other) for other in complete[1:]]
    certified = newest_certified(known, complete)
    return pairs + ([attempt_diff(answers, certified, complete[0])] if certified else [])


def _result(pairs: Sequence[PairDiff], of_trace: str | None, complete: int) -> str:
    if of_trace == "DIFFERENT" or any(pair.result == "DIFFERS" for pair in pairs):
        return "DIFFERENT"
    enough = complete > 1 and of_trace != "NO_EVIDENCE"
    return "NO_DIFFERENCE_SEEN" if enough else "NO_EVIDENCE"


def _covered(
    resolved: Resolved, chosen: Selection, complete: Sequence[AttemptSummary]
) -> dict[str, Any]:
    steps = [s.power.decode_steps for s in complete if s.power is not None]
    return {
        "samples": len(chosen.sample_ids),
        "of_samples": len(resolved.dataset.ids),
        "arms": sorted(resolved.loaded.contract.arms),
        "shapes": [list(shape) for shape in chosen.shapes],
        "of_shapes": len(chosen.shapes),
        "phases": ["prefill", "decode"] if resolved.loaded.contract.decoding.max_new_tokens > 1
        else ["prefill"],
        "decode_steps": min(steps, default=0),
        "near_margins": [list(pair) for pair in chosen.near],
        "replays": len(complete),
    }  # fmt: skip


def _bounds(complete: Sequence[AttemptSummary]) -> dict[str, Any]:
    """What no difference in so few records still allows."""
    if len(complete) < 2 or complete[0].power is None:
        return {"record": None, "process": None}
    return {
        "record": record_bound(complete[0].power.distinct_inputs),
        "process": process_bound(len(complete)),
    }


def _margins(answers: Answers, complete: Sequence[AttemptSummary]) -> dict[str, Any]:
    """How near to another token the screened records stand."""
    con, landing = answers.store.con, answers.landing
    rows = margins_of(con, landing, complete[0].attempt) if complete else []
    near = [row for row in rows if row.ulps <= NEAR_ULPS]
    return {
        "records": len(rows),
        "near_boundary": len(near),
        "near_boundary_share": len(near) / len(rows) if rows else None,
        "near_boundary_ulps": NEAR_ULPS,
        "exact_ties": sum(1 for row in rows if row.exact_tie),
        "smallest": [
            {"arm": r.arm, "sample_id": r.sample_id, "logits": r.logits, "ulps": r.ulps}
            for r in rows[:5]
        ],
    }
