"""Verbs that only read: ``status matrix history diff query gate``. As thin as the command line.

Each calls the room that does it; what is derived, and which rules hold, is theirs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from fleet.errors import UsageError
from fleet.options import ExpectedFleet, Form, Narrow, TableForm, Where, grouped

if TYPE_CHECKING:
    from fleet.report.answers import Answers
    from fleet.report.filters import Filters
    from fleet.report.status import StatusRow
    from fleet.schedule.places import Places

Names = Annotated[list[str] | None, typer.Argument(help="Contract names; all if none.")]


@contextmanager
def _answers(where: Where) -> Iterator[Answers]:
    from fleet.report.answers import Answers

    with where.places().open_store() as store:
        yield Answers(store, where.mirrored())


def _rows(
    answers: Answers,
    contracts: Sequence[str] | None,
    places: Places,
    filters: Filters,
    fleet: str | None,
) -> list[StatusRow]:
    """Rows of a status as they were asked for."""
    from fleet.report.filters import narrowed
    from fleet.report.in_fleet import in_fleet
    from fleet.report.status import status_rows

    now_s = time.time()
    rows = status_rows(answers, contracts or [], places.search, places.cache, now_s)
    if fleet is not None:
        from fleet.schedule.expected import fleet_of

        expected = fleet_of(fleet, answers, places.search)
        told = {row.contract for row in rows}
        if new := [name for name in expected.contracts if not contracts and name not in told]:
            rows += status_rows(answers, new, places.search, places.cache, now_s)
        rows = in_fleet(rows, expected)
    return narrowed(rows, filters, answers, places.search)


@grouped
def status(
    *,
    contracts: Names = None,
    where: Where,
    narrow: Narrow,
    form: TableForm,
    fleet: ExpectedFleet = None,
) -> None:
    """Which contracts PASS, where: grade, records, bounds, age, expiry, regressions."""
    from fleet.report.document import status_cells, status_document
    from fleet.report.status import exit_code
    from fleet.report.terminal import print_status

    form.check()
    filters, places = narrow.filters(), where.places()
    with _answers(where) as answers:
        rows = _rows(answers, contracts, places, filters, fleet)
    form.show(status_document, status_cells, print_status, rows)
    raise typer.Exit(exit_code(rows))


@grouped
def matrix(
    *,
    contracts: Names = None,
    where: Where,
    narrow: Narrow,
    form: TableForm,
    fleet: ExpectedFleet = None,
) -> None:
    """Contracts by platforms: state, k of N units and age in each cell."""
    from fleet.report.filters import Filters
    from fleet.report.matrix import Matrix, matrix_cells, matrix_of, print_matrix

    form.check()
    filters, places = narrow.filters(), where.places()
    with _answers(where) as answers:
        rows = _rows(answers, contracts, places, filters, fleet)
        found = matrix_of(answers, rows, everywhere=filters == Filters())
    form.show(Matrix.to_json, matrix_cells, print_matrix, found)


@grouped
def history(
    contract: Annotated[str, typer.Argument(help="Contract name.")],
    where: Where,
    narrow: Narrow,
    form: TableForm,
) -> None:
    """One contract over time: what each campaign changed, and the attempts behind it."""
    from fleet.report.history import History, history_cells, history_of, print_history

    form.check()
    filters, places = narrow.filters(), where.places()
    with _answers(where) as answers:
        found = history_of(answers, contract, places.search, places.cache, filters)
    form.show(History.to_json, history_cells, print_history, found)


@grouped
def diff(
    a: Annotated[
        str, typer.Argument(help="An attempt, a platform digest, a contract name or a stack.")
    ],
    b: Annotated[str, typer.Argument(help="The other one, of the same kind.")],
    where: Where,
    form: TableForm,
) -> None:
    """Compare two attempts, platforms or stacks; says what differs and blames nothing."""
    from fleet.contract.stack import is_stack, load_stack
    from fleet.report.diff import Diff, compare, diff_cells, print_diff, stack_diff

    form.check()
    places = where.places()
    if is_stack(a, places.search) or is_stack(b, places.search):
        stacks = [load_stack(name, places.search, None) for name in (a, b)]
        with _answers(where) if places.store.exists() else nullcontext() as known:
            found = stack_diff(stacks[0], stacks[1], known)
    else:
        with _answers(where) as answers:
            found = compare(answers, a, b)
    form.show(Diff.to_json, diff_cells, print_diff, found)
    raise typer.Exit(found.exit_code())


@grouped
def query(
    *,
    sql: Annotated[
        str | None, typer.Argument(metavar="SELECT", help="One SELECT over the views.")
    ] = None,
    where: Where,
    form: TableForm,
    views: Annotated[bool, typer.Option("--views", help="List the views and columns.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="Rows at most.")] = 1000,
    seconds: Annotated[float, typer.Option(min=0.1, help="Longest it may take.")] = 60.0,
) -> None:
    """Read-only SQL over documented views: records, pairs, classes, margins, verdicts, ..."""
    from fleet.report import views as room
    from fleet.report.status import status_rows
    from fleet.store import sandbox

    form.check()
    if (sql is None) != views:
        got = "both" if sql else "neither"
        raise UsageError("query", "", "a SELECT, or --views", got, "fleet query --views lists them")
    places, now_s = where.places(), time.time()
    with _answers(where) as answers:
        con = answers.store.con
        if sql is None:
            listed = room.views_of(con)
            return Form(form.as_json, form.output).show(
                room.views_document(listed), room.print_views, listed
            )
        select = sandbox.parse(con, sql, tuple(room.JUDGED))
        room.fill(
            con, tuple(select.tables), answers,
            lambda: status_rows(answers, [], places.search, places.cache, now_s), now_s,
        )  # fmt: skip
        folder = answers.landing.root / "attempts"
        found = sandbox.run(answers.store, select, folder, limit, seconds)
    form.show(room.result_document, room.result_cells, room.print_result, found)
    if found.truncated and (form.as_csv or form.as_json):
        print(f"fleet: only the first {limit} rows: --limit", file=sys.stderr)


class Mode(StrEnum):
    """What a rule that is not met does to the exit code: only *block* lets it be one."""

    info = "info"
    warn = "warn"
    block = "block"


@grouped
def gate(
    policy: Annotated[
        str, typer.Option(metavar="FILE", help="Name in the config path, or a TOML file.")
    ],
    where: Where,
    form: Form,
    mode: Annotated[Mode | None, typer.Option(help="Not what the policy says.")] = None,
    markdown: Annotated[bool, typer.Option(help="A summary for CI instead of text.")] = False,
) -> None:
    """Hold a policy against the evidence: 0 held, 1 a FAIL, 3 not covered."""
    from fleet.report.gate import gate_of
    from fleet.report.gate_view import print_gate, print_markdown
    from fleet.schedule.gating import read_policy, scope_of

    if form.as_json and markdown:
        raise UsageError("command line", "--markdown", "one form", "--json too", "drop one")
    places = where.places()
    loaded = read_policy(policy, places.search)
    with _answers(where) as answers:
        scopes = [scope_of(rule, answers, places.search) for rule in loaded.policy.rules]
        found = gate_of(
            loaded, mode.value if mode else loaded.policy.mode, scopes, answers,
            places.search, places.cache, time.time(),
        )  # fmt: skip
    form.show(found.to_json(), print_markdown if markdown else print_gate, found)
    raise typer.Exit(found.exit_code())
