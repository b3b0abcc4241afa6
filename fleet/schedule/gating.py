"""Where a rule of a policy must hold: platforms by their facts, or those of a fleet's units.

Only platforms that some unit shows now count, and whatever is expected and not there is said, so
that no rule is met by being about nothing. Knows no verdict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fleet.contract.fleet_file import Facts, Fleet
from fleet.contract.policy import LoadedPolicy, Rule, load_policy
from fleet.errors import PolicyError, UsageError
from fleet.report.answers import Answers
from fleet.report.gate import Wanted
from fleet.schedule.history import seen_in
from fleet.schedule.inventory import fact_of
from fleet.schedule.nightly import read_fleet
from fleet.schedule.roster import expected_units
from fleet.store import queries


def read_policy(name: str, search: Sequence[Path]) -> LoadedPolicy:
    """A policy, with every fleet that it names.

    Raises:
        PolicyError: it cannot be found, read or understood, or a fleet of it cannot.
    """
    loaded = load_policy(name, search)
    for number, rule in enumerate(loaded.policy.rules):
        if rule.fleet is not None:
            try:
                read_fleet(rule.fleet, search)
            except UsageError as error:
                key = f"rules[{number}].fleet"
                raise PolicyError(
                    str(loaded.path), key, error.expected, f"{error.where}: {error.got}", error.fix
                ) from error
    return loaded


def scope_of(rule: Rule, answers: Answers, search: Sequence[Path]) -> tuple[Wanted, ...]:
    """Every platform that a rule is about, each once, and what it is about and is not there."""
    known = queries.platforms(answers.store.con)
    facts = {name: known[name]["facts"] for name in sorted(answers.present) if name in known}
    if rule.fleet is None:
        found = [wanted for entry in rule.platforms for wanted in _by_facts(entry, facts)]
    else:
        found = list(_of_fleet(rule.fleet, read_fleet(rule.fleet, search).fleet, answers, facts))
    return tuple(dict.fromkeys(found))


def _by_facts(entry: Facts, facts: Mapping[str, Mapping[str, Any]]) -> Iterator[Wanted]:
    found = [name for name, own in facts.items() if not _differing(entry, own)]
    yield from (Wanted(name) for name in found)
    if not found:
        told = ", ".join(f"{key} {value}" for key, value in entry.flat().items())
        yield Wanted("", f"no unit shows a platform with {told}")


def _of_fleet(
    name: str, fleet: Fleet, answers: Answers, facts: Mapping[str, Mapping[str, Any]]
) -> Iterator[Wanted]:
    """What each expected unit showed last, where that is what its node must be."""
    seen = seen_in(answers.store)
    newest = {s.name: s.platform for s in sorted(seen, key=lambda s: s.at_s)}
    nodes = {node.label: node for node in fleet.nodes}
    for unit in expected_units(fleet, seen):
        platform = newest.get(unit.name)
        if platform is None or platform not in facts:
            yield Wanted("", f"unit {unit.name} of fleet {name} never ran a replay")
        elif odd := _differing(nodes[unit.node].platform, facts[platform]):
            told = ", ".join(odd)
            yield Wanted("", f"unit {unit.name} of fleet {name} shows another platform: {told}")
        else:
            yield Wanted(platform)


def _differing(entry: Facts, facts: Mapping[str, Any]) -> list[str]:
    found = ((key, wanted, fact_of(facts, key)) for key, wanted in entry.flat().items())
    return [f"{key} {got} and not {wanted}" for key, wanted, got in found if got != wanted]
