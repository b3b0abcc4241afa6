"""What the store and the landing know when a night is planned: states, durations, quarantines.

Without a store there is no history, and a night needs none. Holds no rule: states are those of
``fleet status``, quarantines those in force.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from fleet.errors import EvidenceError
from fleet.evidence import decisions, ledger
from fleet.evidence.landing import Landing
from fleet.evidence.ledger import Entry
from fleet.report.answers import Answers
from fleet.report.status import TELLING, StatusRow, status_rows
from fleet.schedule.night_terms import Claim, History, Known, Unit
from fleet.schedule.places import Places
from fleet.schedule.roster import Seen, platform_of_kinds, unit_name
from fleet.store import queries
from fleet.store.open import Store

NEWEST = 6
"""Replays of a contract in a class, whose median is what one takes."""


def seen_units(places: Places) -> list[Seen]:
    """Every unit that the store has accepted evidence of."""
    if not places.store.exists():
        return []
    with places.open_store() as store:
        return seen_in(store)


def seen_in(store: Store) -> list[Seen]:
    """The same of an open store."""
    newest, facts = queries.newest_platforms(store.con), queries.units(store.con)
    return [
        Seen(unit, str(facts.get(unit, {}).get("node_label", "")), platform, at_s)
        for unit, (platform, at_s) in newest.items()
    ]


def history_of(
    contracts: Sequence[str],
    controls: Sequence[str],
    units: Sequence[Unit],
    seen: Sequence[Seen],
    places: Places,
    now_s: float,
) -> History:
    """All that a plan over these contracts and units can use.

    Raises:
        StoreError: there is a store, and it or its landing cannot be read.
    """
    if not places.store.exists():
        return History()
    landing = Landing.open(places.landing)
    kinds: dict[str, list[str]] = {}
    for kind, platform in platform_of_kinds(units, seen).items():
        kinds.setdefault(platform, []).append(kind)
    with places.open_store() as store:
        rows = status_rows(Answers(store, landing), contracts, places.search, places.cache, now_s)
        return History(
            _known(rows, kinds),
            _seconds(store, landing, [*contracts, *controls], kinds),
            looks_of(landing),
        )


def looks_of(landing: Landing) -> dict[str, tuple[str, ...]]:
    """Quarantined unit, by its name -> the contracts that its quarantines are about."""
    return {
        unit_name(unit): tuple(dict.fromkeys(d.contract for d in found))
        for unit, found in decisions.quarantined(landing).items()
    }


def _known(rows: Iterable[StatusRow], kinds: Mapping[str, list[str]]) -> dict[Claim, Known]:
    found: dict[Claim, Known] = {}
    for row in rows:
        if row.verdict is None:
            continue
        odd = tuple(unit_name(s.unit) for s in row.charge.units) if row.charge else ()
        of_class = row.charge is not None and row.charge.charge == "class"
        known = Known(row.state, row.age_s, odd, of_class)
        for kind in kinds.get(row.platform, ()):
            claim = Claim(row.contract, row.verdict.vary, kind)
            before = found.get(claim, known)
            found[claim] = min((known, before), key=lambda k: TELLING.index(k.state))
    return found


def took(places: Places, contracts: Sequence[str]) -> dict[str, float]:
    """Contract -> the median of its newest replays, on whatever platform; none that never ran."""
    if not places.store.exists():
        return {}
    with places.open_store() as store:
        platforms = {s.platform: ["any"] for s in queries.summaries(store.con)}
        found = _seconds(store, places.open_landing(), contracts, platforms)
    return {contract: seconds for (contract, _), seconds in found.items()}


def _seconds(
    store: Store, landing: Landing, contracts: Iterable[str], kinds: Mapping[str, list[str]]
) -> dict[tuple[str, str], float]:
    """Medians over the newest complete replays of each contract in each class."""
    chosen: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for contract in contracts:
        landed = queries.summaries(store.con, contract=contract)
        whole = [s for s in landed if s.state == "COMPLETE" and s.accepted_at_s is not None]
        for s in sorted(whole, key=lambda s: -(s.accepted_at_s or 0.0)):
            for kind in kinds.get(s.platform, ()):
                newest = chosen.setdefault((contract, kind), [])
                newest += [(s.campaign, s.attempt)] if len(newest) < NEWEST else []
    campaigns = {campaign for newest in chosen.values() for campaign, _ in newest}
    took = {c: held_s(chain) for c in sorted(campaigns) if (chain := _chain(landing, c))}
    found = {}
    for key, newest in chosen.items():
        known = [took[c][a] for c, a in newest if a in took.get(c, {})]
        if known:
            found[key] = median(known)
    return found


def _chain(landing: Landing, campaign: str) -> list[Entry]:
    """Durations are no evidence: a chain that does not check has none to give."""
    try:
        return ledger.read_chain(landing, campaign)
    except EvidenceError:
        return []


def held_s(chain: Iterable[Entry]) -> dict[str, float]:
    """Attempt -> seconds that it held its unit: from when it was planned, or when the one before it
    there was gone, until it was accepted."""
    planned: dict[str, float] = {}
    free: dict[str, float] = {}
    found: dict[str, float] = {}
    gone: dict[str, float] = {}
    for entry in chain:
        if entry.kind == "planned":
            planned[entry.attempt] = entry.at_s
        elif entry.kind == "go":
            free[entry.attempt] = gone.get(str(entry.body.get("after")), 0.0)
        elif entry.kind == "gone":
            gone[entry.attempt] = entry.at_s
        elif entry.kind == "accepted" and entry.attempt in planned:
            begun = max(planned[entry.attempt], free.get(entry.attempt, 0.0))
            found[entry.attempt] = max(entry.at_s - begun, 0.0)
    return found
