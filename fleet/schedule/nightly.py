"""A night of a fleet: from its TOML to a plan, and from a plan to verdicts.

A plan needs neither a cluster nor history. Holds no rule: the plan is ``night``'s, running and
judging are ``certify``'s.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fleet.contract.fleet_file import Fleet, LoadedFleet, load_fleet
from fleet.contract.load import BUILTIN, LoadedContract, load_contract
from fleet.contract.vary import claim
from fleet.errors import CampaignStopped, LandingUnreachable
from fleet.judge.bounds import fewest_replays
from fleet.report.answers import Answers, known_contracts
from fleet.report.night_answer import NightAnswer, night_answer
from fleet.schedule.announce import announce
from fleet.schedule.certify import (
    Request,
    Say,
    decide_and_tell,
    following,
    ingest_after,
    ingest_and_publish,
    plan_resolved,
    require_room_for,
    require_usable,
)
from fleet.schedule.dispatch import Night, plan_of
from fleet.schedule.driver import Campaign, Limits, new_campaign_id
from fleet.schedule.history import history_of, seen_units
from fleet.schedule.launcher import Launcher, Place
from fleet.schedule.lease import lease
from fleet.schedule.metrics import meter_of
from fleet.schedule.night import plan_night
from fleet.schedule.night_terms import Item, NightPlan, Unit, Wanted
from fleet.schedule.places import Places
from fleet.schedule.plan import MUST, controls_for
from fleet.schedule.resolve import resolve_contract
from fleet.schedule.revoke import revoke_and_tell
from fleet.schedule.roster import Seen, expected_units, real_units


@dataclass(frozen=True)
class NightRequest:
    """What was asked for: a fleet, and what takes the place of what its file says."""

    fleet: str
    budget_minutes: int | None = None
    campaign: str | None = None
    limits: Limits = field(default_factory=Limits)
    argv: tuple[str, ...] = ()


@dataclass(frozen=True)
class Planned:
    """A plan, and what the reader of it should know."""

    fleet: LoadedFleet
    plan: NightPlan
    units: tuple[Unit, ...]
    notes: tuple[str, ...] = ()


def read_fleet(name: str, search: Sequence[Path]) -> LoadedFleet:
    """A fleet's TOML, as this machine reads it.

    Raises:
        FleetFileError: it cannot be found, read or understood.
    """
    return load_fleet(name, search, socket.gethostname(), tuple(MUST))


def plan_campaign(
    request: NightRequest, places: Places, now_s: float, there: Sequence[Place] | None = None
) -> Planned:
    """Plan a night, on the units that are there, else on those that are expected.

    Raises:
        UsageError: for anything wrong in the fleet or a contract of it; nothing has been written.
    """
    loaded = read_fleet(request.fleet, places.search)
    fleet, night = loaded.fleet, loaded.fleet.night
    contracts = [load_contract(name, places.search) for name in night.contracts]
    wanted = [wanted_of(contract) for contract in contracts]
    needed = controls_for([contract.contract for contract in contracts])
    controls = [wanted_of(load_contract(name, (BUILTIN, *places.search))) for name in needed]
    seen = seen_units(places)
    units, notes = _units(fleet, there, seen)
    names = [each.name for each in wanted]
    history = history_of(names, needed, units, seen, places, now_s)
    minutes = night.budget_minutes if request.budget_minutes is None else request.budget_minutes
    plan = plan_night(wanted, controls, units, history, minutes * 60.0, night.seed)
    return Planned(loaded, plan, tuple(units), tuple(notes))


def _units(
    fleet: Fleet, there: Sequence[Place] | None, seen: Sequence[Seen]
) -> tuple[list[Unit], list[str]]:
    return (expected_units(fleet, seen), []) if there is None else real_units(fleet, there, seen)


def wanted_of(loaded: LoadedContract) -> Wanted:
    """A contract as a night sees it."""
    contract, require = loaded.contract, loaded.contract.require
    return Wanted(
        name=loaded.name,
        claims=(claim(require.vary),),
        replays=require.replays,
        takes=fewest_replays(require),
        several_units=require.scope == "same-class",
        valid_days=require.valid_days,
        threads=contract.determinism.num_threads,
        controls=tuple(controls_for([contract])),
    )


def run_night(
    planned: Planned, request: NightRequest, places: Places, launcher: Launcher, say: Say
) -> NightAnswer:
    """Run a plan to its verdicts, over everything known of what it ran.

    Raises:
        UsageError: a contract cannot be resolved or run; nothing has been written.
    """
    require_usable(places)
    meter_of(launcher).campaign_started(time.time())
    names = tuple(dict.fromkeys(i.contract for i in planned.plan.items if i.role == "named"))
    named = [resolve_contract(name, places.search, places.cache, say) for name in names]
    resolved = plan_resolved(Request(names), named, places, say, one_campaign=False)
    contracts = {r.name: r for r in (*resolved.named, *resolved.controls)}
    landing = places.open_landing(create=True)
    night = Night(
        id=request.campaign or new_campaign_id(),
        landing=landing,
        launcher=launcher,
        contracts=contracts,
        items=planned.plan.items,
        units=planned.units,
        budget_s=planned.plan.budget_s,
        scratch=places.scratch,
        works={slot.contract: slot.work for slot in resolved.slots if slot.work is not None},
        limits=request.limits,
        following=lambda _: following(landing, list(contracts.values())),
        on_event=say,
    )
    with lease(places.landing, night.id):
        ingest_and_publish(places.store, landing)
        sizing = Campaign(landing, launcher, contracts, places.scratch)
        require_room_for(sizing, planned.plan.slots, places, landing)
        try:
            end = night.run(request.argv)
        except LandingUnreachable as error:
            raise CampaignStopped(f"the night {night.id} could not go on: {error}") from error
        finally:
            ingest_after(places.store, landing)
    with places.open_store() as store:
        ids = {r.execution_id for r in contracts.values()}
        decide_and_tell(landing, store, ids, say)
        revoke_and_tell(landing, store, night.id, ids, say)
        answers = Answers(store, landing)
        asked = resolved.asked(resolved.controls)
        left = [each.to_json() for each in end.left_out]
        answer = night_answer(
            answers, night.id, end.campaigns, names, asked, left,
            places.search, places.cache, time.time(),
        )  # fmt: skip
        told = answer.asked(known_contracts(store))
        announce(answers, answer.as_campaign(), told, meter_of(launcher), os.environ)
        return answer


def _begun(request: NightRequest, places: Places) -> tuple[Item, ...] | None:
    """The plan of a night that an earlier driver began: it stands, whatever would be due now."""
    if request.campaign is None or not places.landing.exists():
        return None
    return plan_of(places.open_landing(), request.campaign)


def plan_and_run(
    request: NightRequest, places: Places, launcher: Launcher, say: Say
) -> tuple[Planned, NightAnswer | None]:
    """Plan on the units that are there and run; None when nothing is due or fits.

    Raises:
        UsageError: for anything wrong in what was named; nothing has been written.
    """
    planned = plan_campaign(request, places, time.time(), launcher.units())
    begun = _begun(request, places)
    if begun is not None:
        planned = replace(planned, plan=replace(planned.plan, items=begun, left_out=()))
    for note in planned.notes:
        say(note)
    for left in planned.plan.left_out:
        if left.code != "current":
            say(f"{left.contract} on {left.kind}: left out: {left.why}")
    if not planned.plan.items:
        return planned, None
    return planned, run_night(planned, request, places, launcher, say)
