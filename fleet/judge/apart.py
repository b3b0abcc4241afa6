"""Platforms whose units all agree, and differ from all of other platforms: what sets them apart.

Names the platform facts whose values separate the two groups exactly, as candidates: facts that
changed together cannot be told from each other, and a cause may be in no fact at all. A difference
between platforms is no verdict. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fleet.contract.canonical import canonical_json
from fleet.judge.charge import Replay

Facts = Mapping[str, Mapping[str, Any]]
ABSENT = "absent"


@dataclass(frozen=True)
class Candidate:
    """A fact with disjoint values: those of the one group, those of the other, for a person."""

    fact: str
    here: tuple[str, ...]
    there: tuple[str, ...]


@dataclass(frozen=True)
class Apart:
    """``here``: platforms on which every good replay has ``root``; ``there``: those on which none
    has. ``unreadable``: facts that some attempt could not read, which may separate them too."""

    root: str
    here: tuple[str, ...]
    there: tuple[str, ...]
    units_here: int
    units_there: int
    candidates: tuple[Candidate, ...]
    unreadable: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        return asdict(self)

    def in_words(self) -> str:
        """Without the names of the platforms."""
        named = [f"{c.fact} ({_or(c.here)}, there {_or(c.there)})" for c in self.candidates]
        what = f"separated by {', '.join(named)}: candidates" if named else "no fact separates them"
        unread = f"; unreadable: {', '.join(self.unreadable)}" if self.unreadable else ""
        return f"{what}{unread}"


def apart(replays: Mapping[str, Sequence[Replay]], platform: str, facts: Facts) -> Apart | None:
    """What sets a platform apart from others; None when it differs from itself or from none.

    Args:
        replays: platform -> good replays of one contract, claim and trace mode.
        platform: the one in question.
        facts: platform -> its facts; those of every platform with replays.
    """
    roots = {name: {r.root for r in found} for name, found in replays.items() if found}
    if len(roots.get(platform, ())) != 1:
        return None
    (root,) = roots[platform]
    here = tuple(sorted(name for name, shown in roots.items() if shown == {root}))
    there = tuple(sorted(name for name, shown in roots.items() if root not in shown))
    if not there:
        return None
    left, right = ([flattened(facts[n]) for n in names if n in facts] for names in (here, there))
    return Apart(
        root=root,
        here=here,
        there=there,
        units_here=len({r.unit for name in here for r in replays[name]}),
        units_there=len({r.unit for name in there for r in replays[name]}),
        candidates=tuple(_candidates(left, right)),
        unreadable=tuple(sorted({k for f in (*left, *right) for k in f if _unread(f[k])})),
    )


def flattened(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts by dotted name, at any depth: each package, variable and part of a fact by itself. A
    package stays one fact, and so does what could not be read."""
    found: dict[str, Any] = {}
    for name, value in facts.items():
        if isinstance(value, Mapping) and not _unread(value) and "version" not in value:
            found |= {f"{name}.{key}": item for key, item in flattened(value).items()}
        else:
            found[name] = value
    return found


def _candidates(
    left: Sequence[Mapping[str, Any]], right: Sequence[Mapping[str, Any]]
) -> Iterator[Candidate]:
    for fact in sorted({key for found in (*left, *right) for key in found}):
        sides = [[found.get(fact) for found in group] for group in (left, right)]
        if any(_unread(value) for side in sides for value in side):
            continue
        here, there = ({canonical_json(value) for value in side} for side in sides)
        if here and there and not here & there:
            yield Candidate(fact, *_shown(*sides))


def _shown(*sides: Sequence[Any]) -> Iterator[tuple[str, ...]]:
    """A package by its version, unless versions do not tell the two sides apart."""
    short = [{_version(value) for value in side} for side in sides]
    tells = not short[0] & short[1]
    for versions, side in zip(short, sides, strict=True):
        yield tuple(sorted(versions if tells else {told(value) for value in side}))


def _version(value: Any) -> str:
    return str(value["version"]) if isinstance(value, dict) and "version" in value else told(value)


def told(value: Any) -> str:
    """A fact as text."""
    if isinstance(value, dict):
        return " ".join(f"{key} {item}" for key, item in sorted(value.items()))
    return ABSENT if value is None else repr(value) if value == "" else str(value)


def _or(values: Sequence[str]) -> str:
    return " or ".join(values)


def _unread(value: Any) -> bool:
    return isinstance(value, dict) and "unreadable_in" in value
