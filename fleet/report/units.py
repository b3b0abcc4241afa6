"""Every unit that ever ran a replay: how often it was odd, and what was decided (``fleet units``).

Derived at every call, decisions apart, which are evidence. Holds no rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.text import Text

from fleet.evidence import decisions
from fleet.evidence.decisions import Decision
from fleet.evidence.landing import Landing
from fleet.evidence.platform import Platform
from fleet.evidence.summary import AttemptSummary
from fleet.judge.charge import Replay, Suspicion, replays_of, suspicions, usual_root
from fleet.judge.sets import groups
from fleet.report import screen
from fleet.report.answers import Asked, known_contracts
from fleet.store import queries
from fleet.store.open import Store

STATES = ("quarantined", "suspect", "odd", "undecided", "agrees", "untested")


@dataclass(frozen=True)
class UnitRow:
    """One unit. ``odd`` of ``replays``: exact repeats of contracts that are no injected fault.

    ``undecided``: further ones, of sets in which no root is the usual one. ``suspicions``: contract
    and suspicion, smallest p first; none from before a release. ``decisions``: those in force.
    ``age_s``: since a replay on it was accepted last.
    """

    unit: str
    platform: str
    platform_label: str
    replays: int
    odd: int
    undecided: int
    suspicions: tuple[tuple[str, Suspicion], ...]
    decisions: tuple[Decision, ...]
    last_seen_s: float | None
    age_s: float | None

    @property
    def state(self) -> str:
        """One of :data:`STATES`."""
        told = (
            any(d.kind == "quarantined" for d in self.decisions),
            any(s.suspect for _, s in self.suspicions),
            self.odd > 0,
            self.undecided > 0,
            self.replays > 0,
            True,
        )
        return next(state for state, holds in zip(STATES, told, strict=True) if holds)

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        return {
            "unit": self.unit,
            "platform": self.platform or None,
            "platform_label": self.platform_label or None,
            "state": self.state,
            "replays": self.replays,
            "odd": self.odd,
            "undecided": self.undecided,
            "suspicions": [{"contract": name} | s.to_json() for name, s in self.suspicions],
            "decisions": [d.to_json() for d in self.decisions],
            "last_seen_s": self.last_seen_s,
            "age_s": self.age_s,
        }


@dataclass
class _Counts:
    replays: Counter[str] = field(default_factory=Counter)
    undecided: Counter[str] = field(default_factory=Counter)
    odd: Counter[str] = field(default_factory=Counter)
    suspicions: dict[str, list[tuple[str, Suspicion]]] = field(default_factory=dict)


def tested_by(store: Store) -> list[Asked]:
    """The contracts that may tell something of a unit, each execution id and grade once.

    A control that must FAIL is odd on any unit; one that must PASS tests its unit like any other.
    """
    known = known_contracts(store)
    faults = {a.execution_id for a in known if a.expect and a.expect.verdict != "PASS"}
    once: dict[tuple[str, str], Asked] = {}
    for asked in known:
        if asked.execution_id not in faults:
            once.setdefault((asked.execution_id, asked.require.grade), asked)
    return list(once.values())


def unit_rows(store: Store, landing: Landing, now_s: float) -> list[UnitRow]:
    """By state, then by name."""
    summaries = queries.summaries(store.con)
    decided = decisions.standing(landing)
    counts = _counts(tested_by(store), summaries, decided)
    newest = _newest(summaries)
    facts = queries.platforms(store.con)
    rows = [
        _row(unit, newest.get(unit), counts, decided.get(unit, ()), facts, now_s)
        for unit in sorted({*queries.units(store.con), *newest, *decided})
    ]
    return sorted(rows, key=lambda row: STATES.index(row.state))


def _counts(
    contracts: Iterable[Asked],
    summaries: Sequence[AttemptSummary],
    decided: Mapping[str, Sequence[Decision]],
) -> _Counts:
    found = _Counts()
    by_id: dict[str, list[AttemptSummary]] = {}
    for s in summaries:
        by_id.setdefault(s.execution_id, []).append(s)
    released = [d for own in decided.values() for d in own if d.kind == "released"]
    for asked in contracts:
        for key, members in groups(by_id.get(asked.execution_id, ())).items():
            if key.platform and not key.vary:
                about = (key.execution_id, key.traced, asked.require.grade)
                since_s = {d.unit: d.as_of_s for d in released if d.key[1:] == about}
                _count(found, asked, replays_of(members, asked.require), since_s)
    return found


def _count(
    found: _Counts, asked: Asked, replays: Sequence[Replay], since_s: Mapping[str, float]
) -> None:
    usual = usual_root(replays)
    if usual is None:
        return found.undecided.update(r.unit for r in replays)
    found.replays.update(r.unit for r in replays)
    found.odd.update(r.unit for r in replays if r.root != usual)
    for suspicion in suspicions(replays, since_s):
        found.suspicions.setdefault(suspicion.unit, []).append((asked.name, suspicion))


def _newest(summaries: Iterable[AttemptSummary]) -> dict[str, AttemptSummary]:
    """Unit -> the attempt there that was accepted last."""
    accepted = [s for s in summaries if s.unit and s.accepted_at_s is not None]
    return {s.unit: s for s in sorted(accepted, key=lambda s: s.accepted_at_s or 0.0)}


def _row(
    unit: str,
    newest: AttemptSummary | None,
    counts: _Counts,
    decided: tuple[Decision, ...],
    facts: Mapping[str, Any],
    now_s: float,
) -> UnitRow:
    platform = newest.platform if newest else ""
    seen_s = newest.accepted_at_s if newest else None
    odd = counts.suspicions.get(unit, [])
    return UnitRow(
        unit=unit,
        platform=platform,
        platform_label=Platform(facts[platform]["facts"]).label() if platform in facts else "",
        replays=counts.replays[unit],
        odd=counts.odd[unit],
        undecided=counts.undecided[unit],
        suspicions=tuple(sorted(odd, key=lambda found: (found[1].p, found[0]))),
        decisions=decided,
        last_seen_s=seen_s,
        age_s=None if seen_s is None else now_s - seen_s,
    )


def units_document(rows: Sequence[UnitRow]) -> dict[str, Any]:
    """One entry per unit."""
    return {"schema": 1, "units": [row.to_json() for row in rows]}


def print_units(console: Console, rows: Sequence[UnitRow]) -> None:
    """One line per unit, then what suspicions and quarantines rest on."""
    table = screen.table(console, "units", "unit", "state", "odd", "last seen", "platform")
    for row in rows:
        odd, label = f"{row.odd}/{row.replays}", row.platform_label or "-"
        table.add_row(Text(row.unit), row.state, odd, screen.age(row.age_s), Text(label))
    console.print(table)
    for row in rows:
        for decision in row.decisions:
            screen.verbatim(console, f"unit {row.unit}: {decision.in_words()}")
        for name, suspicion in row.suspicions:
            screen.verbatim(console, f"{name}: {suspicion.in_words()}")
