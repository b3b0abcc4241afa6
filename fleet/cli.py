"""The command line: thin. Each verb parses, calls one room, prints, and turns results into a code.

Exit codes: 0 PASS, 1 FAIL or a comparison that differs, 2 usage or configuration, 3 VOID, STALE,
UNTESTED or an internal error. Anything uncaught becomes 3, never 1: a crash is no verdict.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.exceptions
from rich.console import Console

import fleet
from fleet.errors import FleetError, UsageError
from fleet.report.screen import emit, out, progress

app = typer.Typer(
    name="fleet",
    help="Certify, with evidence, where LLM inference is bitwise reproducible.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
contract_app = typer.Typer(help="Check, show or start a contract.", no_args_is_help=True)
store_app = typer.Typer(help="Ingest, rebuild or snapshot the store.", no_args_is_help=True)
app.add_typer(contract_app, name="contract")
app.add_typer(store_app, name="store")

Contracts = Annotated[list[str], typer.Argument(help="Names in the config path, or TOML files.")]
Store = Annotated[Path, typer.Option(envvar="FLEET_STORE", help="DuckDB file.")]
LandingDir = Annotated[Path, typer.Option(envvar="FLEET_LANDING", help="Folder of the evidence.")]
Address = Annotated[
    str | None, typer.Option(envvar="FLEET_ADDRESS", help="Ray address; a local Ray if left out.")
]
Configs = Annotated[
    str | None, typer.Option(help="Folders with contracts/ and datasets/ [env: FLEET_CONFIGS].")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document instead of text.")]


def _writable_file(path: Path | None) -> Path | None:
    """Asked before the work, not after it."""
    if path is None or (path.parent.is_dir() and not path.is_dir()):
        return path
    raise typer.BadParameter(f"expected a file in an existing folder, got {path}")


Output = Annotated[
    Path | None,
    typer.Option(callback=_writable_file, help="Write there instead of to the screen."),
]

STORE, LANDING = Path("var/fleet.duckdb"), Path("var/landing")


def places(store: Path, landing: Path, configs: str | None) -> Any:
    """Where everything is, from options and the environment."""
    from fleet.contract.load import config_path
    from fleet.replay.checkpoint import default_cache
    from fleet.schedule.certify import Places

    cache = default_cache(os.environ)
    return Places(
        search=config_path(configs, os.environ),
        store=store,
        landing=landing,
        cache=cache,
        scratch=cache / "scratch",
    )


@app.command()
def certify(
    contracts: Contracts,
    store: Store = STORE,
    landing: LandingDir = LANDING,
    address: Address = None,
    configs: Configs = None,
    as_json: Json = False,
    output: Output = None,
    dry_run: Annotated[bool, typer.Option(help="Resolve and print the plan; run nothing.")] = False,
    retries: Annotated[int, typer.Option(min=0, help="Retries of a FAILED or LOST attempt.")] = 1,
    replay_s: Annotated[float, typer.Option(min=1, help="Longest a replay may take.")] = 7200.0,
) -> None:
    """Run the replays of each contract and its controls, and print verdicts."""
    from fleet.report.document import campaign_document
    from fleet.report.terminal import print_campaign
    from fleet.schedule.certify import Request, plan_request, require_usable
    from fleet.schedule.certify import certify as run_certify
    from fleet.schedule.cluster import RayCluster
    from fleet.schedule.driver import Limits

    where = places(store, landing, configs)
    limits = Limits(replay_s=replay_s, retries=retries)
    request = Request(tuple(contracts), limits=limits, argv=tuple(sys.argv[1:]))
    with progress("resolving contracts") as say:
        planned = plan_request(request, where, say)
        if dry_run:
            return _print_plan(planned, as_json, output)
        require_usable(where)
        with RayCluster(address) as launcher:
            answer = run_certify(request, planned, where, launcher, say)
    if as_json:
        emit(campaign_document(answer), output)
    else:
        with out(output) as console:
            print_campaign(console, answer)
    raise typer.Exit(answer.exit_code())


def _print_plan(planned: Any, as_json: bool, output: Path | None) -> None:
    rows = [
        {"slot": s.index, "contract": s.contract, "replay": s.replay, "role": s.role}
        for s in planned.slots
    ]
    ids = {r.name: r.execution_id for r in (*planned.controls, *planned.named)}
    if as_json:
        return emit({"schema": 1, "campaign": None, "plan": rows, "execution_ids": ids}, output)
    with out(output) as console:
        for row in rows:
            name = row["contract"]
            place = f"{row['slot']:3} {row['role']:8}"
            console.print(f"{place} {name} replay {row['replay']} {ids[name]}", soft_wrap=True)


@app.command()
def status(
    contracts: Annotated[
        list[str] | None, typer.Argument(help="Contract names; all if none.")
    ] = None,
    store: Store = STORE,
    landing: LandingDir = LANDING,
    address: Address = None,
    configs: Configs = None,
    as_json: Json = False,
    output: Output = None,
) -> None:
    """Which contracts PASS, where: grade, records, bounds, age."""
    from fleet.evidence.landing import Landing
    from fleet.report.answers import Answers
    from fleet.report.document import status_document
    from fleet.report.status import exit_code, status_rows
    from fleet.report.terminal import print_status
    from fleet.store.open import open_reader

    where = places(store, landing, configs)
    with open_reader(store) as opened:
        answers = Answers(opened, Landing.open(landing))
        rows = status_rows(answers, contracts or [], where.search, where.cache, time.time())
    if as_json:
        emit(status_document(rows), output)
    else:
        with out(output) as console:
            print_status(console, rows)
    raise typer.Exit(exit_code(rows))


@app.command()
def diff(
    a: Annotated[str, typer.Argument(help="An attempt, a platform digest, or a contract name.")],
    b: Annotated[str, typer.Argument(help="The other one, of the same kind.")],
    store: Store = STORE,
    landing: LandingDir = LANDING,
    address: Address = None,
    configs: Configs = None,
    as_json: Json = False,
    output: Output = None,
) -> None:
    """Compare two attempts or two platforms; says what differs and blames nothing."""
    from fleet.evidence.landing import Landing
    from fleet.report.answers import Answers
    from fleet.report.diff import compare, print_diff
    from fleet.store.open import open_reader

    with open_reader(store) as opened:
        found = compare(Answers(opened, Landing.open(landing)), a, b)
    if as_json:
        emit(found.to_json(), output)
    else:
        with out(output) as console:
            print_diff(console, found)
    raise typer.Exit(found.exit_code())


@app.command()
def replay(
    contract: Annotated[str, typer.Argument(help="Name in the config path, or a TOML file.")],
    sample: Annotated[str, typer.Option(help="Sample id.")],
    arm: Annotated[str, typer.Option(help="Arm name.")],
    store: Store = STORE,
    landing: LandingDir = LANDING,
    address: Address = None,
    configs: Configs = None,
    as_json: Json = False,
    output: Output = None,
    dry_run: Annotated[bool, typer.Option(help="Print the plan; run nothing.")] = False,
) -> None:
    """Run one sample in fresh processes: a difference or none seen, never a verdict."""
    from fleet.report.diff import print_diff
    from fleet.schedule.certify import Request, plan_request, require_usable
    from fleet.schedule.cluster import RayCluster
    from fleet.schedule.one_sample import check_sample, replay_one

    where = places(store, landing, configs)
    request = Request(
        (contract,), "replay", samples=(sample,), arms=(arm,), argv=tuple(sys.argv[1:])
    )
    with progress("resolving the contract") as say:
        planned = plan_request(request, where, say)
        check_sample(planned, sample, arm)
        if dry_run:
            return _print_plan(planned, as_json, output)
        require_usable(where)
        with RayCluster(address) as launcher:
            found = replay_one(request, planned, where, launcher, say)
    if as_json:
        emit(found.to_json(), output)
    else:
        with out(output) as console:
            print_diff(console, found)
    raise typer.Exit(found.exit_code())


@app.command()
def logs(
    attempt: Annotated[str, typer.Argument(help="Attempt id, or an unambiguous beginning.")],
    store: Store = STORE,
    landing: LandingDir = LANDING,
    address: Address = None,
    configs: Configs = None,
    as_json: Json = False,
    output: Output = None,
) -> None:
    """Standard output and standard error of one attempt."""
    from fleet.evidence.landing import Landing
    from fleet.report.logs import read_logs

    found = read_logs(Landing.open(landing), attempt)
    if as_json:
        return emit(found.to_json(), output)
    with out(output) as console:
        for name, text in (("stdout", found.stdout), ("stderr", found.stderr)):
            console.print(f"--- {found.attempt} {name}", highlight=False)
            console.print(text, highlight=False, soft_wrap=True)


@app.command()
def doctor(
    store: Store = STORE,
    landing: LandingDir = LANDING,
    address: Address = None,
    configs: Configs = None,
    as_json: Json = False,
    output: Output = None,
) -> None:
    """What this machine can run, and what is missing."""
    from fleet.schedule.doctor import examine, print_findings

    with progress("looking at this machine") as say:
        findings = examine(places(store, landing, configs), say)
    if as_json:
        return emit(findings.to_json(), output)
    with out(output) as console:
        print_findings(console, findings)


@contract_app.command("check")
def contract_check(
    contracts: Contracts,
    store: Store = STORE,
    landing: LandingDir = LANDING,
    address: Address = None,
    configs: Configs = None,
    as_json: Json = False,
) -> None:
    """Load contracts with everything they name, and print their execution ids."""
    from fleet.schedule.resolve import resolve_contract

    where = places(store, landing, configs)
    with progress("checking") as say:
        found = [resolve_contract(c, where.search, where.cache, say) for c in contracts]
    rows = [
        {"contract": r.name, "execution_id": r.execution_id, "digests": r.digests} for r in found
    ]
    if as_json:
        return emit({"schema": 1, "contracts": rows})
    for row in rows:
        print(f"{row['contract']}: ok, {row['execution_id']}")


@contract_app.command("show")
def contract_show(
    contract: Annotated[str, typer.Argument(help="Name in the config path, or a TOML file.")],
    store: Store = STORE,
    landing: LandingDir = LANDING,
    address: Address = None,
    configs: Configs = None,
    as_json: Json = False,
) -> None:
    """Print every key with its value and the file it came from."""
    from fleet.contract.load import load_contract
    from fleet.report.contract_view import contract_rows

    loaded = load_contract(contract, places(store, landing, configs).search)
    rows = contract_rows(loaded)
    if as_json:
        body = {row.key: {"value": row.value, "from": row.origin} for row in rows}
        return emit({"schema": 1, "contract": loaded.name, "keys": body})
    with out() as console:
        for row in rows:
            value = json.dumps(row.value, ensure_ascii=False)
            console.print(f"{row.key} = {value}  # {row.origin}", soft_wrap=True)


@contract_app.command("new")
def contract_new(
    name: Annotated[str, typer.Argument(help="Name of the new contract.")],
    store: Store = STORE,
    landing: LandingDir = LANDING,
    address: Address = None,
    configs: Configs = None,
) -> None:
    """Write a commented starting point into the config path; never overwrites."""
    from fleet.contract.starter import write_starter

    path = write_starter(name, places(store, landing, configs).search)
    print(f"{path}\n  next: edit it, then fleet contract check {name}")


@store_app.command("ingest")
def store_ingest(
    store: Store = STORE,
    landing: LandingDir = LANDING,
    address: Address = None,
    configs: Configs = None,
    as_json: Json = False,
) -> None:
    """Bring the store up to the landing, checking what is already there."""
    from fleet.evidence.landing import Landing
    from fleet.store.ingest import ingest
    from fleet.store.open import open_writer, publish

    source = Landing.open(landing)  # first: without a landing no store is made
    with progress("ingesting"), open_writer(store) as writer:
        report = ingest(writer, source)
        publish(writer)
    _print_report(report, as_json)


@store_app.command("rebuild")
def store_rebuild(
    store: Store = STORE,
    landing: LandingDir = LANDING,
    address: Address = None,
    configs: Configs = None,
    as_json: Json = False,
) -> None:
    """Make the store anew from the landing alone; the old one stays until the new one is whole."""
    from fleet.evidence.landing import Landing
    from fleet.store.open import open_writer, publish
    from fleet.store.rebuild import rebuild

    with progress("rebuilding"):
        report = rebuild(store, Landing.open(landing))
        with open_writer(store) as writer:
            publish(writer)
    _print_report(report, as_json)


@store_app.command("snapshot")
def store_snapshot(
    store: Store = STORE,
    landing: LandingDir = LANDING,
    address: Address = None,
    configs: Configs = None,
) -> None:
    """Publish a read-only copy for readers."""
    from fleet.store.open import open_writer, publish

    with open_writer(store, create=False) as writer:
        print(publish(writer))


def _print_report(report: Any, as_json: bool) -> None:
    from dataclasses import asdict

    body = asdict(report)
    if as_json:
        return emit({"schema": 1} | body)
    for key, value in body.items():
        print(f"{key}: {', '.join(value) or 'none' if isinstance(value, tuple) else value}")


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Options of the program itself."""
    if version:
        print(f"fleet {fleet.__version__}")
        raise typer.Exit()


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point: every way to end has its own exit code."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _terminated)
    sys.exit(run(argv))


def _terminated(*_: object) -> None:
    raise KeyboardInterrupt


BY_KEYBOARD = 130
"""What typer makes of a KeyboardInterrupt; no verb of ours ends with it."""


def run(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns its exit code and lets nothing through."""
    errors = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    try:
        result = app(args=argv, standalone_mode=False)
        if result == BY_KEYBOARD:
            raise KeyboardInterrupt
        return result if isinstance(result, int) else 0
    except UsageError as error:
        errors.print(f"error: {error}")
        return 2
    except typer.exceptions.TyperException as error:
        if not error.format_message():
            app(args=["--help"], standalone_mode=False)
        else:
            errors.print(_usage(error))
        return 2
    except (KeyboardInterrupt, typer.Abort):
        errors.print("interrupted: the ledger says how far it came")
        return 3
    except FleetError as error:
        errors.print(f"error: {error}")
        return 3
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        errors.print(f"error (no verdict): {error.strerror or error}{where}")
        errors.print("  next: free space or repair that path, then run again; what landed stays")
        return 3
    except SystemExit as error:  # foreign code asked to leave: that is no verdict
        errors.print(f"error (no verdict): something called exit({error.code!r})")
        return 3
    except Exception as error:
        return _internal(errors, error)


def _usage(error: typer.exceptions.TyperException) -> str:
    """A wrong command line, in the form of every other error."""
    return (
        f"error: command line: {error.format_message()}\n  next: fleet --help, or fleet VERB --help"
    )


def _internal(errors: Console, error: Exception) -> int:
    """A fault of ours: no verdict, a trace only when asked for."""
    errors.print(f"internal error (no verdict): {type(error).__name__}: {error}")
    if os.environ.get("FLEET_TRACEBACK"):
        errors.print_exception()
    else:
        errors.print("  next: run again with FLEET_TRACEBACK=1 and report it")
    return 3


if __name__ == "__main__":
    main()
