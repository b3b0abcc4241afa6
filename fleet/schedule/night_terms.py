"""What goes into the plan of a night and what comes out: units, contracts, history, items.

Data only; the rules are in ``night``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from fleet.schedule.plan import Role, Slot

Reason = Literal["control", "look", "never-tested", "void", "stale", "regressed", "refresh"]
Estimate = Literal["measured", "other class", "assumed"]
"""Where the seconds of a replay come from: the median in this class, that in others, nowhere."""


@dataclass(frozen=True)
class Unit:
    """Where one replay runs at a time. ``name``: a device's UUID, or the label of its node.

    ``kind``: its class; units of one kind are exchangeable. ``contracts``: those that may run here,
    all when None. ``cpus``: of a replay there, None where nobody says. ``there``: not one that is
    expected and missing.
    """

    name: str
    node: str
    kind: str
    cpus: int | None = None
    contracts: tuple[str, ...] | None = None
    there: bool = True

    def takes(self, contract: str) -> bool:
        """May that contract run here?"""
        return self.contracts is None or contract in self.contracts


@dataclass(frozen=True)
class Wanted:
    """A contract as the night sees it. ``takes``: replays that a PASS takes, for the estimate: a
    bound may take more than the ``replays`` that are planned before anything ran. ``controls``: the
    names of those that what executes it needs."""

    name: str
    claims: tuple[tuple[str, ...], ...] = ((),)
    replays: int = 2
    takes: int = 2
    several_units: bool = False
    valid_days: int = 30
    threads: int = 1
    controls: tuple[str, ...] = ()


class Claim(NamedTuple):
    """What a verdict is about: a contract, what its replays vary, and a class of units."""

    contract: str
    vary: tuple[str, ...]
    kind: str


@dataclass(frozen=True)
class Known:
    """Where a claim stands: a state of ``fleet status``. ``odd``: units whose replays were odd;
    ``of_class``: the difference is charged to the class, so that no unit is to be told from it."""

    state: str
    age_s: float | None = None
    odd: tuple[str, ...] = ()
    of_class: bool = False


@dataclass(frozen=True)
class History:
    """What is known when a night is planned; nothing of it is needed.

    ``seconds``: (contract, kind) -> median seconds that a replay held its unit. ``looks``:
    quarantined unit -> contracts that its quarantines are about.
    """

    known: Mapping[Claim, Known] = field(default_factory=dict)
    seconds: Mapping[tuple[str, str], float] = field(default_factory=dict)
    looks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Item:
    """Replays of one claim on one unit, one after the other. Seconds from the night's beginning.
    ``begun``: an earlier driver ran some of them."""

    unit: Unit
    contract: str
    vary: tuple[str, ...]
    role: Role
    reason: Reason
    start_s: float
    seconds: float
    estimate: Estimate
    slots: tuple[Slot, ...] = ()
    begun: bool = False

    @property
    def fixed(self) -> bool:
        """About that very unit, or begun there: no other one may take it."""
        return self.begun or self.role == "control" or self.reason == "look"

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        return {
            "unit": self.unit.name,
            "node": self.unit.node,
            "class": self.unit.kind,
            "contract": self.contract,
            "vary": list(self.vary),
            "role": self.role,
            "reason": self.reason,
            "start_s": self.start_s,
            "seconds": self.seconds,
            "estimate": self.estimate,
            "slots": [slot.to_json() for slot in self.slots],
        }


def item_of(raw: Mapping[str, Any]) -> Item:
    """Read :meth:`Item.to_json`. What a slot is for is no part of it: the contract says that."""
    unit = Unit(raw["unit"], raw["node"], raw["class"])
    vary, role = tuple(raw["vary"]), raw["role"]
    slots = tuple(
        Slot(s["slot"], raw["contract"], s["replay"], role, None, vary, raw["unit"])
        for s in raw["slots"]
    )
    start_s, seconds = float(raw["start_s"]), float(raw["seconds"])
    about = raw["reason"], start_s, seconds, raw["estimate"]
    return Item(unit, raw["contract"], vary, role, *about, slots)


@dataclass(frozen=True)
class LeftOut:
    """What does not run and why. ``code``: budget, current, differs, cannot-run, no-unit or
    units-lost."""

    contract: str
    vary: tuple[str, ...]
    kind: str
    code: str
    why: str

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        body = {"contract": self.contract, "vary": list(self.vary), "class": self.kind}
        return body | {"code": self.code, "why": self.why}


@dataclass(frozen=True)
class NightPlan:
    """``items`` in the order in which they start; their slots are numbered in that order."""

    items: tuple[Item, ...]
    left_out: tuple[LeftOut, ...]
    budget_s: float
    seed: int

    @property
    def slots(self) -> list[Slot]:
        """All replays, in order."""
        return [slot for item in self.items for slot in item.slots]

    @property
    def ends_s(self) -> float:
        """When the last unit is done, as estimated."""
        return max((item.start_s + item.seconds for item in self.items), default=0.0)

    @property
    def is_covered(self) -> bool:
        """Does all that is not planned hold a PASS?"""
        return all(left.code == "current" for left in self.left_out)

    def to_json(self) -> dict[str, Any]:
        """The document of a dry run."""
        return {
            "schema": 1,
            "campaign": None,
            "plan": [item.to_json() for item in self.items],
            "left_out": [each.to_json() for each in self.left_out],
            "budget_s": self.budget_s,
            "ends_s": self.ends_s,
            "seed": self.seed,
        }
