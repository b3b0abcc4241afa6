"""Which rows are shown: by model, backend, GPU, library version, time, state.

A filter asks what is known: a row without a platform has no GPU, so no filter of GPUs shows it.
Globs, upper and lower case alike. Decides nothing about a verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from fleet.contract.load import load_contract
from fleet.errors import UsageError
from fleet.report.answers import Answers
from fleet.report.status import StatusRow
from fleet.store import queries

STATES = ("PASS", "FAIL", "REGRESSED", "VOID", "STALE", "UNTESTED", "FAIL on predecessor")


@dataclass(frozen=True)
class Filters:
    """What was asked; None and nothing ask nothing. Times are seconds since the epoch."""

    model: str | None = None
    backend: str | None = None
    gpu: str | None = None
    packages: tuple[tuple[str, str], ...] = ()
    since_s: float | None = None
    until_s: float | None = None
    states: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        model: str | None,
        backend: str | None,
        gpu: str | None,
        packages: Sequence[str],
        since: str | None,
        until: str | None,
        states: Sequence[str],
    ) -> Filters:
        """As given on a command line.

        Raises:
            UsageError: a time, a version or a state that is none.
        """
        return cls(
            model, backend, gpu, tuple(_package(text) for text in packages),
            None if since is None else _time("--since", since, of_day=timedelta()),
            None if until is None else _time("--until", until, of_day=timedelta(days=1)),
            tuple(_state(text) for text in states),
        )  # fmt: skip

    def contract(self, body: Mapping[str, Any]) -> bool:
        """Does a contract fit, by what the landing keeps of it?"""
        part = body.get("execution_part") or {}
        checkpoint = (body.get("asked") or {}).get("checkpoint")
        backend = (part.get("quantization") or {}).get("backend")
        return _fits(checkpoint, _within(self.model)) and _fits(backend, self.backend)

    def platform(self, facts: Mapping[str, Any] | None) -> bool:
        """Does a platform fit, by its facts; None when it is not known."""
        known = facts or {}
        packages = known.get("packages")
        packages = packages if isinstance(packages, Mapping) else {}
        return _fits(known.get("gpu_model"), _within(self.gpu)) and all(
            _fits((packages.get(name) or {}).get("version"), version)
            for name, version in self.packages
        )

    def time(self, at_s: float | None) -> bool:
        """Does evidence of that age fit?"""
        if self.since_s is None and self.until_s is None:
            return True
        late = at_s is not None and (self.since_s is None or at_s >= self.since_s)
        return late and (self.until_s is None or (at_s or 0.0) < self.until_s)

    def any_state(self, words: Iterable[str]) -> bool:
        """Is one of them asked for?"""
        return not self.states or bool(set(words) & set(self.states))


def narrowed(
    rows: Iterable[StatusRow], filters: Filters, answers: Answers, search: Sequence[Path]
) -> list[StatusRow]:
    """The rows of a status that fit."""
    if filters == Filters():
        return list(rows)
    con = answers.store.con
    bodies = {(row.name, row.execution_id): row.body or {} for row in queries.contracts(con)}
    facts = {name: body["facts"] for name, body in queries.platforms(con).items()}
    return [
        row
        for row in rows
        if filters.contract(bodies.get((row.contract, row.execution_id)) or _file(row, search))
        and filters.platform(facts.get(row.platform))
        and filters.time(row.verdict.accepted_at_s if row.verdict else None)
        and filters.any_state((row.state, row.word))
    ]


def _file(row: StatusRow, search: Sequence[Path]) -> Mapping[str, Any]:
    """The same of a contract without evidence, as its file says; empty if that cannot be read."""
    try:
        contract = load_contract(row.contract, search).contract
    except UsageError:
        return {}
    part = {"quantization": {"backend": contract.quantization.backend}}
    return {"execution_part": part, "asked": {"checkpoint": contract.model.checkpoint}}


def _within(wanted: str | None) -> str | None:
    """Words without a wildcard may stand anywhere."""
    return f"*{wanted}*" if wanted and not set(wanted) & set("*?[") else wanted


def _fits(value: object, wanted: str | None) -> bool:
    if wanted is None:
        return True
    return isinstance(value, str) and fnmatchcase(value.lower(), wanted.lower())


def _package(text: str) -> tuple[str, str]:
    name, equals, version = text.partition("=")
    if not name or not equals or not version.lstrip("="):
        raise UsageError("command line", "--package", "NAME=VERSION", repr(text), "torch=2.13.0")
    return name.lower(), version.lstrip("=")


def _time(option: str, text: str, of_day: timedelta) -> float:
    """A date stands for its beginning, or its end; a time without a zone is in UTC."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        expected = "a date or an ISO time"
        raise UsageError(
            "command line", option, expected, repr(text), "like 2026-11-30, or 2026-11-30T18:00Z"
        ) from None
    found = found if found.tzinfo else found.replace(tzinfo=UTC)
    whole_day = len(text) <= len("2026-11-30")
    return (found + of_day if whole_day else found).timestamp()


def _state(text: str) -> str:
    found = next((state for state in STATES if state.lower() == text.lower()), None)
    if found is None:
        expected = f"one of {', '.join(STATES)}"
        raise UsageError("command line", "--state", expected, repr(text), "correct it")
    return found
