"""A policy's TOML: which contracts must hold where, at which grade, and on how much evidence.

Strict like a contract: whatever cannot be understood is refused with file, key and fix, for a rule
that is misread would let something through. Knows no evidence. The name is the file name without
``.toml``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from fleet.contract.config_file import Kind
from fleet.contract.fleet_file import Facts
from fleet.contract.model import Grade, Name, Positive, Table, tuples
from fleet.contract.named import list_files
from fleet.contract.vary import VARIES, parse_claims
from fleet.errors import PolicyError, UsageError

FOLDER = "policies"

Glob = Annotated[str, Field(pattern=r"^[A-Za-z0-9*?][A-Za-z0-9._*?@:\[\]-]{0,149}$")]
Share = Annotated[float, Field(gt=0.0, lt=1.0)]


class Rule(Table):
    """What must hold: each contract, in each claim of ``vary``, on each platform.

    ``platforms``: platforms that some unit shows now and that have all facts of one entry;
    ``fleet``: every platform of that fleet's units; exactly one of the two. ``min_units``: that
    took part, none with evidence older than ``max_age_days``. ``min_n``: records.
    """

    name: Annotated[str, Field(min_length=1, max_length=100)] = ""
    contracts: Annotated[tuple[Glob, ...], Field(min_length=1)]
    platforms: tuple[Facts, ...] = ()
    fleet: Name | None = None
    grade: Grade
    scope: Literal["same-unit", "same-class"] = "same-unit"
    vary: Annotated[tuple[str, ...], Field(min_length=1)] = ("none",)
    min_units: Positive = 1
    min_n: Positive = 1
    max_age_days: Annotated[float, Field(gt=0.0)] | None = None
    max_record_bound: Share | None = None
    max_process_bound: Share | None = None

    @model_validator(mode="before")
    @classmethod
    def _lists(cls, data: Any) -> Any:
        return tuples(data, "contracts", "platforms", "vary")

    def claims(self) -> tuple[tuple[str, ...], ...]:
        """What replays vary, a claim each."""
        return parse_claims(self.vary)


class Policy(Table):
    """The whole file. ``mode``: whether a rule that is not met is said, warned of, or blocks."""

    mode: Literal["info", "warn", "block"] = "block"
    rules: Annotated[tuple[Rule, ...], Field(min_length=1)]

    @model_validator(mode="before")
    @classmethod
    def _lists(cls, data: Any) -> Any:
        return tuples(data, "rules")


@dataclass(frozen=True)
class LoadedPolicy:
    """A policy and where it was read."""

    name: str
    path: Path
    policy: Policy


def list_policies(search: Sequence[Path]) -> list[str]:
    """Names of all policies in the search path, sorted."""
    return list_files(search, FOLDER)


def load_policy(name_or_file: str, search: Sequence[Path]) -> LoadedPolicy:
    """Load one policy by name or by file.

    Raises:
        PolicyError: it cannot be found, read or understood.
    """
    path, policy = Kind(FOLDER, "policy").load(name_or_file, search, Policy, PolicyError)
    rules = (_named(rule, number) for number, rule in enumerate(policy.rules, 1))
    policy = policy.model_copy(update={"rules": tuple(rules)})
    for fault in _faults(policy, str(path)):
        raise fault
    return LoadedPolicy(path.stem, path, policy)


def _named(rule: Rule, number: int) -> Rule:
    return rule if rule.name else rule.model_copy(update={"name": f"rule {number}"})


def _faults(policy: Policy, where: str) -> Iterator[UsageError]:
    """What each key says alone, and not beside the others."""
    names = [rule.name for rule in policy.rules]
    for number, rule in enumerate(policy.rules):
        key = f"rules[{number}]"
        if names.index(rule.name) != number:
            expected, got = "a name for each rule", f"{rule.name!r} twice"
            yield PolicyError(where, f"{key}.name", expected, got, "rename one")
        if bool(rule.platforms) == (rule.fleet is not None):
            got = "both" if rule.platforms else "neither"
            fix = "write platforms = [{ gpu_model = ... }], or fleet = NAME"
            yield PolicyError(where, key, "platforms or fleet", got, fix)
        if any(not facts.flat() for facts in rule.platforms):
            expected, got = "at least one fact in each entry", "an entry without one"
            fix = "name what the platform must be, or write fleet = NAME"
            yield PolicyError(where, f"{key}.platforms", expected, got, fix)
        yield from _faults_of_claims(rule, where, f"{key}.vary")


def _faults_of_claims(rule: Rule, where: str, key: str) -> Iterator[UsageError]:
    try:
        names = {name for claim in rule.claims() for name in claim}
    except UsageError as error:
        yield PolicyError(where, key, error.expected, error.got, "correct vary")
        return
    for name in sorted(names - set(VARIES)):
        yield PolicyError(where, key, f"of {', '.join(VARIES)}", repr(name), "correct vary")
