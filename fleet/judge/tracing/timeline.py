"""Traces as sequences of observations, aligned over any number of replays.

A call is observed twice, when it begins and when it ends. Two replays are aligned when the same
modules are observed in the same order; where they are not, that is a difference of structure. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from fleet.evidence.trace import Call, Trace

Phase = Literal["in", "out"]
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
    found: list[tuple[int, int, Observation]] = []
    for call in trace.calls:
        if (call.arm, call.batch) == group:
            found.append((call.step, call.begin, Observation("in", call)))
            if call.end >= 0:
                found.append((call.step, call.end, Observation("out", call)))
    return [seen for _, _, seen in sorted(found, key=lambda item: item[:2])]


@dataclass(frozen=True)
class Departure:
    """Where replays part: ``classes`` are replay numbers by what they show, the largest first.

    ``seen`` is the observation of one replay of the largest class (None when that one had ended),
    ``other`` of one that departs. ``what``: structure, class, out, own, cache or args.
    """

    group: Group
    index: int
    what: str
    seen: Observation | None
    other: Observation | None
    classes: tuple[tuple[int, ...], ...]

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


def departures(lines: Sequence[Sequence[Observation]], group: Group) -> Iterator[Departure]:
    """Every place in a batch where some of the replays that agreed so far part from the rest.

    The largest class goes on (of equal ones the one with the first replay); who departed is not
    looked at again, because whatever it shows later may be a consequence. O(observations x R).
    """
    together = list(range(len(lines)))
    index = 0
    while len(together) > 1:
        row = {r: lines[r][index] if index < len(lines[r]) else None for r in together}
        if all(observation is None for observation in row.values()):
            return
        found = _part(row)
        if found is not None:
            what, classes = found
            first, other = classes[0][0], classes[1][0]
            yield Departure(group, index, what, row[first], row[other], classes)
            together = list(classes[0])
        index += 1


def _part(row: dict[int, Observation | None]) -> tuple[str, tuple[tuple[int, ...], ...]] | None:
    structure = _classes({r: o.key if o else None for r, o in row.items()})
    if len(structure) > 1:
        return "structure", structure
    present = {r: o for r, o in row.items() if o is not None}
    names = _classes({r: o.call.class_name for r, o in present.items()})
    if len(names) > 1:
        return "class", names
    values = _classes({r: o.value for r, o in present.items()})
    if len(values) == 1:
        return None
    a, b = present[values[0][0]], present[values[1][0]]
    if a.phase == "out":
        return "out", values
    return next(p for p in PARTS if part_of(a.call, p) != part_of(b.call, p)), values


def _classes(shown: dict[int, object]) -> tuple[tuple[int, ...], ...]:
    """Replays by what they show; the largest class first, of equal ones the one seen first."""
    found: dict[object, list[int]] = {}
    for replay, value in shown.items():
        found.setdefault(value, []).append(replay)
    return tuple(tuple(c) for c in sorted(found.values(), key=lambda c: (-len(c), c[0])))
