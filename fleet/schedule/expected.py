"""The units that a fleet's TOML expects, with the platform that each showed last.

What a unit shows counts where it is what its node must be; else it is said why it does not. Knows
no verdict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fleet.contract.fleet_file import Facts, LoadedFleet
from fleet.evidence.platform import Platform
from fleet.report.answers import Answers
from fleet.report.in_fleet import FleetUnit, InFleet
from fleet.schedule.history import seen_in
from fleet.schedule.inventory import fact_of
from fleet.schedule.nightly import read_fleet
from fleet.schedule.roster import expected_units
from fleet.store import queries


def fleet_of(name: str, answers: Answers, search: Sequence[Path]) -> InFleet:
    """A fleet, as the store knows its units.

    Raises:
        FleetFileError: it cannot be found, read or understood.
    """
    loaded = read_fleet(name, search)
    seen = seen_in(answers.store)
    units = tuple(units_of(loaded, answers))
    return InFleet(loaded.name, units, {s.unit: s.name for s in seen})


def units_of(loaded: LoadedFleet, answers: Answers) -> Iterator[FleetUnit]:
    """What each expected unit showed last, where that is what its node must be."""
    seen, facts = seen_in(answers.store), present_facts(answers)
    newest = {s.name: s.platform for s in sorted(seen, key=lambda s: s.at_s)}
    nodes = {node.label: node for node in loaded.fleet.nodes}
    for unit in expected_units(loaded.fleet, seen):
        night = tuple(c for c in loaded.fleet.night.contracts if unit.takes(c))
        who = f"unit {unit.name} of fleet {loaded.name}"
        platform = newest.get(unit.name)
        if platform is None or platform not in facts:
            yield FleetUnit(unit.name, "", night, f"{who} never ran a replay")
        elif odd := differing(nodes[unit.node].platform, facts[platform]):
            told = ", ".join(odd)
            yield FleetUnit(unit.name, "", night, f"{who} shows another platform: {told}")
        else:
            label = Platform(facts[platform]).label()
            yield FleetUnit(unit.name, platform, night, label=label)


def present_facts(answers: Answers) -> dict[str, dict[str, Any]]:
    """Platform that some unit shows now -> its facts."""
    known = queries.platforms(answers.store.con)
    return {name: known[name]["facts"] for name in sorted(answers.present) if name in known}


def differing(entry: Facts, facts: Mapping[str, Any]) -> list[str]:
    """What is asked of a platform and is not so, in words."""
    found = ((key, wanted, fact_of(facts, key)) for key, wanted in entry.flat().items())
    return [f"{key} {got} and not {wanted}" for key, wanted, got in found if got != wanted]
