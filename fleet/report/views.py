"""What ``fleet query`` can be asked: the store's views, and those that the judge fills.

``verdicts``, ``suspects`` and ``coverage`` are derived anew for each query that names one, by the
rooms behind ``status``, ``units`` and ``matrix``; SQL holds no rule. Digests are 32 bytes in SQL
and ``sha256:...`` in what is shown.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from rich.console import Console
from rich.text import Text

from fleet.contract.canonical import from_text, to_text
from fleet.report import screen
from fleet.report.answers import Answers
from fleet.report.document import SCHEMA, STATUS_COLUMNS, status_cells
from fleet.report.matrix import matrix_of
from fleet.report.screen import Cells
from fleet.report.status import StatusRow
from fleet.report.units import unit_rows
from fleet.store import sandbox
from fleet.store.open import Connection

STORED = {
    "records": "one row per sample and arm of an attempt, straight from Parquet",
    "margins": "the smallest top-1 minus top-2 of each record; from Parquet too",
    "pairs": "every two COMPLETE attempts of one set: do their roots agree, by arm and grade",
    "classes": "who shares a root: attempts and units by set, arm, grade and root",
    "status": "attempts of each set by state: counts, no verdict",
}
"""Views of the store, in SQL: counts and equal roots, no verdict."""

_TYPES = {
    "execution_id": "BLOB", "platform": "BLOB", "traced": "BOOLEAN", "units_tested": "BIGINT",
    "units_known": "BIGINT", "n": "BIGINT", "record_bound": "DOUBLE", "process_bound": "DOUBLE",
    "age_s": "DOUBLE", "accepted_at": "TIMESTAMPTZ", "expires_at": "TIMESTAMPTZ",
    "last_regression": "TIMESTAMPTZ", "predecessor": "BLOB",
}  # fmt: skip
_VERDICTS = {name: _TYPES.get(name, "VARCHAR") for name in STATUS_COLUMNS}
_SUSPECTS = {
    "unit": "VARCHAR", "contract": "VARCHAR", "platform": "BLOB", "state": "VARCHAR",
    "suspect": "BOOLEAN", "p": "DOUBLE", "odd": "BIGINT", "replays": "BIGINT",
    "fresh_odd": "BIGINT", "fresh_replays": "BIGINT", "elsewhere_odd": "BIGINT",
    "elsewhere_replays": "BIGINT", "raised_by": "VARCHAR", "decisions": "VARCHAR",
}  # fmt: skip
_COVERAGE = {
    "contract": "VARCHAR", "vary": "VARCHAR", "platform": "BLOB", "platform_label": "VARCHAR",
    "tested": "BOOLEAN", "state": "VARCHAR", "units_tested": "BIGINT", "units_known": "BIGINT",
}  # fmt: skip

Statuses = Callable[[], Sequence[StatusRow]]
"""All rows of a status, derived when they are asked for."""


@dataclass(frozen=True)
class Judged:
    """A view that the judge fills."""

    words: str
    columns: Mapping[str, str]
    rows: Callable[[Answers, Statuses, float], list[list[Any]]]


def _verdicts(answers: Answers, statuses: Statuses, now_s: float) -> list[list[Any]]:
    columns, cells = status_cells(statuses())
    digests = [columns.index(n) for n in ("execution_id", "platform", "predecessor")]
    return [
        [_bytes(value) if i in digests else value for i, value in enumerate(row)] for row in cells
    ]


def _suspects(answers: Answers, statuses: Statuses, now_s: float) -> list[list[Any]]:
    found = []
    for row in unit_rows(answers.store, answers.landing, now_s):
        decisions = "; ".join(d.in_words() for d in row.decisions) or None
        for contract, s in row.suspicions:
            found.append([
                row.unit, contract, _bytes(row.platform), row.state, s.suspect, s.p, s.odd,
                s.replays, s.fresh_odd, s.fresh_replays, s.elsewhere_odd, s.elsewhere_replays,
                s.raised_by, decisions,
            ])  # fmt: skip
        if not row.suspicions and row.state == "quarantined":
            head = [row.unit, row.decisions[0].contract, _bytes(row.platform), row.state]
            found.append([*head, False, None, row.odd, row.replays, *[None] * 5, decisions])
    return found


def _coverage(answers: Answers, statuses: Statuses, now_s: float) -> list[list[Any]]:
    matrix = matrix_of(answers, statuses())
    return [
        [
            line.contract, ",".join(line.vary) or "none", _bytes(platform), label,
            cell.row is not None and cell.row.verdict is not None, told["state"],
            told["units_tested"], told["units_known"],
        ]
        for line in matrix.lines
        for (platform, label), cell in zip(matrix.platforms.items(), line.cells, strict=True)
        for told in [cell.to_json()]
    ]  # fmt: skip


JUDGED = {
    "verdicts": Judged("fleet status as a table", _VERDICTS, _verdicts),
    "suspects": Judged("units with an odd replay, and quarantined ones", _SUSPECTS, _suspects),
    "coverage": Judged(
        "every contract and claim on every platform that a unit shows; tested = false: never",
        _COVERAGE,
        _coverage,
    ),
}


def fill(
    con: Connection, named: Sequence[str], answers: Answers, statuses: Statuses, now_s: float
) -> None:
    """Hand in the judged views that a query names."""
    for name in sorted(set(named) & set(JUDGED)):
        view = JUDGED[name]
        sandbox.hand_in(con, name, view.columns, view.rows(answers, statuses, now_s))


def _bytes(text: str | None) -> bytes | None:
    return from_text(text) if text else None


@dataclass(frozen=True)
class ViewHelp:
    """One view, as a person is told."""

    name: str
    words: str
    columns: tuple[str, ...]


def views_of(con: Connection) -> list[ViewHelp]:
    """Every documented view with its columns."""
    found = []
    for name, words in STORED.items():
        rows = con.execute(f"DESCRIBE {name}").fetchall()
        found.append(ViewHelp(name, words, tuple(str(row[0]) for row in rows)))
    found += [ViewHelp(name, v.words, tuple(v.columns)) for name, v in JUDGED.items()]
    return found


def views_document(views: Sequence[ViewHelp]) -> dict[str, Any]:
    """JSON-able form."""
    return {
        "schema": SCHEMA,
        "views": [vars(view) | {"columns": list(view.columns)} for view in views],
    }


def print_views(console: Console, views: Sequence[ViewHelp]) -> None:
    """Name, what it holds, columns."""
    for view in views:
        screen.verbatim(console, Text(view.name, style="bold") + Text(f": {view.words}"))
        screen.verbatim(console, f"  {', '.join(view.columns)}")


def result_document(result: sandbox.Result) -> dict[str, Any]:
    """``{schema, columns, rows, truncated}``; a row is a list, since names may come twice."""
    columns = [
        {"name": name, "type": kind}
        for name, kind in zip(result.columns, result.types, strict=True)
    ]
    rows = [[_json(value) for value in row] for row in result.rows]
    return {"schema": SCHEMA, "columns": columns, "rows": rows, "truncated": result.truncated}


def result_cells(result: sandbox.Result) -> Cells:
    """As CSV; lists and tables as JSON."""
    return result.columns, ([_plain(value) for value in row] for row in result.rows)


def print_result(console: Console, result: sandbox.Result) -> None:
    """A table, and whether there is more."""
    table = screen.table(console, "", *result.columns)
    for row in result.rows:
        table.add_row(*(Text("-" if v is None else str(_plain(v))) for v in row))
    console.print(table)
    more = ", and there are more: --limit" if result.truncated else ""
    screen.verbatim(console, f"{len(result.rows)} rows{more}")


def _plain(value: Any) -> Any:
    told = _json(value)
    return json.dumps(told, ensure_ascii=False) if isinstance(told, list | dict) else told


def _json(value: Any) -> Any:
    """What JSON can hold: digests and other bytes as text, instants as ISO text."""
    if isinstance(value, bytes):
        return to_text(value) if len(value) == 32 else value.hex()
    if isinstance(value, list | tuple):
        return [_json(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _json(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta | Decimal | UUID):
        return str(value)
    return value
