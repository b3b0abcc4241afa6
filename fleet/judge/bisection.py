"""Which single package upgrade brings a change: the order to try them in, and what steps show.

Packages whose declared requirements allow no mixture move together. The groups are put in an order
in which every beginning is a set that fits, and the beginning where the bits change is searched for
by halves. A step that cannot be built joins two groups. Pure: builds and runs nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Literal

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

Seen = Literal["base", "changed", "refused", "unclear"]
"""What a mixture showed: the base's bits; other bits; no such environment; nothing that tells."""

Versions = Mapping[str, str | None]
Requires = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Stackside:
    """One end: distribution -> version, and what each declares to require."""

    versions: Versions
    requires: Requires


def moves(base: Stackside, new: Stackside, likely: Collection[str] = ()) -> list[tuple[str, ...]]:
    """Groups of packages that differ, in an order in which every beginning fits together.

    Those with ``likely`` packages come as early as they fit: a beginning that has the change is
    told by a few samples, and one that has not only by a whole certification.
    """
    names = base.versions.keys() | new.versions.keys()
    differ = sorted(n for n in names if base.versions.get(n) != new.versions.get(n))
    needs = {name: set[str]() for name in differ}
    for name in differ:
        for other in differ:
            if other == name:
                continue
            if _only_with(new, name, other, base.versions.get(other)):
                needs[name].add(other)  # as new it does not take the other as it was
            if _only_with(base, name, other, new.versions.get(other)):
                needs[other].add(name)  # as it was it does not take the new other
    return _ordered(needs, likely)


def _only_with(side: Stackside, name: str, other: str, instead: str | None) -> bool:
    """Does ``name`` of this side take ``other`` of this side, and not ``instead``? What does not
    fit within one side is not asked of a mixture."""
    if side.versions.get(name) is None:
        return False
    asked = [r for r in map(Requirement, side.requires.get(name, ())) if r.name == other]
    return any(_fits(r, side.versions.get(other)) and not _fits(r, instead) for r in asked)


def _fits(requirement: Requirement, version: str | None) -> bool:
    if version is None:
        return False
    try:
        return requirement.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


def _ordered(needs: Mapping[str, set[str]], likely: Collection[str]) -> list[tuple[str, ...]]:
    """Those that need each other are one group; what is needed comes first."""
    reach = {name: _reach(name, needs) for name in needs}
    group = {n: tuple(sorted({n} | {o for o in reach[n] if n in reach[o]})) for n in needs}
    graph: dict[tuple[str, ...], set[tuple[str, ...]]] = {own: set() for own in group.values()}
    for name, others in needs.items():
        graph[group[name]] |= {group[o] for o in others if group[o] != group[name]}
    sorter = TopologicalSorter(graph)
    sorter.prepare()
    found: list[tuple[str, ...]] = []
    ready: list[tuple[str, ...]] = []
    while sorter.is_active():
        ready += sorter.get_ready()
        ready.sort(key=lambda names: (not set(names) & set(likely), names), reverse=True)
        found.append(ready.pop())
        sorter.done(found[-1])
    return found


def _reach(name: str, needs: Mapping[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    open_ = [name]
    while open_:
        for other in needs[open_.pop()] - seen:
            seen.add(other)
            open_.append(other)
    return seen


@dataclass
class Search:
    """The state of a search. ``groups`` in order; a beginning of ``low`` groups has the base's
    bits, one of ``high`` others."""

    groups: list[tuple[str, ...]]

    def __post_init__(self) -> None:
        self.low, self.high = 0, len(self.groups)

    def next(self) -> int | None:
        """How many groups the next mixture moves; None when one group is left."""
        return None if self.high - self.low <= 1 else (self.low + self.high) // 2

    def saw(self, moved: int, seen: Seen) -> None:
        """What the mixture of that many groups showed. One that tells nothing is no place to part:
        the groups at it move together."""
        if seen == "base":
            self.low = moved
        elif seen == "changed":
            self.high = moved
        else:
            joined = tuple(sorted((*self.groups[moved - 1], *self.groups[moved])))
            self.groups[moved - 1 : moved + 1] = [joined]
            self.high -= 1

    def before(self) -> list[str]:
        """Packages that had moved and left the bits as they were."""
        return list(_flat(self.groups[: self.low]))

    def found(self) -> tuple[str, ...]:
        """What brings the change, once there is one group left."""
        return self.groups[self.low]


def _flat(groups: Sequence[tuple[str, ...]]) -> Iterator[str]:
    for group in groups:
        yield from group


def mixture(base: Versions, new: Versions, moved: Sequence[str]) -> dict[str, str]:
    """The base with these packages as in the new one."""
    names = sorted(base.keys() | new.keys())
    chosen = ((n, new.get(n) if n in moved else base.get(n)) for n in names)
    return {name: version for name, version in chosen if version is not None}


def unfit(side: Stackside) -> set[str]:
    """Packages that something in an end itself declares not to take: there they stand all the same,
    so a mixture of the ends is not refused for it."""
    return {
        r.name
        for name, asked in side.requires.items()
        if side.versions.get(name) is not None
        for r in map(Requirement, asked)
        if side.versions.get(r.name) is not None and not _fits(r, side.versions[r.name])
    }
