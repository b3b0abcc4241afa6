"""Traces as sequences of observations, aligned over any number of replays.

A call is observed twice, when it begins and when it ends. Two replays are aligned when the same
modules are observed in the same order; where they are not, that is a difference of structure. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fleet.evidence.trace import Call, Phase, Trace, moments

Group = tuple[str, int]
"""(arm, batch ordinal)."""

PARTS = ("own", "cache", "args")
"""What goes into a call, in the order in which a difference is told."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One moment of one call."""

    phase: Phase
    call: Call

    @property
    def key(self) -> tuple[int, Phase, str, int]:
        """What two replays must share to be compared here."""
        return self.call.step, self.phase, self.call.path, self.call.occurrence

    @property
    def value(self) -> tuple[bytes | None, ...]:
        """What must be equal."""
        if self.phase == "out":
            return (self.call.out_sha256,)
        return tuple(part_of(self.call, part) for part in PARTS)


def part_of(call: Call, part: str) -> bytes | None:
    """One part of what went into a call: ``own``, ``cache`` or ``args``."""
    found: bytes | None = getattr(call, f"{part}_sha256")
    return found


def groups_of(traces: Sequence[Trace]) -> list[Group]:
    """Batches in the order that the traces show them, each once."""
    return list(dict.fromkeys((c.arm, c.batch) for trace in traces for c in trace.calls))


def timeline(trace: Trace, group: Group) -> list[Observation]:
    """Everything observed in one batch, in the order it happened."""
    mine = (call for call in trace.calls if (call.arm, call.batch) == group)
    return [Observation(phase, call) for phase, call in moments(mine)]


@dataclass(frozen=True)
class Departure:
    """Where replays part: ``classes`` are replay numbers by what they show, the largest first.

    ``seen`` is the observation of one replay of the largest class (None when that one had ended),
    ``other`` of one that departs. ``what``: structure, class, out, own, cache or args.
    ``healed``: replays that departed and end a call around it as the others do.
    """

    group: Group
    index: int
    what: str
    seen: Observation | None
    other: Observation | None
    classes: tuple[tuple[int, ...], ...]
    healed: tuple[int, ...] = ()

    @property
    def call(self) -> Call:
        """The call in question, as the larger class saw it."""
        observation = self.seen or self.other
        assert observation is not None
        return observation.call

    @property
    def phase(self) -> Phase:
        """When it was observed."""
        observation = self.seen or self.other
        assert observation is not None
        return observation.phase

    @property
    def departed(self) -> tuple[int, ...]:
        """Replays outside the largest class."""
        return tuple(sorted(r for others in self.classes[1:] for r in others))

    @property
    def lasting(self) -> tuple[int, ...]:
        """Replays that departed and did not heal."""
        return tuple(r for r in self.departed if r not in self.healed)


def departures(lines: Sequence[Sequence[Observation]], group: Group) -> Iterator[Departure]:
    """Every place in a batch where some of the replays that agreed so far part from the rest.

    The largest class goes on (of equal ones the one with the first replay). Who departed is not
    looked at again, because whatever it shows later may be a consequence, unless a call around the
    departure began and ends the same: nothing is left of the difference then, and that replay is
    compared again from there on. O(observations x R).
    """
    return _Comparison(lines, group).run()


class _Comparison:
    """Replays that agree, each at its own place in its own line, and those that wait to heal."""

    def __init__(self, lines: Sequence[Sequence[Observation]], group: Group) -> None:
        self._lines, self._group = lines, group
        self._at = dict.fromkeys(range(len(lines)), 0)
        self._waiting: dict[int, int] = {}
        self._where = [{o.key: i for i, o in enumerate(line)} for line in lines]
        self._begun = [{(o.call.step, o.call.begin): o.call for o in line} for line in lines]

    def run(self) -> Iterator[Departure]:
        while len(self._at) + len(self._waiting) > 1:
            row = {r: self._observation(r) for r in self._at}
            if all(observation is None for observation in row.values()):
                return
            found = _part(row)
            if found is not None:
                yield self._depart(row, *found)
            self._advance()

    def _observation(self, replay: int) -> Observation | None:
        line, at = self._lines[replay], self._at[replay]
        return line[at] if at < len(line) else None

    def _depart(
        self,
        row: dict[int, Observation | None],
        what: str,
        classes: tuple[tuple[int, ...], ...],
    ) -> Departure:
        first, other = classes[0][0], classes[1][0]
        index = self._at[first]
        healed = []
        for replay in (r for others in classes[1:] for r in others):
            del self._at[replay]
            place = self._healing(what, row[first], first, replay)
            if place is not None:
                self._waiting[replay] = place
                healed.append(replay)
        seen = row[first], row[other]
        return Departure(self._group, index, what, *seen, classes, tuple(sorted(healed)))

    def _healing(self, what: str, seen: Observation | None, first: int, replay: int) -> int | None:
        """Where, in a departing replay's line, the innermost call around ends as in the first."""
        call = seen.call if seen else None
        if call is not None and what == "structure" and seen is not None and seen.phase == "in":
            call = self._begun[first].get((call.step, call.parent))
        while call is not None:
            place = self._where[replay].get(Observation("out", call).key)
            if place is not None and _same_call(call, self._lines[replay][place].call):
                return place
            call = self._begun[first].get((call.step, call.parent))
        return None

    def _advance(self) -> None:
        """One observation on; a replay that waits for this very one comes along."""
        here = self._observation(next(iter(self._at)))
        for replay, place in list(self._waiting.items()):
            awaited = self._lines[replay][place]
            if here is not None and here.key == awaited.key:
                del self._waiting[replay]
                if here.value == awaited.value:
                    self._at[replay] = place
        self._at = {replay: self._at[replay] + 1 for replay in sorted(self._at)}


def _same_call(a: Call, b: Call) -> bool:
    """Everything that goes in and comes out is known, and equal."""
    known = a.in_sha256 is not None and a.out_sha256 is not None and not a.unhashed
    return known and (a.in_sha256, a.out_sha256) == (b.in_sha256, b.out_sha256)


def _part(row: dict[int, Observation | None]) -> tuple[str, tuple[tuple[int, ...], ...]] | None:
    structure = classes_of({r: o.key if o else None for r, o in row.items()})
    if len(structure) > 1:
        return "structure", structure
    present = {r: o for r, o in row.items() if o is not None}
    names = classes_of({r: o.call.class_name for r, o in present.items()})
    if len(names) > 1:
        return "class", names
    values = classes_of({r: o.value for r, o in present.items()})
    if len(values) == 1:
        return None
    a, b = present[values[0][0]], present[values[1][0]]
    if a.phase == "out":
        return "out", values
    return next(p for p in PARTS if part_of(a.call, p) != part_of(b.call, p)), values


def classes_of(shown: Mapping[int, object]) -> tuple[tuple[int, ...], ...]:
    """Replays by what they show; the largest class first, of equal ones the one seen first."""
    found: dict[object, list[int]] = {}
    for replay, value in shown.items():
        found.setdefault(value, []).append(replay)
    return tuple(tuple(c) for c in sorted(found.values(), key=lambda c: (-len(c), c[0])))
