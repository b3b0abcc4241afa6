"""A night of a fleet: from its TOML to a plan, and from a plan to verdicts.

A plan needs neither a cluster nor history. Holds no rule: the plan is ``night``'s, running and
judging are ``certify``'s.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fleet.contract.fleet_file import Fleet, LoadedFleet, load_fleet
from fleet.contract.load import BUILTIN, LoadedContract, load_contract
from fleet.contract.vary import claim
from fleet.errors import UsageError
from fleet.evidence.landing import Landing
from fleet.evidence.ledger import DECISIONS, chain_folder
from fleet.judge.bounds import fewest_replays
from fleet.report.answers import CampaignAnswer
from fleet.schedule.certify import Places, Request, Say, certify, plan_resolved
from fleet.schedule.driver import Limits
from fleet.schedule.history import history_of, seen_units
from fleet.schedule.launcher import Launcher, Place
from fleet.schedule.night import plan_night
from fleet.schedule.night_terms import NightPlan, Unit, Wanted
from fleet.schedule.plan import MUST, controls_for
from fleet.schedule.resolve import resolve_contract
from fleet.schedule.roster import Seen, expected_units, real_units

CAMPAIGN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


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
    refuse_taken(request.campaign, places)
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
    return Planned(loaded, plan, tuple(notes))


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


def refuse_taken(campaign: str | None, places: Places) -> None:
    """A campaign's id names a folder of the ledger, and is used once.

    Raises:
        UsageError: it cannot be one, or was used.
    """
    if campaign is None:
        return
    if not CAMPAIGN_ID.fullmatch(campaign) or campaign.startswith(DECISIONS):
        words = "letters, digits, dots, dashes and underscores, not beginning with decisions-"
        raise UsageError("command line", "--campaign-id", words, repr(campaign), "choose another")
    if chain_folder(Landing(places.landing), campaign).exists():
        got = f"{campaign!r}, which is in {places.landing}"
        raise UsageError(
            "command line", "--campaign-id", "an id that is new", got, "choose another"
        )


def run_night(
    planned: Planned, request: NightRequest, places: Places, launcher: Launcher, say: Say
) -> CampaignAnswer:
    """Run a plan to its verdicts: one campaign, its slots pinned to their units.

    Raises:
        UsageError: a contract that cannot be resolved or run; nothing has been written.
    """
    names = tuple(dict.fromkeys(i.contract for i in planned.plan.items if i.role == "named"))
    named = [resolve_contract(name, places.search, places.cache, say) for name in names]
    asked = Request(names, limits=request.limits, argv=request.argv, campaign=request.campaign)
    resolved = plan_resolved(asked, named, places, say)
    works = {slot.contract: slot.work for slot in resolved.slots}
    slots = [replace(slot, work=works.get(slot.contract)) for slot in planned.plan.slots]
    claims = {
        name: tuple(dict.fromkeys(slot.vary for slot in slots if slot.contract == name))
        for name in names
    }
    resolved = replace(resolved, slots=slots, claims=claims)
    return certify(asked, resolved, places, launcher, say)


def plan_and_run(
    request: NightRequest, places: Places, launcher: Launcher, say: Say
) -> tuple[Planned, CampaignAnswer | None]:
    """Plan on the units that are there and run; None when nothing is due or fits.

    Raises:
        UsageError: for anything wrong in what was named; nothing has been written.
    """
    planned = plan_campaign(request, places, time.time(), launcher.places())
    for note in planned.notes:
        say(note)
    for left in planned.plan.left_out:
        if left.code != "current":
            say(f"{left.contract} on {left.kind}: left out: {left.why}")
    if not planned.plan.items:
        return planned, None
    return planned, run_night(planned, request, places, launcher, say)
