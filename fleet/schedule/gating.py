"""Where a rule of a policy must hold: platforms by their facts, or those of a fleet's units.

Only platforms that some unit shows now count, and whatever is expected and not there is said, so
that no rule is met by being about nothing. Knows no verdict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fleet.contract.fleet_file import Facts
from fleet.contract.policy import LoadedPolicy, Rule, load_policy
from fleet.errors import PolicyError, UsageError
from fleet.report.answers import Answers
from fleet.report.gate import Wanted
from fleet.schedule.expected import differing, present_facts, units_of
from fleet.schedule.nightly import read_fleet


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
    if rule.fleet is None:
        facts = present_facts(answers)
        found = [wanted for entry in rule.platforms for wanted in _by_facts(entry, facts)]
    else:
        units = units_of(read_fleet(rule.fleet, search), answers)
        found = [Wanted(unit.platform, unit.missing) for unit in units]
    return tuple(dict.fromkeys(found))


def _by_facts(entry: Facts, facts: Mapping[str, Mapping[str, Any]]) -> Iterator[Wanted]:
    found = [name for name, own in facts.items() if not differing(entry, own)]
    yield from (Wanted(name) for name in found)
    if not found:
        told = ", ".join(f"{key} {value}" for key, value in entry.flat().items())
        yield Wanted("", f"no unit shows a platform with {told}")
