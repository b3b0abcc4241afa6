"""The odd one: is a mismatch to be charged to a unit, to its class, or to nobody yet?

A replay is *odd* when its root is not the one that most units of its platform show; each unit has
one vote, however often it was looked at again. The first odd replay on a unit raises a suspicion
and is no evidence of it: only replays accepted later count, there and elsewhere. Exact repeats
only: of varied replays the varied values may be what differs. Decides no PASS and no FAIL. Pure.

Many units are looked at, night after night, and in a racy class every one of them has odd replays:
one of them stands out sooner or later. So p is Fisher's times the number of units with an odd
replay, which are those that a test is made of (Bonferroni); of a single odd unit it is Fisher's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

from fleet.contract.model import Require
from fleet.evidence.summary import AttemptSummary
from fleet.judge.separation import fisher_one_sided
from fleet.judge.sets import is_good

SUSPECT_P = 0.05
MAX_NAMED = 4

NEVER: Mapping[str, float] = {}


class Replay(NamedTuple):
    """One good replay; sorts by the time at which the ledger accepted it."""

    at_s: float
    attempt: str
    unit: str
    root: str


@dataclass(frozen=True)
class Suspicion:
    """A unit with an odd replay. Counts are replays.

    ``odd`` of ``replays`` and ``roots`` are over all there are; ``fresh_odd`` of ``fresh_replays``
    on the unit and ``elsewhere_odd`` of ``elsewhere_replays`` on the others are those accepted
    after ``raised_by``. ``p``: Fisher's, times the units with an odd replay. ``could_separate``:
    had all the fresh ones been odd, and none elsewhere, it would be suspect.
    """

    unit: str
    odd: int
    replays: int
    roots: int
    raised_by: str
    fresh_odd: int
    fresh_replays: int
    elsewhere_odd: int
    elsewhere_replays: int
    p: float
    could_separate: bool

    @property
    def suspect(self) -> bool:
        """Do fresh replays here and elsewhere separate?"""
        return self.p <= SUSPECT_P

    def in_words(self) -> str:
        """``unit u suspect 3/3 vs 0/40, p=8.1e-05``; a unit that differs from itself is a race."""
        here, there = f"{self.fresh_odd}/{self.fresh_replays}", f"{self.elsewhere_odd}"
        counts = f"{here} vs {there}/{self.elsewhere_replays}, p={self.p:.2g}"
        if self.suspect:
            rest = "" if self.roots == 1 else " (a race there; a rarer one elsewhere not excluded)"
            return f"unit {self.unit} suspect {counts}{rest}"
        if self.roots == 1:
            return f"unit {self.unit} odd {self.odd}/{self.replays}, fresh {counts}"
        odd = f"odd {self.odd}/{self.replays}, fresh {counts}"
        return f"race on unit {self.unit}, class not excluded: {odd}"

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        return asdict(self) | {"suspect": self.suspect}


@dataclass(frozen=True)
class Charge:
    """To whom a mismatch is charged. ``units``: those with an odd replay, most telling first."""

    charge: Literal["unit", "class", "undecided"]
    words: str
    units: tuple[Suspicion, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        units = [suspicion.to_json() for suspicion in self.units]
        return {"charge": self.charge, "words": self.words, "units": units}


UNCHARGED = Charge("undecided", "no two good replays have two roots: nothing to charge a unit with")
"""Of a FAIL that rests on something else than roots of good replays."""


def replays_of(members: Sequence[AttemptSummary], require: Require) -> list[Replay]:
    """The good replays of one set, with their roots at the required grade, as accepted."""
    return sorted(
        Replay(s.accepted_at_s, s.attempt, s.unit, s.roots[require.grade])
        for s in members
        if s.accepted_at_s is not None and is_good(s, require)
    )


def by_unit(replays: Sequence[Replay]) -> dict[str, list[Replay]]:
    """Unit -> its replays, in order."""
    found: dict[str, list[Replay]] = {}
    for replay in replays:
        found.setdefault(replay.unit, []).append(replay)
    return found


def usual_root(replays: Sequence[Replay]) -> str | None:
    """The root that more than half of the units show in more than half of their replays each."""
    units = by_unit(replays)
    votes: Counter[str] = Counter()
    for own in units.values():
        root, count = Counter(r.root for r in own).most_common(1)[0]
        if 2 * count > len(own):
            votes[root] += 1
    root, count = votes.most_common(1)[0] if votes else ("", 0)
    return root if 2 * count > len(units) else None


def suspicions(
    replays: Sequence[Replay], since_s: Mapping[str, float] = NEVER
) -> tuple[Suspicion, ...]:
    """Every unit with an odd replay, smallest p first; none where no root is the usual one.

    Args:
        replays: of one set, in order.
        since_s: unit -> the time of its release, before which nothing raises a suspicion of it.
    """
    usual = usual_root(replays)
    if usual is None:
        return ()
    units = by_unit(replays)
    raised: dict[str, Replay] = {}
    for replay in replays:
        if replay.root != usual and replay.at_s > since_s.get(replay.unit, float("-inf")):
            raised.setdefault(replay.unit, replay)
    after = _counts_after(replays, usual, set(raised.values()))
    found = [
        _suspicion(units[u], first, usual, after[first], raised) for u, first in raised.items()
    ]
    return tuple(sorted(found, key=lambda s: (s.p, s.unit)))


def _counts_after(
    replays: Sequence[Replay], usual: str, asked: Collection[Replay]
) -> dict[Replay, tuple[int, int]]:
    """Of some replays: (odd, all) among those of any unit that come after it."""
    odd, found = 0, {}
    for later, replay in enumerate(reversed(replays)):
        if replay in asked:
            found[replay] = odd, later
        odd += replay.root != usual
    return found


def _suspicion(
    own: Sequence[Replay],
    first: Replay,
    usual: str,
    after: tuple[int, int],
    looked_at: Collection[str],
) -> Suspicion:
    fresh = [r for r in own if r > first]
    odd, n = sum(r.root != usual for r in fresh), len(fresh)
    odd_there, n_there = after[0] - odd, after[1] - n
    best = fisher_one_sided(n, n, 0, n_there) * len(looked_at)
    return Suspicion(
        unit=first.unit,
        odd=sum(r.root != usual for r in own),
        replays=len(own),
        roots=len({r.root for r in own}),
        raised_by=first.attempt,
        fresh_odd=odd,
        fresh_replays=n,
        elsewhere_odd=odd_there,
        elsewhere_replays=n_there,
        p=min(1.0, fisher_one_sided(odd, n, odd_there, n_there) * len(looked_at)),
        could_separate=best <= SUSPECT_P,
    )


def charge_of(members: Sequence[AttemptSummary], require: Require) -> Charge | None:
    """To whom the mismatch of one set is charged; None when its good replays have one root."""
    replays = replays_of(members, require)
    if len({r.root for r in replays}) < 2:
        return None
    if members[0].vary:
        return Charge("undecided", "what was varied may be behind it: no unit is charged")
    return charge(replays)


def charge(replays: Sequence[Replay]) -> Charge:
    """The same of replays that have two roots or more, all of them exact repeats.

    *unit*: every unit with an odd replay separates from the others. *class*: several are odd, at
    least two were looked at often enough to separate, and none does; or there is no usual root.
    *undecided*: anything else.
    """
    odd = suspicions(replays)
    units = by_unit(replays)
    if not odd:
        return _without_usual_root(units)
    words = "; ".join(s.in_words() for s in odd[:MAX_NAMED])
    if len(odd) > MAX_NAMED:
        words += f"; {len(odd) - MAX_NAMED} more"
    suspects = sum(s.suspect for s in odd)
    if suspects == len(odd):
        return Charge("unit", words, odd)
    if suspects == 0 and sum(s.could_separate for s in odd) > 1:
        head = f"{len(odd)} of {len(units)} units odd, none separates"
        return Charge("class", f"{head}: {words}", odd)
    return Charge("undecided", words, odd)


def _without_usual_root(units: Mapping[str, Sequence[Replay]]) -> Charge:
    racing = [unit for unit, own in units.items() if len({r.root for r in own}) > 1]
    roots = len({r.root for own in units.values() for r in own})
    if len(racing) > 1 or len(units) > 2:
        words = f"{roots} roots over {len(units)} units and no usual one"
        return Charge("class", f"{words}, {len(racing)} units differ from themselves")
    if racing:
        return Charge("undecided", f"race on unit {racing[0]}, class not excluded")
    return Charge("undecided", "two units differ, each agrees with itself: a third one would tell")
