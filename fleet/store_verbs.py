"""``fleet store``: ingest, rebuild, snapshot. Verbs as thin as those of the command line.

Holds no rule: the store is derived from the landing, and each verb calls the room that does it.
"""

from __future__ import annotations

from typing import Any

import typer

from fleet.options import Json, Where, grouped
from fleet.report.screen import emit, progress

store_app = typer.Typer(help="Ingest, rebuild or snapshot the store.", no_args_is_help=True)


@store_app.command("ingest")
@grouped
def store_ingest(where: Where, as_json: Json = False) -> None:
    """Bring the store up to the landing, checking what is already there."""
    from fleet.store.ingest import ingest
    from fleet.store.open import open_writer, publish

    with progress("ingesting"):
        source = where.pulled()  # first: without a landing no store is made
    with progress("ingesting"), open_writer(where.store) as writer:
        report = ingest(writer, source)
        publish(writer)
    _print_report(report, as_json)


@store_app.command("rebuild")
@grouped
def store_rebuild(where: Where, as_json: Json = False) -> None:
    """Make the store anew from the landing alone; the old one stays until the new one is whole."""
    from fleet.store.open import open_writer, publish
    from fleet.store.rebuild import rebuild

    with progress("rebuilding"):
        report = rebuild(where.store, where.pulled())
        with open_writer(where.store) as writer:
            publish(writer)
    _print_report(report, as_json)


@store_app.command("snapshot")
@grouped
def store_snapshot(where: Where) -> None:
    """Publish a read-only copy for readers."""
    from fleet.store.open import open_writer, publish

    with open_writer(where.store, create=False) as writer:
        print(publish(writer))


def _print_report(report: Any, as_json: bool) -> None:
    from dataclasses import asdict

    body = asdict(report)
    if as_json:
        return emit({"schema": 1} | body)
    for key, value in body.items():
        print(f"{key}: {', '.join(value) or 'none' if isinstance(value, tuple) else value}")
