"""Run the plan of a night: every unit at once, each under a campaign of its own.

A campaign of one unit is what ``certify`` runs: a chain of the ledger, controls first, one replay
after the other. Added here: who gets which work, that a unit may go away and come back, and that a
restarted driver goes on. The plan is in the night's own chain, what was done in those of its units.
Knows no rule and no Ray.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fleet.evidence.landing import Landing
from fleet.evidence.ledger import NIGHT, Entry, Ledger, campaigns, read_chain
from fleet.evidence.states import RETRIED
from fleet.schedule.asking import problems
from fleet.schedule.board import Board
from fleet.schedule.driver import AttemptEnd, Campaign, Follow, Limits
from fleet.schedule.interrupts import Interrupts
from fleet.schedule.launcher import Launcher, Place
from fleet.schedule.metrics import meter_of
from fleet.schedule.night_terms import Item, LeftOut, Unit, item_of
from fleet.schedule.plan import Slot, Work
from fleet.schedule.resolve import Resolved
from fleet.schedule.resume import done
from fleet.schedule.warming import warm

SlotKey = tuple[str, tuple[str, ...], int]
"""Contract, what is varied, replay: the name of a slot in whichever campaign it ran."""

Say = Callable[[str], None]
Following = Callable[[Campaign], Follow]


@dataclass(frozen=True)
class Waits:
    """Bounds of a night's own waits, in seconds. ``await_unit_s``: for a unit that is not there,
    while nothing runs; ``stop_s``: for what runs to end when the night is interrupted, which takes
    as long as a death is watched for, and an answer of its node."""

    look_every_s: float = 2.0
    await_unit_s: float = 300.0
    stop_s: float = 90.0


@dataclass(frozen=True)
class NightEnd:
    """``campaigns``: unit -> its campaign, also an earlier driver's; ``left_out``: what was planned
    and did not run."""

    campaigns: Mapping[str, str]
    left_out: tuple[LeftOut, ...]


@dataclass
class Night:
    """One run of a plan over many units. Make it, then call :meth:`run` once.

    Args:
        id: names the night; the same again goes on where it ended.
        landing: where evidence goes.
        launcher: the cluster.
        contracts: resolved contracts by name, controls too.
        items: the plan.
        units: of the fleet; those without an item may take others' work.
        budget_s: what would end later is not begun.
        scratch: folder for private caches.
        works: what the replays of some contracts are for.
        limits: of each campaign.
        following: gives a campaign's further slots, once its work is done.
        on_event: takes progress.
    """

    id: str
    landing: Landing
    launcher: Launcher
    contracts: Mapping[str, Resolved]
    items: Sequence[Item]
    units: Sequence[Unit]
    budget_s: float
    scratch: Path
    works: Mapping[str, Work] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    waits: Waits = field(default_factory=Waits)
    following: Following = lambda _: lambda _: []
    on_event: Say = lambda _: None
    _lanes: list[_Lane] = field(default_factory=list)
    _refused: dict[tuple[str, str], LeftOut] = field(default_factory=dict)
    _warming: dict[str, threading.Lock] = field(default_factory=lambda: defaultdict(threading.Lock))
    _warm: set[str] = field(default_factory=set)

    def run(self, argv: Sequence[str] = ()) -> NightEnd:
        """To the end of the work or of the budget.

        Raises:
            FleetError: no unit could be used, or an earlier driver's night cannot be gone on with.
            KeyboardInterrupt, SystemExit: after the ledgers say so.
        """
        self.units = [self._with_controls(unit) for unit in self.units]
        interrupts = Interrupts()
        with interrupts:
            ledger, items = self._open(argv)
            board = Board(items, self.budget_s)
            try:
                with interrupts.let_through():
                    self._until_done(board, argv)
            finally:
                self._stop(board)
                left = (*self._refused.values(), *board.rest())
                for each in left:
                    ledger.append("left_out", **each.to_json())
                ledger.append("closed")
        failed = [lane.error for lane in self._lanes if lane.error is not None]
        if failed and len(failed) == len(self._lanes):
            raise failed[0]
        there = set(campaigns(self.landing))
        ids = {unit.name: campaign_id(self.id, unit) for unit in self.units}
        return NightEnd({name: own for name, own in ids.items() if own in there}, left)

    def _with_controls(self, unit: Unit) -> Unit:
        """What a fleet's file lets run on a node says nothing of the controls: all carry them."""
        controls = [n for n, r in self.contracts.items() if r.loaded.contract.expect is not None]
        mine = unit.contracts
        return unit if mine is None else replace(unit, contracts=(*mine, *controls))

    def _open(self, argv: Sequence[str]) -> tuple[Ledger, list[Item]]:
        """The night's chain, and what of its plan no unit has done."""
        ledger, entries = Ledger.continued(self.landing, f"{NIGHT}{self.id}")
        drawn: dict[str, Any] = {"argv": list(argv), "driver": secrets.token_hex(8)}
        items = _planned(entries)
        if items is None:
            ledger.append("night", plan=[item.to_json() for item in self.items], **drawn)
            return ledger, list(self.items)
        ledger.append("resumed", **drawn)
        there = self._done_by_campaign()
        left = [(item, self._left_of(item, there)) for item in items]
        whole = [item for item, each in left if each is None]
        self.on_event(f"{len(whole)} of {len(items)} sets are there already")
        # a control that is there costs nothing more, and what follows from it may be missing
        return ledger, [each or item for item, each in left if each or item.role == "control"]

    def _done_by_campaign(self) -> dict[str, set[SlotKey]]:
        """Slots that have a record, of each campaign of this night: every chain is read once."""
        return {
            name: {
                (k.contract, k.vary, k.replay)
                for k in done(self.landing, read_chain(self.landing, name))
            }
            for name in campaigns(self.landing)
            if name.startswith(f"{self.id}.")
        }

    def _left_of(self, item: Item, there: Mapping[str, set[SlotKey]]) -> Item | None:
        """None of a set that is done; one that a unit had begun is that unit's to finish."""
        for name, keys in there.items():
            if item.role == "control" and name != campaign_id(self.id, item.unit):
                continue
            mine = _replays(item)
            if mine <= keys:
                return None
            begun = next((u for u in self.units if campaign_id(self.id, u) == name), None)
            if mine & keys and begun is not None:
                return replace(item, unit=begun, begun=True)
        return item

    def _until_done(self, board: Board, argv: Sequence[str]) -> None:
        alone_since = time.monotonic()
        while True:
            for lane in self._lanes:
                lane.reap(board)
            there = {place.name: place for place in self.launcher.units()}
            board.seen({u.name for u in self.units if u.name in there and not self._broken(u)})
            for unit in self.units:
                if unit.name in there and not self._busy(unit) and board.waits_for(unit):
                    self._lanes.append(_Lane(self, board, unit, there[unit.name], argv))
                    self._lanes[-1].start()
            busy = sum(lane.is_alive() for lane in self._lanes)
            meter = meter_of(self.launcher)
            meter.queue(board.depth, board.waited_s)
            meter.units(busy, sum(unit.name in there for unit in self.units))
            if busy:
                alone_since = time.monotonic()
            elif not board.fits_any() or self._waited(alone_since):
                return
            time.sleep(self.waits.look_every_s)

    def _busy(self, unit: Unit) -> bool:
        """Does it run, or did it show that it cannot?"""
        mine = [lane for lane in self._lanes if lane.unit.name == unit.name]
        return self._broken(unit) or any(lane.is_alive() for lane in mine)

    def _broken(self, unit: Unit) -> bool:
        return any(lane.unit.name == unit.name and lane.error is not None for lane in self._lanes)

    def _waited(self, since: float) -> bool:
        return time.monotonic() - since > self.waits.await_unit_s

    def _stop(self, board: Board) -> None:
        """Interrupted: what runs ends, as far as it can be waited for."""
        live = [lane for lane in self._lanes if lane.is_alive()]
        for lane in live:
            lane.campaign.stop()
        if live:
            self.launcher.stop()
        until = time.monotonic() + self.waits.stop_s
        for lane in live:
            lane.join(max(0.0, until - time.monotonic()))
            if lane.is_alive():
                self.on_event(f"{lane.unit.name} did not end; --campaign-id {self.id} goes on")
        for lane in self._lanes:
            lane.reap(board)

    def make_ready(self, campaign: Campaign, unit: Unit) -> Unit:
        """The unit with the contracts it can run, its node's kernel cache warm for all of them: it
        must not change once replays run there, on whichever device."""
        odd = {problem.contract: problem for problem in problems(campaign)}
        for name, problem in odd.items():
            why = f"{problem.key}: expected {problem.expected}, got {problem.got}"
            self._refused[name, unit.kind] = LeftOut(name, (), unit.kind, "cannot-run", why)
        with self._warming[unit.node]:
            if unit.node not in self._warm:
                claims = {
                    name: tuple(dict.fromkeys(i.vary for i in self.items if i.contract == name))
                    for name in self.contracts
                }
                warm(campaign, claims)
                self._warm.add(unit.node)
        able = tuple(n for n in self.contracts if n not in odd and unit.takes(n))
        return replace(unit, contracts=able)


class _Lane(threading.Thread):
    """One unit's campaign, as long as there is work for it."""

    def __init__(
        self, night: Night, board: Board, unit: Unit, place: Place, argv: Sequence[str]
    ) -> None:
        super().__init__(name=unit.name, daemon=True)
        self.unit, self.error = unit, None
        self._night, self._board, self._argv = night, board, argv
        self._taken: list[Item] = []
        self._ends: list[AttemptEnd] = []
        self._index = 0
        self._reaped = False
        self.campaign = Campaign(
            landing=night.landing,
            launcher=night.launcher.at(place),
            contracts=dict(night.contracts),
            scratch=night.scratch,
            limits=night.limits,
            on_event=lambda text: night.on_event(f"{unit.name} {text}"),
            id=campaign_id(night.id, unit),
            feed=self._feed,
            night=night.id,
        )

    error: BaseException | None

    def run(self) -> None:
        try:
            if not self.campaign.launcher.is_up():  # listed, but it hangs or is going away
                self.campaign.unit_is_down = True
                return
            self._able = self._night.make_ready(self.campaign, self.unit)
            first: list[Slot] = []
            while more := self._feed():
                first += more
                if more[0].role == "named":
                    break
            if first:
                follow = self._night.following(self.campaign)
                self._ends = self.campaign.run(first, self._argv, follow)
        except KeyboardInterrupt:
            return
        except Exception as error:
            if self.campaign.is_stopped:
                return
            self.campaign.unit_is_down = not self.campaign.launcher.is_up()
            self.error = None if self.campaign.unit_is_down else error

    def _feed(self) -> list[Slot]:
        """The next set, as slots."""
        item = self._board.take(self._able)
        if item is None:
            return []
        self._taken.append(item)
        begin, self._index = self._index, self._index + len(item.slots)
        work = self._night.works.get(item.contract)
        return [
            Slot(begin + i, item.contract, slot.replay, item.role, work, item.vary, self.unit.name)
            for i, slot in enumerate(item.slots)
        ]

    def _lost_with(self) -> Item | None:
        """What ran when the unit went away."""
        last = next((e for e in reversed(self._ends) if e.state in RETRIED), None)
        if last is None or not self.campaign.unit_is_down:
            return None
        return next((i for i in self._taken if _of(last.slot) in _replays(i)), None)

    def reap(self, board: Board) -> None:
        """Once it has ended: what its unit had begun and cannot finish is anybody's again."""
        if self.is_alive() or self._reaped:
            return
        self._reaped = True
        if self.error is not None:
            self._night.on_event(f"{self.unit.name} cannot go on: {self.error}")
        if self.error is None and not self.campaign.unit_is_down:
            return
        ended = {_of(e.slot) for e in self._ends if e.state not in RETRIED}
        open_ = [i for i in self._taken if i.role == "control" or not _replays(i) <= ended]
        board.give_back(self.unit, open_, self._lost_with())
        if self.campaign.unit_is_down:
            self._night.on_event(f"{self.unit.name} went away")


def _of(slot: Slot) -> SlotKey:
    return slot.contract, slot.vary, slot.replay


def _replays(item: Item) -> set[SlotKey]:
    return {(item.contract, item.vary, slot.replay) for slot in item.slots}


def plan_of(landing: Landing, night: str) -> tuple[Item, ...] | None:
    """What a night planned, in its order; None when there is no such night."""
    items = _planned(read_chain(landing, f"{NIGHT}{night}"))
    return None if items is None else tuple(items)


def _planned(entries: Sequence[Entry]) -> list[Item] | None:
    planned = next((e for e in entries if e.kind == "night"), None)
    return None if planned is None else [item_of(raw) for raw in planned.body["plan"]]


def campaign_id(night: str, unit: Unit) -> str:
    """Of a unit's campaign in a night."""
    return f"{night}.{re.sub(r'[^A-Za-z0-9.-]', '-', unit.name)}"
