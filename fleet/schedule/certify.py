"""``certify`` from names to verdicts: resolve, plan, run, ingest, judge.

The one place where every room meets. Holds no rule: plan, driver, store and judge each do theirs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fleet.contract.load import BUILTIN
from fleet.contract.stack import LoadedStack
from fleet.errors import (
    CampaignStopped,
    ContractError,
    LandingUnreachable,
    NotIngested,
    StoreError,
)
from fleet.evidence.landing import Landing
from fleet.evidence.mirror import pull
from fleet.evidence.states import Purpose
from fleet.replay.task import TraceOrder
from fleet.report.answers import Answers, Asked, CampaignAnswer, asked_of
from fleet.schedule.adaptive import UntilBound
from fleet.schedule.announce import announce
from fleet.schedule.asking import preflight
from fleet.schedule.claims import Claims, claims_of, own_claim
from fleet.schedule.decide import decide
from fleet.schedule.driver import AttemptEnd, Campaign, Follow, Limits, new_campaign_id
from fleet.schedule.launcher import Launcher
from fleet.schedule.lease import lease
from fleet.schedule.metrics import meter_of
from fleet.schedule.places import Places
from fleet.schedule.plan import MUST, TRACED, Slot, Work, controls_for, plan
from fleet.schedule.resolve import Resolved, resolve_contract
from fleet.schedule.revoke import revoke_and_tell
from fleet.schedule.room import needs, require_room
from fleet.schedule.tracing import TracePlan, Tracing, first_sample, plan_for
from fleet.schedule.warming import warm
from fleet.store import queries
from fleet.store.ingest import ingest
from fleet.store.open import Store, open_writer, publish

Say = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """What to run. ``samples`` and ``arms`` narrow it for ``fleet replay``; ``replays``,
    ``process_bound``, ``scope`` and ``claims`` (what sets of replays vary, one verdict each) take
    the place of what the named contracts require. ``campaign``: its id, to go on under one.
    ``stack``: the software that replays must find in effect, None for whatever is.
    """

    contracts: tuple[str, ...]
    purpose: Purpose = "certify"
    samples: tuple[str, ...] | None = None
    arms: tuple[str, ...] | None = None
    trace: str = "never"
    replays: int | None = None
    process_bound: float | None = None
    scope: str | None = None
    limits: Limits = field(default_factory=Limits)
    argv: tuple[str, ...] = ()
    campaign: str | None = None
    claims: tuple[tuple[str, ...], ...] = ()
    stack: LoadedStack | None = None


@dataclass
class Planned:
    """A resolved request: nothing has been started or written yet."""

    named: list[Resolved]
    controls: list[Resolved]
    slots: list[Slot] = field(default_factory=list)
    claims: Claims = field(default_factory=dict)

    def asked(self, which: Sequence[Resolved]) -> list[Asked]:
        """As the judge needs them: one for each claim of each contract, in that order."""
        own = [(r, asked_of(r.name, r.execution_id, r.loaded.contract)) for r in which]
        return [
            asked.about(vary)
            for r, asked in own
            for vary in self.claims.get(r.name, (own_claim(r),))
        ]


def plan_request(request: Request, places: Places, say: Say) -> Planned:
    """Resolve every contract and its controls, and lay out the slots.

    Raises:
        UsageError: for anything wrong in what was named; nothing has been written.
    """
    named = [_asked_for(request, _resolve(n, places, say)) for n in request.contracts]
    return plan_resolved(request, named, places, say)


def _on_every_unit(control: Resolved, named: Sequence[Resolved]) -> Resolved:
    """Controls run through the same units as what they control."""
    scopes = {r.loaded.contract.require.scope for r in named}
    return _requiring(control, scope="same-class") if "same-class" in scopes else control


def _requiring(resolved: Resolved, **changes: Any) -> Resolved:
    """The same, of which something else is required: that is no part of the execution id."""
    contract = resolved.loaded.contract
    require = contract.require.model_copy(update=changes)
    loaded = replace(resolved.loaded, contract=contract.model_copy(update={"require": require}))
    return replace(resolved, loaded=loaded)


def _asked_for(request: Request, resolved: Resolved) -> Resolved:
    """A control's requirements are what it was made for."""
    asked = {
        "replays": request.replays,
        "process_bound": request.process_bound,
        "scope": None if request.scope is None else str(request.scope),
    }
    changes = {key: value for key, value in asked.items() if value is not None}
    return resolved if resolved.name in MUST else _requiring(resolved, **changes)


def plan_resolved(
    request: Request, named: list[Resolved], places: Places, say: Say, one_campaign: bool = True
) -> Planned:
    """The same for contracts that are resolved already.

    Args:
        request: what was asked for.
        named: its contracts.
        places: where things are.
        say: takes progress.
        one_campaign: for all units; else each has its own, with its own controls.

    Raises:
        UsageError: for anything wrong in what was named; nothing has been written.
    """
    _refuse_doubles(named)
    controls = _controls(request, named, places, say)
    if one_campaign:
        controls = [_on_every_unit(c, named) for c in controls]
    _require_expectations([r for r in (*named, *controls) if r.name in MUST])
    works = {r.name: THROUGHOUT for r in named if _traced_throughout(request, r)}
    works |= {r.name: p.work for r in (*named, *controls) if (p := _traced_control(r))}
    certifies = request.purpose == "certify"
    claims = claims_of(named, request.claims, request.trace) if certifies else {}
    counts = [_slot_count(r) for r in named], [_slot_count(r) for r in controls]
    return Planned(named, controls, plan(*counts, works, claims), claims)


THROUGHOUT = Work("certify", trace=TraceOrder())
"""A certification replay with every call of every sample traced."""


def _traced_throughout(request: Request, resolved: Resolved) -> bool:
    """When asked for, and for what cannot be shown otherwise; an engine without modules cannot."""
    wanted = request.trace == "always" or resolved.loaded.contract.require.grade == "modules"
    return wanted and request.purpose == "certify" and resolved.has_modules


def _traced_control(resolved: Resolved) -> TracePlan | None:
    """How to run a control that the tracer must see through: its first sample, traced."""
    expect = resolved.loaded.contract.expect
    if expect is None or expect.culprit is None:
        return None
    return TracePlan(resolved, first_sample(resolved), resolved.loaded.contract.require.replays)


def _controls(
    request: Request, named: Sequence[Resolved], places: Places, say: Say
) -> list[Resolved]:
    """The controls that were not named. They come from this repository, whatever the path holds."""
    if request.purpose != "certify":
        return []
    own = {r.name: r for r in named}
    added = []
    for name in controls_for([r.loaded.contract for r in named]):
        control = resolve_contract(name, (BUILTIN, *places.search), places.cache, say)
        if name not in own:
            added.append(control)
        elif own[name].execution_id != control.execution_id:
            raise ContractError(
                str(own[name].loaded.path),
                "(its name)",
                f"the control {name} of {BUILTIN}",
                "another contract of that name",
                "rename yours",
            )
    return added


def _resolve(name: str, places: Places, say: Say) -> Resolved:
    return resolve_contract(name, places.search, places.cache, say)


def _require_expectations(controls: Sequence[Resolved]) -> None:
    """A control that expects nothing, or the opposite, tests nothing. An expectation is no part of
    the execution id, so an equal id does not say it."""
    for control in controls:
        expect = control.loaded.contract.expect
        wanted, got = MUST[control.name], expect.verdict if expect else None
        if control.name in TRACED.values() and expect and not (expect.culprit and expect.fault):
            raise ContractError(
                str(control.loaded.path), "expect.culprit", "a culprit and a fault to be named",
                "none", f"restore {control.name}.toml",
            )  # fmt: skip
        if got != wanted:
            raise ContractError(
                str(control.loaded.path),
                "expect.verdict",
                f'"{wanted}", which is what this control is for',
                repr(got),
                f"restore {control.name}.toml",
            )


def require_usable(places: Places) -> None:
    """Both folders can be written and are of this version; nothing is created.

    Raises:
        StoreError: before anything has been started or written.
    """
    if places.remote is not None:
        places.remote.listing("contracts/")
    for folder, option in (
        (places.landing, "--landing DIR"),
        (places.store.parent, "--store FILE"),
    ):
        nearest = next(p for p in (folder, *folder.absolute().parents) if p.exists())
        if not nearest.is_dir():
            raise StoreError(str(folder), "", "a folder", f"{nearest}, a file", f"pass {option}")
        if not os.access(nearest, os.W_OK):
            got = f"{nearest}, which is read-only"
            raise StoreError(str(folder), "", "a writable folder", got, f"pass {option}")
    if (places.landing / "FORMAT.json").exists():
        Landing.open(places.landing)
    if places.store.exists():
        with open_writer(places.store, wait_s=BUSY_S):
            pass


def _slot_count(resolved: Resolved) -> tuple[str, int]:
    return resolved.name, resolved.loaded.contract.require.replays


def _refuse_doubles(named: Sequence[Resolved]) -> None:
    names = [r.name for r in named]
    for name in names:
        if names.count(name) > 1:
            raise ContractError("command line", name, "each contract once", "it twice", "drop one")


def run_request(
    request: Request,
    planned: Planned,
    places: Places,
    launcher: Launcher,
    say: Say,
    follow: Follow | None = None,
) -> tuple[Campaign, list[AttemptEnd]]:
    """Run the slots and what follows from them, ingest, publish a snapshot for readers, and revoke
    the certificates that a FAIL contradicts: a difference sticks, whatever the replays were for.

    Args:
        request: what was asked for.
        planned: its slots.
        places: where things are.
        launcher: what starts fresh processes.
        say: takes progress.
        follow: gives further slots; None for looking into controls and, when asked, FAILs.

    Raises:
        UsageError: the node cannot run a contract, or a folder cannot be written.
    """
    require_usable(places)
    campaign = Campaign(
        landing=Landing(places.landing, places.remote),
        launcher=launcher,
        contracts={r.name: r for r in (*planned.named, *planned.controls)},
        scratch=places.scratch,
        limits=request.limits,
        purpose=request.purpose,
        samples=request.samples,
        arms=request.arms,
        on_event=say,
        id=request.campaign or new_campaign_id(),
        stack=request.stack,
    )
    preflight(campaign)
    landing = places.open_landing(create=True)
    with lease(places.landing, campaign.id):
        # What could stop the ingest at the end is found before hours of replays, not after.
        ingest_and_publish(places.store, landing)
        require_room_for(campaign, planned.slots, places, landing)
        warm(campaign, planned.claims)
        looking = _looking_into(request, planned, places, campaign, landing)
        bounded = {
            r.name: r for r in planned.named if r.loaded.contract.require.process_bound is not None
        }
        try:
            ends = campaign.run(
                planned.slots, request.argv, follow or UntilBound(landing, bounded, looking)
            )
        except LandingUnreachable as error:
            raise CampaignStopped(f"the campaign {campaign.id} could not go on: {error}") from error
        finally:
            ingest_after(places.store, landing)
    with places.open_store() as store:
        ids = {r.execution_id for r in campaign.contracts.values()}
        revoke_and_tell(landing, store, campaign.id, ids, say)
    return campaign, ends


def require_room_for(
    campaign: Campaign, slots: Sequence[Slot], places: Places, landing: Landing
) -> None:
    """Raise what does not fit on a disk, before anything is planned.

    Raises:
        UsageError: naming the disk, what it needs and what is free.
    """
    each = [(slot, campaign.contracts[slot.contract]) for slot in slots]
    tasks = [(campaign.task(slot, r, "0" * 16), r) for slot, r in each]
    with places.open_store() as store:
        ids = {r.execution_id for _, r in each}
        known = [s for i in ids for s in queries.summaries(store.con, execution_id=i)]
    require_room(needs(tasks, known, landing, places.store, places.scratch))


def following(landing: Landing, contracts: Sequence[Resolved]) -> Follow:
    """What follows in any campaign over these: replays until a bound is reached, and a look into
    the controls that the tracer must see through."""
    bounded = {r.name: r for r in contracts if r.loaded.contract.require.process_bound is not None}
    plans = {r.name: p for r in contracts if (p := _traced_control(r)) is not None}
    return UntilBound(landing, bounded, Tracing(landing, plans))


def _looking_into(
    request: Request, planned: Planned, places: Places, campaign: Campaign, landing: Landing
) -> Tracing:
    """Traced controls always; contracts that turn out to FAIL when that was asked for."""
    controls = [_traced_control(r) for r in (*planned.named, *planned.controls)]

    def failing() -> list[TracePlan]:
        ingest_after(places.store, landing)
        with places.open_store() as store:
            answers = Answers(store, landing)
            # a trace is of exact repeats, so it is no look into what only a variation showed
            pairs = [(r, a) for r in planned.named for a in planned.asked([r])]
            exact = [(r, asked) for r, asked in pairs if not asked.require.vary]
            verdicts = [(r, answers.verdict(campaign.id, asked)) for r, asked in exact]
        return [
            plan_for(verdict, r) for r, verdict in verdicts if verdict.verdict == "FAIL"
            and r.has_modules and _traced_control(r) is None
        ]  # fmt: skip

    plans = {p.resolved.name: p for p in controls if p is not None}
    return Tracing(landing, plans, None if request.trace == "never" else failing)


BUSY_S = 60.0
"""How long to wait for another process that has the store open."""


def ingest_and_publish(store: Path, landing: Landing) -> None:
    """Bring the store up to the landing, and a mirror up to its source, and let readers see it."""
    pull(landing)
    with open_writer(store, wait_s=BUSY_S) as writer:
        ingest(writer, landing)
        publish(writer)


def ingest_after(store: Path, landing: Landing) -> None:
    """After replays ran nothing is a usage error any more: they landed, and stay landed."""
    try:
        ingest_and_publish(store, landing)
    except (StoreError, OSError) as error:
        raise NotIngested(
            f"the replays landed in {landing.place}, "
            f"but the store could not take them in: {error}\n"
            f"  then: fleet store ingest --store {store} --landing {landing.place}"
        ) from error


def certify(
    request: Request, planned: Planned, places: Places, launcher: Launcher, say: Say
) -> CampaignAnswer:
    """Run a planned request to its verdicts."""
    meter = meter_of(launcher)
    meter.campaign_started(time.time())
    campaign, _ = run_request(request, planned, places, launcher, say)
    with places.open_store() as store:
        landing = places.open_landing()
        ids = {r.execution_id for r in (*planned.named, *planned.controls)}
        decide_and_tell(landing, store, ids, say)
        answers, named = Answers(store, landing), planned.asked(planned.named)
        answer = answers.campaign(campaign.id, named, planned.asked(planned.controls))
        announce(answers, answer, named, meter, os.environ)
        return answer


def decide_and_tell(
    landing: Landing, store: Store, execution_ids: Collection[str], say: Say
) -> None:
    """What cannot be recorded is due again next time; the verdicts stand without it."""
    try:
        decided = decide(landing, store, time.time(), execution_ids)
    except OSError as error:
        return say(f"decisions about units could not be recorded: {error}")
    for decision in decided:
        say(f"unit {decision.unit} {decision.in_words()}")
