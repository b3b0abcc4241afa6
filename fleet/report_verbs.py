"""The verb that writes a report. As thin as those of the command line."""

from __future__ import annotations

import json
import os
import time
import webbrowser
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from fleet.errors import UsageError
from fleet.options import Where, grouped


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
    kind: Annotated[
        Kind, typer.Option("--format", help="A page, Markdown or its data.")
    ] = Kind.html,
    output: Annotated[
        Path | None, typer.Option(help="Write there; fleet-report.KIND if left out, - for stdout.")
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Show the page in a browser.")] = False,
) -> None:
    """Where what holds, as one page that needs no network: a cell opens its evidence."""
    from fleet.report.answers import Answers
    from fleet.report.report_data import report_document
    from fleet.report.status import status_rows

    if open_it and kind is not Kind.html:
        raise UsageError("command line", "--open", "--format html", kind.value, "leave out one")
    places, now_s = where.places(), time.time()
    with places.open_store() as store:
        answers = Answers(store, places.open_landing())
        rows = status_rows(answers, contracts or [], places.search, places.cache, now_s)
        document = report_document(answers, rows, now_s)
    target = output or Path(f"fleet-report.{kind.value}")
    text = written(document, kind)
    if str(target) == "-":
        return typer.echo(text, nl=False)
    write_whole(target, text)
    typer.echo(f"{target}: {len(document['cells'])} cells, {len(text.encode())} bytes", err=True)
    if open_it and not webbrowser.open(target.resolve().as_uri()):
        typer.echo(f"no browser here; open {target}", err=True)


def written(document: dict[str, Any], kind: Kind) -> str:
    """A report's text."""
    from fleet.report.html_page import html_page
    from fleet.report.markdown_report import markdown

    if kind is Kind.html:
        return html_page(document)
    return markdown(document) if kind is Kind.md else json.dumps(document, indent=1) + "\n"


def write_whole(target: Path, text: str) -> None:
    """The file, whole or as it was before.

    Raises:
        UsageError: it cannot be written.
    """
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(target)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        got = error.strerror or str(error)
        raise UsageError(
            str(target), "--output", "a file that can be written", got, "another"
        ) from error
