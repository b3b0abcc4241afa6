"""Contracts by platforms: one word, k of N units and the age in a cell (``fleet matrix``).

Cells are rows of a status; where a claim stands in two ways on one platform (traced and not), the
first of :data:`TELLING` is shown. A cell without a row was never tested. Attempts that ended before
they could say where they ran have a column of their own. Holds no rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fleet.evidence.platform import Platform
from fleet.report import screen
from fleet.report.answers import Answers
from fleet.report.document import SCHEMA
from fleet.report.screen import Cells
from fleet.report.status import TELLING, StatusRow
from fleet.report.terminal import told_name
from fleet.store import queries

GAP, NARROW_GAP = 3, 1
"""What a column costs beside its text, with lines and without."""


@dataclass(frozen=True)
class Cell:
    """``rows``: of the claim on the platform, the most telling first; none where it has no
    evidence. ``units_known``: how many units ever showed the platform."""

    rows: tuple[StatusRow, ...]
    units_known: int

    @property
    def row(self) -> StatusRow | None:
        """The one that is shown."""
        return self.rows[0] if self.rows else None

    @property
    def word(self) -> str:
        """A control that does what it must *behaves*, whatever its verdict."""
        if self.row is None:
            return "UNTESTED"
        return "behaves" if self.row.behaves else self.row.word

    def text(self) -> str:
        """For a person."""
        if self.row is None:
            return "-"
        known = max(self.units_known, self.row.units_tested)
        word = self.word.replace("FAIL on predecessor", "FAIL on pred.")
        age = screen.age(self.row.age_s).replace(" ", "")
        return f"{word} {self.row.units_tested}/{known} {age}".removesuffix(" -")

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        row = self.row
        return {
            "state": row.word if row else "UNTESTED",
            "behaves": bool(row and row.behaves),
            "grade": row.verdict.attained_grade if row and row.verdict else None,
            "units_tested": row.units_tested if row else 0,
            "units_known": self.units_known,
            "age_s": row.age_s if row else None,
            "expires_at_s": row.expires_at_s if row else None,
        }


@dataclass(frozen=True)
class Line:
    """One contract and claim. ``cells``: one per column, in the order of the columns."""

    contract: str
    vary: tuple[str, ...]
    cells: tuple[Cell, ...]

    @property
    def name(self) -> str:
        """As a person is told."""
        return told_name(self.contract, self.vary)


@dataclass(frozen=True)
class Matrix:
    """``platforms``: digest -> label, the columns."""

    platforms: Mapping[str, str]
    lines: tuple[Line, ...]

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        columns = [{"platform": p, "platform_label": label} for p, label in self.platforms.items()]
        lines = [
            {
                "contract": line.contract,
                "vary": list(line.vary),
                "cells": {
                    p: cell.to_json() for p, cell in zip(self.platforms, line.cells, strict=True)
                },
            }
            for line in self.lines
        ]
        return {"schema": SCHEMA, "platforms": columns, "contracts": lines}


def matrix_of(answers: Answers, rows: Sequence[StatusRow], everywhere: bool = True) -> Matrix:
    """The rows of a status as a matrix.

    Args:
        answers: the open store.
        rows: of a status, narrowed or not.
        everywhere: with the platforms that units show now and that no row is about.
    """
    facts = queries.platforms(answers.store.con)
    units = queries.units_of_platforms(answers.store.con)
    shown = {row.platform for row in rows if row.platform or row.verdict}
    shown |= answers.present & set(facts) if everywhere else set()
    labels = {p: _label(facts, p) for p in shown}
    ordered = dict(sorted(labels.items(), key=lambda item: (item[1], item[0])))
    claims: dict[tuple[str, tuple[str, ...]], dict[str, list[StatusRow]]] = {}
    for row in rows:
        claims.setdefault((row.contract, row.vary), {}).setdefault(row.platform, []).append(row)
    lines = tuple(
        Line(name, vary, tuple(Cell(_told_first(own.get(p, ())), units.get(p, 0)) for p in ordered))
        for (name, vary), own in claims.items()
    )
    return Matrix(ordered, lines)


def _label(facts: Mapping[str, Any], platform: str) -> str:
    if not platform:
        return "no platform stated"
    return Platform(facts[platform]["facts"]).label() if platform in facts else "unknown"


def _told_first(rows: Sequence[StatusRow]) -> tuple[StatusRow, ...]:
    return tuple(sorted(rows, key=lambda row: TELLING.index(row.state)))


def matrix_cells(matrix: Matrix) -> Cells:
    """One line per cell: contract, claim, platform."""
    columns = ("contract", "vary", "platform", "platform_label", "state", "behaves", "grade",
               "units_tested", "units_known", "age_s", "expires_at")  # fmt: skip
    return columns, _cells(matrix)


def _cells(matrix: Matrix) -> Iterator[list[Any]]:
    for line in matrix.lines:
        for (platform, label), cell in zip(matrix.platforms.items(), line.cells, strict=True):
            told = cell.to_json()
            expires = told.pop("expires_at_s")
            values = [*told.values(), None if expires is None else screen.utc(expires)]
            yield [line.contract, ",".join(line.vary) or "none", platform, label, *values]


def print_matrix(console: Console, matrix: Matrix) -> None:
    """As many platforms side by side as fit, the others below; then what the columns are."""
    names = [f"P{number}" for number in range(1, len(matrix.platforms) + 1)]
    texts = [[cell.text() for cell in line.cells] for line in matrix.lines]
    widths = [max([len(n), *(len(row[i]) for row in texts)]) for i, n in enumerate(names)]
    first = max([len("contract"), *(len(line.name) for line in matrix.lines)])
    gap = NARROW_GAP if console.width < screen.NARROW else GAP
    room = console.width - min(first, console.width // 2) - gap - 1
    for start, end in _blocks([width + gap for width in widths], room):
        more = f", {names[start]} to {names[end - 1]}" if end - start < len(names) else ""
        table = screen.table(console, f"matrix{more}", "contract")
        _fill(table, matrix, names, start, end)
        console.print(table)
    if not names:
        for line in matrix.lines:
            screen.verbatim(console, f"{line.name}: never tested")
    for name, (platform, label) in zip(names, matrix.platforms.items(), strict=True):
        digest = platform.removeprefix("sha256:")[:12]
        screen.verbatim(console, f"{name}: {label} [{digest}]")
    screen.verbatim(console, "cell: state, units tested / known, age; - never tested there")


def _blocks(widths: Sequence[int], room: int) -> Iterator[tuple[int, int]]:
    """Beginnings and ends of runs of columns that fit; at least one column a run."""
    start = 0
    while start < len(widths):
        end = start + 1
        while end < len(widths) and sum(widths[start : end + 1]) <= room:
            end += 1
        yield start, end
        start = end


def _fill(table: Table, matrix: Matrix, names: Sequence[str], start: int, end: int) -> None:
    for name in names[start:end]:
        table.add_column(name, overflow="fold")
    for line in matrix.lines:
        cells = line.cells[start:end]
        texts = (Text(c.text(), style=screen.COLOURS.get(c.word, "")) for c in cells)
        table.add_row(Text(line.name), *texts)
