"""The work of a night that no unit has begun, and who may take it. Thread-safe.

A unit takes what was planned for it, in that order; when that is done, what was planned for others
of its kind that are gone or at work, the longest first. So the plan holds while things go as
planned, and work of a unit that is late, or gone, moves. What is about that very unit (a control, a
look at one in quarantine) or has begun there never does. What several units went away with is begun
no more: it may be what takes them down.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from fleet.schedule.night_terms import Item, LeftOut, Unit

Clock = Callable[[], float]

MOST_LOSSES = 3
"""A set that was begun so often on a unit that then went away is left out."""


@dataclass
class Board:
    """Items in the order of the plan.

    Args:
        items: what was planned and is not done.
        budget_s: from now; what would end later is not begun.
        clock: monotonic seconds.
    """

    items: Iterable[Item]
    budget_s: float
    clock: Clock = time.monotonic
    _waiting: list[Item] = field(init=False)
    _there: set[str] = field(default_factory=set)
    _at_work: set[str] = field(default_factory=set)
    _losses: Counter[tuple[str, tuple[str, ...], str]] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._waiting = list(self.items)
        sets = Counter(_claim(item) for item in self._waiting if item.role == "named")
        self._shared = {claim for claim, parts in sets.items() if parts > 1}
        self._begun_s = self.clock()
        self._ends_s = self._begun_s + self.budget_s

    def take(self, unit: Unit) -> Item | None:
        """The next item for a unit that is free now."""
        with self._lock:
            self._at_work.add(unit.name)
            fit = [i for i in self._waiting if self._may(i, unit) and self._fits(i)]
            own = [i for i in fit if i.unit.name == unit.name]
            item = own[0] if own else max(fit, key=lambda i: i.seconds, default=None)
            if item is not None:
                self._waiting.remove(item)
            return item

    def seen(self, there: set[str]) -> None:
        """Which units there are: one that has not begun yet keeps what was planned for it."""
        with self._lock:
            self._there = there

    def give_back(self, unit: Unit, items: Iterable[Item], lost: Item | None = None) -> None:
        """What a unit that went away had taken and not done; ``lost``: what ran there then."""
        with self._lock:
            self._at_work.discard(unit.name)
            self._waiting = [*items, *self._waiting]
            if lost is not None:
                self._losses[_key(lost)] += 1

    def waits_for(self, unit: Unit) -> bool:
        """Is there anything it could take?"""
        with self._lock:
            return any(self._may(i, unit) and self._fits(i) for i in self._waiting)

    def rest(self) -> list[LeftOut]:
        """What nobody took, and why."""
        with self._lock:
            return [self._left(i) for i in self._waiting if i.role == "named"]

    def fits_any(self) -> bool:
        """Would anything still end in time, whoever took it?"""
        with self._lock:
            return any(i.role == "named" and self._fits(i) for i in self._waiting)

    @property
    def depth(self) -> int:
        """Replays that wait."""
        with self._lock:
            return sum(len(item.slots) for item in self._waiting)

    @property
    def waited_s(self) -> float:
        """How long they have waited: all since the night began."""
        return self.clock() - self._begun_s if self.depth else 0.0

    def _may(self, item: Item, unit: Unit) -> bool:
        owner = item.unit
        if owner.name == unit.name:
            return unit.takes(item.contract)
        waits_for_owner = owner.name in self._there and owner.name not in self._at_work
        if item.fixed or waits_for_owner or _claim(item) in self._shared:
            return False
        return owner.kind == unit.kind and unit.takes(item.contract)

    def _fits(self, item: Item) -> bool:
        """May it be begun yet?"""
        return self._ends_in_time(item) and self._losses[_key(item)] < MOST_LOSSES

    def _ends_in_time(self, item: Item) -> bool:
        return self.clock() + item.seconds <= self._ends_s

    def _left(self, item: Item) -> LeftOut:
        head = item.contract, item.vary, item.unit.kind
        if (losses := self._losses[_key(item)]) >= MOST_LOSSES:
            return LeftOut(*head, "units-lost", f"a unit went away while it ran, {losses} times")
        if self._ends_in_time(item):
            why = f"{item.unit.name} is not there, nor another of its kind"
            return LeftOut(*head, "no-unit", why)
        return LeftOut(*head, "budget", f"{item.reason}: {item.seconds / 60:.1f} min are not left")


def _key(item: Item) -> tuple[str, tuple[str, ...], str]:
    """A control is about its unit; of others it does not matter whose they were."""
    return item.contract, item.vary, item.unit.name if item.fixed else item.unit.kind


def _claim(item: Item) -> tuple[str, tuple[str, ...], str]:
    """What its replays are about. Parts of one claim are on several units in order to compare them,
    so that each stays where it was planned."""
    return item.contract, item.vary, item.unit.kind
