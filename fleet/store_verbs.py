"""``fleet store``: its verbs, as thin as those of the command line.

Holds no rule: the store is derived from the landing, and each verb calls the room that does it.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from fleet.options import Json, Where, grouped
from fleet.report.screen import emit, progress

store_app = typer.Typer(help="Ingest, rebuild, verify, snapshot or prune.", no_args_is_help=True)


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


@store_app.command("verify")
@grouped
def store_verify(where: Where, as_json: Json = False) -> None:
    """Derive everything anew from the landing and compare; exits 3 where the store differs."""
    from fleet.store.verify import differences

    with progress("deriving everything anew"):
        found = list(differences(where.store, where.pulled()))
    if as_json:
        told = [{"table": table, "about": name} for table, name in found]
        emit({"schema": 1, "differences": told})
    else:
        for table, name in found:
            print(f"{table}: {name}: not what the landing says")
        print("next: fleet store rebuild" if found else "the store says what the landing says")
    raise typer.Exit(3 if found else 0)


@store_app.command("snapshot")
@grouped
def store_snapshot(where: Where) -> None:
    """Publish a read-only copy for readers."""
    from fleet.store.open import open_writer, publish

    with open_writer(where.store, create=False) as writer:
        print(publish(writer))


@store_app.command("prune")
@grouped
def store_prune(
    where: Where,
    older_than: Annotated[
        float, typer.Option(min=0, metavar="DAYS", help="Only attempts accepted before that.")
    ],
    dry_run: Annotated[bool, typer.Option(help="Say what may go; remove nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Drop rows and traces of old replays that a newer campaign repeats; no verdict changes."""
    from fleet.evidence.landing import Landing
    from fleet.judge.present import DAY_S
    from fleet.schedule.certify import ingest_and_publish
    from fleet.schedule.pruning import plan_prune, prune

    with progress("looking for rows that may go") as say:
        landing = where.pulled()
        ingest_and_publish(where.store, landing)
        with where.places().open_store() as store:
            found = plan_prune(store, landing, older_than * DAY_S)
        if not dry_run:
            writable = Landing.open(landing.root, create=True, remote=landing.remote)
            found = prune(writable, found, sys.argv[1:], say)
            ingest_and_publish(where.store, landing)
    if as_json:
        return emit(found.to_json())
    for doomed in found.attempts:
        print(f"{doomed.contract} {doomed.attempt}: {doomed.num_bytes} bytes, as {doomed.like}")
    done = "may go" if dry_run else "are gone; their summaries stay"
    print(f"{found.num_bytes} bytes of {len(found.attempts)} attempts {done}")


def _print_report(report: Any, as_json: bool) -> None:
    from dataclasses import asdict

    body = asdict(report)
    if as_json:
        return emit({"schema": 1} | body)
    for key, value in body.items():
        print(f"{key}: {', '.join(value) or 'none' if isinstance(value, tuple) else value}")
