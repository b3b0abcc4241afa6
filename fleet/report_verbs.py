"""The verb that writes a report, and the report after a campaign. As thin as the command line."""

from __future__ import annotations

import json
import sys
import time
import webbrowser
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fleet.errors import UsageError
from fleet.evidence.whole import replaced
from fleet.options import Narrow, Where, grouped, writable_file

if TYPE_CHECKING:
    from fleet.report.filters import Filters
    from fleet.schedule.places import Places


class Kind(StrEnum):
    """What a report is written as."""

    html = "html"
    md = "md"
    json = "json"


@grouped
def report(
    *,
    contracts: Annotated[
        list[str] | None, typer.Argument(help="Contract names; all with evidence if none.")
    ] = None,
    where: Where,
    narrow: Narrow,
    kind: Annotated[
        Kind | None,
        typer.Option("--format", help="A page, Markdown or its data; by the file's name if none."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            callback=writable_file,
            help="Write there; fleet-report.KIND if left out, - for stdout.",
        ),
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Show the page in a browser.")] = False,
) -> None:
    """Where what holds, as one page that needs no network: a cell opens its evidence."""
    kind = kind or kind_of(output)
    if open_it and (kind is not Kind.html or str(output) == "-"):
        raise UsageError("command line", "--open", "a page in a file", kind.value, "leave out one")
    target = output or Path(f"fleet-report.{kind.value}")
    document = _document(where.places(), contracts or [], narrow.filters())
    text = written(document, kind)
    if str(target) == "-":
        return typer.echo(text, nl=False)
    _write(target, document, text)
    if open_it and not webbrowser.open(target.resolve().as_uri()):
        typer.echo(f"no browser here; open {target.resolve()}", err=True)


def report_after(target: Path | None, places: Places) -> None:
    """The report of everything the store knows, once a campaign is over and its verdicts are told.

    Whatever goes wrong is said and changes no exit code: the verdicts stand without a report.
    """
    if target is None:
        return
    try:
        document = _document(places, [], None)
        _write(target, document, written(document, kind_of(target)))
    except Exception as error:
        words = f"{type(error).__name__}: {error}"
        print(f"fleet: no report was written, and the verdicts stand: {words}", file=sys.stderr)
        print(f"  next: fleet report --output {target}", file=sys.stderr)


def kind_of(target: Path | None) -> Kind:
    """By the name of the file."""
    suffix = "" if target is None else target.suffix.removeprefix(".")
    return Kind(suffix) if suffix in list(Kind) else Kind.html


def _document(places: Places, names: Sequence[str], filters: Filters | None) -> dict[str, Any]:
    from fleet.report.answers import Answers
    from fleet.report.filters import Filters, narrowed
    from fleet.report.report_data import report_document
    from fleet.report.status import status_rows

    asked, now_s = filters or Filters(), time.time()
    with places.open_store() as store:
        answers = Answers(store, places.open_landing())
        rows = status_rows(answers, names, places.search, places.cache, now_s)
        rows = narrowed(rows, asked, answers, places.search)
        return report_document(answers, rows, now_s, everywhere=asked == Filters())


def written(document: dict[str, Any], kind: Kind) -> str:
    """A report's text."""
    from fleet.report.html_page import html_page
    from fleet.report.markdown_report import markdown

    if kind is Kind.html:
        return html_page(document)
    return markdown(document) if kind is Kind.md else json.dumps(document, indent=1) + "\n"


def _write(target: Path, document: dict[str, Any], text: str) -> None:
    write_whole(target, text)
    typer.echo(f"{target}: {len(document['cells'])} cells, {len(text.encode())} bytes", err=True)


def write_whole(target: Path, text: str) -> None:
    """The file, whole or as it was before.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        with replaced(target) as unfinished:
            unfinished.write_text(text, encoding="utf-8")
    except OSError as error:
        got = error.strerror or str(error)
        raise UsageError(
            str(target), "--output", "a file that can be written", got, "another"
        ) from error
