"""A policy held against the evidence: each contract, claim and platform, met or not, and why.

Judged anew with what the rule asks in place of what the contract asks: a grade, a scope, a claim.
*Failed* is a FAIL and nothing else; all that is short of a PASS with enough units, records and
recent evidence is *not covered*. A control is never gated: it must FAIL. Holds no verdict rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from fleet.contract.load import has_contract, list_contracts, load_contract
from fleet.contract.policy import LoadedPolicy, Rule
from fleet.errors import PolicyError, UsageError
from fleet.evidence.platform import Platform
from fleet.judge.present import DAY_S
from fleet.judge.sets import is_good
from fleet.judge.verdict import Verdict
from fleet.report.answers import Answers, Asked, ControlsByCampaign, known_contracts
from fleet.report.document import SCHEMA
from fleet.report.screen import age
from fleet.report.status import StatusRow, rows_of
from fleet.report.today import Today
from fleet.store import queries

Result = Literal["held", "failed", "not covered"]


@dataclass(frozen=True)
class Wanted:
    """A platform that a rule is about; ``missing`` says why there is none to look at."""

    platform: str
    missing: str = ""


@dataclass(frozen=True)
class Check:
    """One contract, claim and platform of a rule. ``words``: why it is met, or is not."""

    contract: str
    vary: tuple[str, ...]
    platform: str
    platform_label: str
    result: Result
    state: str
    words: str
    units: int = 0
    n: int = 0
    age_s: float | None = None

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        return vars(self) | {"vary": list(self.vary), "platform": self.platform or None}


@dataclass(frozen=True)
class RuleAnswer:
    """One rule; held when all of its checks are."""

    rule: Rule
    checks: tuple[Check, ...]

    @property
    def result(self) -> Result:
        """Failed over not covered over held; a rule about nothing is not covered."""
        return _worst([check.result for check in self.checks])

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        asked = self.rule.model_dump(mode="json", exclude={"name"}, exclude_none=True)
        checks = [check.to_json() for check in self.checks]
        return {"rule": self.rule.name, "result": self.result, "asks": asked, "checks": checks}


@dataclass(frozen=True)
class GateAnswer:
    """What ``fleet gate`` answers."""

    policy: str
    mode: str
    rules: tuple[RuleAnswer, ...]

    @property
    def result(self) -> Result:
        """Of all rules."""
        return _worst([rule.result for rule in self.rules])

    def exit_code(self) -> int:
        """0 held, 1 failed, 3 not covered; always 0 where the mode blocks nothing."""
        if self.mode != "block":
            return 0
        return {"held": 0, "failed": 1, "not covered": 3}[self.result]

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        return {
            "schema": SCHEMA,
            "policy": self.policy,
            "mode": self.mode,
            "result": self.result,
            "rules": [rule.to_json() for rule in self.rules],
        }


def _worst(results: Sequence[Result]) -> Result:
    order: tuple[Result, ...] = ("failed", "not covered", "held")
    return min(results, key=order.index, default="not covered")


@dataclass(frozen=True)
class _Room:
    """What every check reads."""

    answers: Answers
    controls: ControlsByCampaign
    facts: Mapping[str, Any]
    now_s: float

    def label(self, platform: str) -> str:
        if platform not in self.facts:
            return ""
        return Platform(self.facts[platform]["facts"]).label()


def gate_of(
    loaded: LoadedPolicy,
    mode: str,
    scopes: Sequence[Sequence[Wanted]],
    answers: Answers,
    search: Sequence[Path],
    cache: Path,
    now_s: float,
) -> GateAnswer:
    """Every rule's answer.

    Args:
        loaded: the policy.
        mode: info, warn or block.
        scopes: one for each rule: where it must hold.
        answers: the open store.
        search: the config path.
        cache: where demo checkpoints are kept.
        now_s: the time that ages are counted to.

    Raises:
        PolicyError: a rule names a contract that nobody has, or a control.
    """
    known = known_contracts(answers.store)
    con = answers.store.con
    room = _Room(answers, ControlsByCampaign(answers, known), queries.platforms(con), now_s)
    bodies = {(row.name, row.execution_id): row.body for row in queries.contracts(con)}
    told: dict[str, tuple[list[Asked], str]] = {}
    today = Today(bodies, search, cache)
    found = []
    for number, (rule, scope) in enumerate(zip(loaded.policy.rules, scopes, strict=True)):
        checks: list[Check] = []
        for name in _contracts(rule, f"rules[{number}].contracts", loaded.path, known, search):
            if name not in told:
                ours = [asked for asked in known if asked.name == name]
                told[name] = today.about(ours, name)
            checks.extend(_checks(room, rule, name, *told[name], scope))
        found.append(RuleAnswer(rule, tuple(checks)))
    return GateAnswer(loaded.name, mode, tuple(found))


def _contracts(
    rule: Rule, key: str, path: Path, known: Sequence[Asked], search: Sequence[Path]
) -> list[str]:
    """The contracts that a rule names, each once, controls left out of what wildcards match."""
    names = sorted({asked.name for asked in known} | set(list_contracts(search)))
    controls = {asked.name for asked in known if asked.expect is not None}
    found: dict[str, None] = {}
    for glob in rule.contracts:
        wild = set(glob) & set("*?[")
        matched = [n for n in names if fnmatchcase(n, glob)] if wild else [glob]
        matched = [n for n in matched if not (wild and _is_control(n, controls, search))]
        if not matched or not (wild or glob in names or has_contract(glob, search)):
            expected = "contracts of the store or the config path"
            raise PolicyError(str(path), key, expected, f"none is {glob!r}", "correct the name")
        if not wild and _is_control(glob, controls, search):
            expected, got = "contracts that must PASS", f"the control {glob}"
            raise PolicyError(str(path), key, expected, got, "leave it out: campaigns carry it")
        found |= dict.fromkeys(matched)
    return list(found)


def _is_control(name: str, controls: set[str], search: Sequence[Path]) -> bool:
    if name in controls:
        return True
    try:
        return (
            has_contract(name, search) and load_contract(name, search).contract.expect is not None
        )
    except UsageError:
        return False  # its check says why it cannot be read


def _checks(
    room: _Room,
    rule: Rule,
    name: str,
    current: Sequence[Asked],
    note: str,
    scope: Sequence[Wanted],
) -> Iterator[Check]:
    """Of one contract: every claim on every platform."""
    if len(current) > 1:
        note = f"{len(current)} contracts bore this name, and the config path has none of them"
    for vary in rule.claims():
        rows: list[StatusRow] = []
        if len(current) == 1:
            asks = {"grade": rule.grade, "scope": rule.scope, "vary": vary}
            require = current[0].require.model_copy(update=asks)
            asked = replace(current[0], require=require)
            rows = rows_of(room.answers, asked, room.controls, room.facts, room.now_s)
        for wanted in scope:
            label = room.label(wanted.platform)
            if wanted.missing or len(current) != 1:
                words = wanted.missing or note
                yield Check(name, vary, wanted.platform, label, "not covered", "UNTESTED", words)
                continue
            here = [r for r in rows if r.platform == wanted.platform and r.vary == vary]
            yield _check(room, rule, asked, vary, wanted.platform, here)


def _check(
    room: _Room,
    rule: Rule,
    asked: Asked,
    vary: tuple[str, ...],
    platform: str,
    rows: Sequence[StatusRow],
) -> Check:
    """Any FAIL fails; one row that lacks nothing is enough for the rest."""
    none = Check(
        asked.name, vary, platform, room.label(platform), "not covered", "UNTESTED", "never tested"
    )
    told = [_of_row(room, rule, asked, none, row) for row in rows]
    order: tuple[Result, ...] = ("failed", "held", "not covered")
    return min(told, key=lambda check: order.index(check.result), default=none)


def _of_row(room: _Room, rule: Rule, asked: Asked, none: Check, row: StatusRow) -> Check:
    verdict = row.verdict
    if verdict is None:
        return replace(none, state=row.word, words=row.note)
    units = _units(room, rule, asked, row)
    base = replace(
        none, state=row.word, words=verdict.reason, units=units, n=verdict.records, age_s=row.age_s
    )
    if verdict.verdict == "FAIL":
        return replace(base, result="failed")
    if row.state != "PASS":
        return base
    short = list(_short(rule, verdict, units, row.age_s))
    if short:
        return replace(base, words=f"PASS, but {'; '.join(short)}")
    return replace(base, result="held")


def _units(room: _Room, rule: Rule, asked: Asked, row: StatusRow) -> int:
    """Units whose good replays are recent enough: two of each, or one where units are compared."""
    assert row.verdict is not None
    days = rule.max_age_days
    since_s = float("-inf") if days is None else room.now_s - days * DAY_S
    counts: dict[str, int] = {}
    for s in queries.summaries(room.answers.store.con, execution_id=asked.execution_id):
        same = (s.platform, s.vary, s.traced) == (row.platform, row.vary, row.verdict.traced)
        if same and is_good(s, asked.require) and (s.accepted_at_s or 0.0) >= since_s:
            counts[s.unit] = counts.get(s.unit, 0) + 1
    needed = 2 if rule.scope == "same-unit" else 1
    return sum(count >= needed for count in counts.values())


def _short(rule: Rule, verdict: Verdict, units: int, age_s: float | None) -> Iterator[str]:
    """What a PASS lacks."""
    days = rule.max_age_days
    if days is not None and (age_s is None or age_s > days * DAY_S):
        yield f"it is {age(age_s)} old, at most {days:g} d asked"
    if rule.scope == "same-class" and verdict.scope != "same-class":
        yield f"its scope is {verdict.scope}"
    if units < rule.min_units:
        recent = "" if days is None else " within that age"
        yield f"units = {units}{recent}, {rule.min_units} asked"
    if verdict.records < rule.min_n:
        yield f"n = {verdict.records}, {rule.min_n} asked"
    for kind, most in (("record", rule.max_record_bound), ("process", rule.max_process_bound)):
        bound = verdict.bounds.get(kind)
        if most is not None and (bound is None or bound > most):
            told = "not bounded" if bound is None else f"<= {bound:.3%}"
            yield f"per {kind}: {told}, <= {most:.3%} asked"
