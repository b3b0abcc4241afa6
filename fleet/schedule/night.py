"""What a night runs, where and in which order. Pure: contracts, units and history in, a plan out.

First what holds no PASS (never tested, stale, void), then regressions that nobody is charged with
yet, then PASSes older than half their validity; inside each of these the longest first, on the unit
of its class that is free first (R. L. Graham, SIAM J. Appl. Math. 17, 1969). Controls come first on
every unit of a class in which something runs. What the budget does not hold is left out and said;
shorter work after it still fits. A quarantined unit gets its look and nothing else, no control
either: one that fails there would void what all others prove.

Deterministic and stable: ties are settled by digests of the seed and of what is tied, each on its
own, so a contract more leaves the others in their order; units may change, as loads do. Knows no
cluster, no store and no clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fleet.contract.canonical import sha256
from fleet.judge.present import DAY_S
from fleet.schedule.night_terms import (
    Claim,
    Estimate,
    History,
    Item,
    Known,
    LeftOut,
    NightPlan,
    Reason,
    Unit,
    Wanted,
)
from fleet.schedule.plan import Role, Slot

URGENCY: Mapping[Reason, int] = {
    "never-tested": 0, "void": 0, "stale": 0, "regressed": 1, "refresh": 2,
}  # fmt: skip
"""Lower runs first; what is equal runs longest first."""

ASSUMED_S = 300.0
"""A replay of which nothing was measured yet."""

REFRESH_AFTER = 0.5
"""Share of its validity after which a PASS is renewed."""

LOOK = 2
"""On a quarantined unit: as many as a clean night takes."""


def plan_night(
    wanted: Sequence[Wanted],
    controls: Sequence[Wanted],
    units: Sequence[Unit],
    history: History,
    budget_s: float,
    seed: int = 0,
) -> NightPlan:
    """Lay out one night.

    Args:
        wanted: the contracts, each once.
        controls: those that :attr:`Wanted.controls` name.
        units: where they may run.
        history: what is known.
        budget_s: no replay is planned to end later.
        seed: settles ties.
    """
    night = _Night(units, history, budget_s, seed)
    due: list[_Pending] = []
    out: list[LeftOut] = []
    for each in wanted:
        for claim in night.claims_of(each):
            found = night.pending(each, claim)
            due += [found] if isinstance(found, _Pending) else []
            out += [found] if isinstance(found, LeftOut) else []
    looks, unseen = night.looks({each.name: each for each in wanted})
    night.begin(controls, [*due, *(pending for _, pending in looks)])
    out += unseen
    elsewhere = {pending.claim for pending in due}
    for unit, pending in looks:
        out += night.look(unit, pending, alone=pending.claim not in elsewhere)
        elsewhere.add(pending.claim)
    for pending in sorted(due, key=lambda p: (URGENCY[p.reason], -p.seconds, night.tie(*p.claim))):
        out += night.place(pending)
    return NightPlan(tuple(_numbered(_needed(night.items, wanted))), tuple(out), budget_s, seed)


def _needed(items: Sequence[Item], wanted: Sequence[Wanted]) -> list[Item]:
    """Without controls of which nothing that they control runs."""
    named = {item.contract for item in items if item.role == "named"}
    controls = {name for each in wanted if each.name in named for name in each.controls}
    return [item for item in items if item.role == "named" or item.contract in controls]


def reason_of(known: Known, valid_days: int) -> Reason | None:
    """Why a claim is due; None where nothing is, or where replays would change nothing."""
    due: dict[str, Reason] = {
        "UNTESTED": "never-tested", "VOID": "void", "STALE": "stale", "REGRESSED": "regressed",
    }  # fmt: skip
    if known.state != "PASS":
        return due.get(known.state)
    if known.age_s is None:
        return "stale"
    return "refresh" if known.age_s > REFRESH_AFTER * valid_days * DAY_S else None


def _charged(known: Known, quarantined: Collection[str]) -> str:
    """Whom a regression is charged to; "" while fresh replays may still tell."""
    if known.state != "REGRESSED":
        return ""
    if known.of_class:
        return ", charged to its class"
    done = bool(known.odd) and all(unit in quarantined for unit in known.odd)
    return ", its odd units are quarantined" if done else ""


def _not_due(claim: Claim, known: Known, valid_days: int, charged: str) -> LeftOut:
    if known.state == "PASS":
        days = (known.age_s or 0.0) / DAY_S
        return LeftOut(*claim, "current", f"a PASS of {days:.1f} days, valid for {valid_days}")
    words = f"{known.state}{charged}: a difference stays, whatever else runs"
    return LeftOut(*claim, "differs", words)


@dataclass(frozen=True)
class _Pending:
    """A claim that is due. ``each_s``: of one replay; ``odd``: units that were odd about it."""

    wanted: Wanted
    claim: Claim
    reason: Reason
    each_s: float
    estimate: Estimate
    odd: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """Of all that a PASS takes."""
        return self.each_s * self.wanted.takes

    @property
    def separates(self) -> bool:
        """Are fresh exact repeats on odd units and elsewhere to say whom to charge?"""
        return self.reason == "regressed" and not self.claim.vary


def _is_small(unit: Unit, wanted: Wanted) -> bool:
    return unit.cpus is not None and unit.cpus < wanted.threads


@dataclass
class _Night:
    """What is laid out so far: when each unit is free, and the items in the order placed."""

    units: Sequence[Unit]
    history: History
    budget_s: float
    seed: int
    items: list[Item] = field(default_factory=list)
    free_s: dict[str, float] = field(default_factory=dict)
    elsewhere: dict[str, list[float]] = field(default_factory=dict)
    allowed: dict[tuple[str, str], list[Unit]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.free_s = {unit.name: 0.0 for unit in self.units}
        for (contract, _), seconds in self.history.seconds.items():
            self.elsewhere.setdefault(contract, []).append(seconds)

    def tie(self, *words: object) -> bytes:
        """Orders what is equal otherwise, by itself alone."""
        return sha256(repr((self.seed, *map(str, words))).encode())

    def claims_of(self, wanted: Wanted) -> Iterator[Claim]:
        """One for each class whose nodes ask for this contract."""
        kinds = dict.fromkeys(unit.kind for unit in self.units if unit.takes(wanted.name))
        return (Claim(wanted.name, vary, kind) for vary in wanted.claims for kind in kinds)

    def pending(self, wanted: Wanted, claim: Claim) -> _Pending | LeftOut:
        """Due, or left out with its reason."""
        known = self.history.known.get(claim, Known("UNTESTED"))
        reason = reason_of(known, wanted.valid_days)
        charged = _charged(known, self.history.looks)
        if reason is None or charged:
            return _not_due(claim, known, wanted.valid_days, charged)
        return self.of(wanted, claim, reason, known.odd)

    def of(
        self, wanted: Wanted, claim: Claim, reason: Reason, odd: tuple[str, ...] = ()
    ) -> _Pending:
        """With what one replay takes, and where that comes from."""
        measured = self.history.seconds.get((claim.contract, claim.kind))
        if measured is not None:
            return _Pending(wanted, claim, reason, measured, "measured", odd)
        others = self.elsewhere.get(claim.contract)
        if others:
            return _Pending(wanted, claim, reason, max(others), "other class", odd)
        return _Pending(wanted, claim, reason, ASSUMED_S, "assumed", odd)

    def able(self, pending: _Pending) -> list[Unit]:
        """Units of its class that may and can run it; not those in quarantine."""
        name, kind = pending.claim.contract, pending.claim.kind
        if (name, kind) not in self.allowed:
            self.allowed[name, kind] = [
                unit
                for unit in self.units
                if unit.kind == kind
                and unit.there
                and unit.takes(name)
                and not _is_small(unit, pending.wanted)
                and unit.name not in self.history.looks
            ]
        return self.allowed[name, kind]

    def begin(self, controls: Sequence[Wanted], due: Sequence[_Pending]) -> None:
        """Controls first, on every unit that something due may run on."""
        needed: dict[str, set[str]] = {}
        for pending in due:
            for unit in self.able(pending):
                needed.setdefault(unit.name, set()).update(pending.wanted.controls)
        for unit in self.units:
            for control in controls:
                if control.name in needed.get(unit.name, ()):
                    claim = Claim(control.name, (), unit.kind)
                    of = self.of(control, claim, "control")
                    self.add(of, unit, range(control.replays), of.seconds, "control")

    def looks(
        self, wanted: Mapping[str, Wanted]
    ) -> tuple[list[tuple[Unit, _Pending]], list[LeftOut]]:
        """Quarantined units with each contract that they are quarantined by."""
        found: list[tuple[Unit, _Pending]] = []
        out: list[LeftOut] = []
        for unit in self.units:
            for name in self.history.looks.get(unit.name, ()):
                claim = Claim(name, (), unit.kind)
                if name in wanted and unit.there and unit.takes(name):
                    found.append((unit, self.of(wanted[name], claim, "look")))
                else:
                    why = f"quarantined unit {unit.name}: that contract cannot run there tonight"
                    out.append(LeftOut(*claim, "cannot-run", why))
        return found, out

    def look(self, unit: Unit, pending: _Pending, alone: bool) -> Iterator[LeftOut]:
        """Two exact repeats there, and two elsewhere when the contract is not due in any case: a
        clean night compares the two."""
        others = self._first_free(pending, self.able(pending), 1) if alone else []
        shares = [(u, range(LOOK), LOOK * pending.each_s) for u in (unit, *others)]
        yield from self._all_or_none(pending, shares)

    def place(self, pending: _Pending) -> Iterator[LeftOut]:
        """On the units that are free first."""
        able = self.able(pending)
        if len(able) < (2 if pending.wanted.several_units else 1):
            yield self._cannot(pending, able)
            return
        chosen = self._chosen(pending, able)
        n, replays = len(chosen), pending.wanted.replays
        if pending.separates:
            shares = [(unit, range(replays), pending.seconds) for unit in chosen]
        else:
            part_s = -(-pending.wanted.takes // n) * pending.each_s
            shares = [(unit, range(i, replays, n), part_s) for i, unit in enumerate(chosen)]
        yield from self._all_or_none(pending, shares)

    def _chosen(self, pending: _Pending, able: Sequence[Unit]) -> list[Unit]:
        """One unit, two for a claim about several; odd ones and as many others to separate them."""
        if not pending.separates:
            return self._first_free(pending, able, 2 if pending.wanted.several_units else 1)
        odd = [unit for unit in able if unit.name in pending.odd]
        others = [unit for unit in able if unit not in odd]
        return odd + self._first_free(pending, others, len(odd) or 2)

    def _first_free(self, pending: _Pending, units: Sequence[Unit], count: int) -> list[Unit]:
        if count == 1 and units:
            least = min(self.free_s[unit.name] for unit in units)
            units = [unit for unit in units if self.free_s[unit.name] == least]
        order = [(self.free_s[u.name], self.tie(*pending.claim, u.name), u) for u in units]
        return [unit for _, _, unit in sorted(order, key=lambda found: found[:2])[:count]]

    def _all_or_none(
        self, pending: _Pending, shares: Sequence[tuple[Unit, range, float]]
    ) -> Iterator[LeftOut]:
        """A claim of which some replays are left out would be VOID."""
        for unit, _, seconds in shares:
            left_s = max(self.budget_s - self.free_s[unit.name], 0.0)
            if seconds > left_s:
                takes = f"takes {seconds / 60:.1f} min on {unit.name}, {left_s / 60:.1f} are left"
                yield LeftOut(*pending.claim, "budget", f"{pending.reason}: {takes}")
                return
        for unit, replays, seconds in shares:
            self.add(pending, unit, replays, seconds)

    def add(
        self, p: _Pending, unit: Unit, replays: range, seconds: float, role: Role = "named"
    ) -> None:
        """After whatever is on that unit already."""
        name, vary, _ = p.claim
        slots = tuple(Slot(0, name, i, role, None, vary, unit.name) for i in replays)
        start_s = self.free_s[unit.name]
        self.items.append(
            Item(unit, name, vary, role, p.reason, start_s, seconds, p.estimate, slots)
        )
        self.free_s[unit.name] = start_s + seconds

    def _cannot(self, pending: _Pending, able: Sequence[Unit]) -> LeftOut:
        there = [unit for unit in self.units if unit.kind == pending.claim.kind and unit.there]
        if able:
            why = f"same-class compares two units, and only {able[0].name} can run it"
        elif not there:
            why = "no unit of its class is there"
        elif any(_is_small(unit, pending.wanted) for unit in there):
            why = f"takes {pending.wanted.threads} CPUs, more than a unit of its class has"
        else:
            why = "every unit that may run it is quarantined"
        return LeftOut(*pending.claim, "cannot-run", why)


def _numbered(items: Iterable[Item]) -> Iterator[Item]:
    """In the order in which they start, and as they were placed where that is equal."""
    begin = 0
    for item in sorted(items, key=lambda item: item.start_s):
        slots = tuple(replace(slot, index=begin + i) for i, slot in enumerate(item.slots))
        begin += len(slots)
        yield replace(item, slots=slots)
