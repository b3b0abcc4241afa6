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
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
import typer.exceptions
from rich.console import Console

import fleet
from fleet import certificate_verbs, fleet_verbs, query_verbs, report_verbs, upgrade_verbs
from fleet.ending import in_a_child
from fleet.errors import FleetError, UsageError
from fleet.options import (
    CampaignId,
    Contract,
    Contracts,
    Form,
    Instead,
    Json,
    ReportFile,
    Running,
    Where,
    grouped,
)
from fleet.report.screen import emit, out, progress
from fleet.store_verbs import store_app

if TYPE_CHECKING:
    from fleet.schedule.certify import Planned


class ModelKind(StrEnum):
    """What a contract's model takes."""

    text = "text"
    vision = "vision"


class TraceMode(StrEnum):
    """When a certification looks for the cause of a FAIL."""

    never = "never"
    on_fail = "on-fail"
    always = "always"


app = typer.Typer(
    name="fleet",
    help="Certify, with evidence, where LLM inference is bitwise reproducible.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
contract_app = typer.Typer(help="Check, show or start a contract.", no_args_is_help=True)
app.add_typer(contract_app, name="contract")
app.add_typer(store_app, name="store")
app.add_typer(certificate_verbs.certificate_app, name="certificate")
app.add_typer(upgrade_verbs.stack_app, name="stack")


@app.command()
@grouped
def certify(
    contracts: Contracts,
    where: Where,
    form: Form,
    instead: Instead,
    running: Running,
    dry_run: Annotated[bool, typer.Option(help="Resolve and print the plan; run nothing.")] = False,
    trace: Annotated[
        TraceMode, typer.Option(help="Trace the first differing sample of each FAIL.")
    ] = TraceMode.never,
    campaign_id: CampaignId = None,
    report: ReportFile = None,
) -> None:
    """Run the replays of each contract and its controls, and print verdicts."""
    from fleet.report.document import campaign_document
    from fleet.report.terminal import print_campaign
    from fleet.schedule.certify import Request, plan_request, require_usable
    from fleet.schedule.certify import certify as run_certify

    places = where.places()
    argv = tuple(sys.argv[1:])
    request = Request(
        tuple(contracts), limits=running.limits(), argv=argv, trace=trace.value,
        replays=instead.replays, process_bound=instead.process_bound, scope=instead.scope,
        claims=instead.claims(), campaign=campaign_id,
    )  # fmt: skip
    with progress("resolving contracts") as say:
        planned = plan_request(request, places, say)
        if dry_run:
            return _show_plan(planned, form)
        require_usable(places)
        with where.cluster() as launcher:
            answer = run_certify(request, planned, places, launcher, say)
    form.show(campaign_document(answer), print_campaign, answer)
    report_verbs.report_after(report, places)
    raise typer.Exit(answer.exit_code())


def _show_plan(planned: Planned, form: Form) -> None:
    from fleet.report.plan_view import print_plan

    rows = [s.to_json() for s in planned.slots]
    ids = {r.name: r.execution_id for r in (*planned.controls, *planned.named)}
    document = {"schema": 1, "campaign": None, "plan": rows, "execution_ids": ids}
    form.show(document, print_plan, document)


app.command()(query_verbs.status)
app.command()(query_verbs.matrix)
app.command()(query_verbs.history)


@app.command()
@grouped
def units(where: Where, form: Form) -> None:
    """Every unit: replays, how many were odd, suspicion, quarantine, when it was last seen."""
    from fleet.report.units import print_units, unit_rows, units_document

    places = where.places()
    with places.open_store() as store:
        rows = unit_rows(store, places.open_landing(), time.time())
    form.show(units_document(rows), print_units, rows)


app.command()(query_verbs.diff)
app.command()(query_verbs.query)
app.command()(query_verbs.gate)


@app.command()
@grouped
def replay(
    contract: Contract,
    sample: Annotated[str, typer.Option(help="Sample id.")],
    arm: Annotated[str, typer.Option(help="Arm name.")],
    where: Where,
    form: Form,
    dry_run: Annotated[bool, typer.Option(help="Print the plan; run nothing.")] = False,
) -> None:
    """Run one sample in fresh processes: a difference or none seen, never a verdict."""
    from fleet.report.diff import print_diff
    from fleet.schedule.certify import Request, plan_request, require_usable
    from fleet.schedule.one_sample import check_sample, replay_one

    places = where.places()
    argv = tuple(sys.argv[1:])
    request = Request((contract,), "replay", samples=(sample,), arms=(arm,), argv=argv)
    with progress("resolving the contract") as say:
        planned = plan_request(request, places, say)
        check_sample(planned, sample, arm)
        if dry_run:
            return _show_plan(planned, form)
        require_usable(places)
        with where.cluster() as launcher:
            found = replay_one(request, planned, places, launcher, say)
    form.show(found.to_json(), print_diff, found)
    raise typer.Exit(found.exit_code())


@app.command()
@grouped
def trace(
    contract: Contract,
    where: Where,
    form: Form,
    sample: Annotated[
        str | None,
        typer.Option(help='Sample id, or "all"; if left out the first one known to differ.'),
    ] = None,
    arm: Annotated[str | None, typer.Option(help="Arm name.")] = None,
    step: Annotated[str, typer.Option(help="all, prefill, or a step number from 0.")] = "all",
    replays: Annotated[
        int | None,
        typer.Option(min=2, help="Traced replays; the contract's own number if left out."),
    ] = None,
    repeats: Annotated[
        int, typer.Option(min=0, help="Repeats of the culprit's call in one process.")
    ] = 200,
    zoom: Annotated[
        bool, typer.Option(help="Name the first operation inside the culprit.")
    ] = False,
    dry_run: Annotated[bool, typer.Option(help="Print the plan; run nothing.")] = False,
) -> None:
    """Which module, gap, weight, cache or input diverged first, and what kind of fault it is."""
    from fleet.report.trace_view import print_trace
    from fleet.schedule.certify import Request, plan_request, require_usable
    from fleet.schedule.trace_verb import TraceRequest, plan_trace, run_trace
    from fleet.schedule.tracing import check_step

    places = where.places()
    request = Request((contract,), "trace", argv=tuple(sys.argv[1:]))
    asked = TraceRequest(sample, arm, check_step(step), replays, repeats, zoom)
    with progress("resolving the contract") as say:
        planned = plan_request(request, places, say)
        plan, why = plan_trace(asked, planned, places)
        if dry_run:
            return _show_plan(planned, form)
        require_usable(places)
        with where.cluster() as launcher:
            document = run_trace(request, planned, plan, why, places, launcher, say)
    form.show(document, print_trace, document)
    raise typer.Exit(RESULT_CODES[document["contracts"][0]["result"]])


@app.command()
@grouped
def screen(
    contracts: Contracts,
    where: Where,
    form: Form,
    near: Annotated[
        int, typer.Option(min=0, help="Records nearest to a tie, by margins in the store.")
    ] = 8,
    dry_run: Annotated[bool, typer.Option(help="Resolve and print the plan; run nothing.")] = False,
) -> None:
    """The cheap gate before a full run: every input shape, the nearest margins, one trace."""
    from fleet.report.trace_view import print_screen
    from fleet.schedule.certify import Request, plan_request, require_usable
    from fleet.schedule.screening import choose
    from fleet.schedule.screening import screen as run_screen

    places = where.places()
    request = Request(tuple(contracts), "screen", argv=tuple(sys.argv[1:]))
    with progress("resolving contracts") as say:
        planned = plan_request(request, places, say)
        if dry_run:
            return _show_plan(planned, form)
        require_usable(places)
        with where.cluster() as launcher:
            selections = choose(planned, near, places, launcher)
            document = run_screen(request, planned, selections, places, launcher, say)
    form.show(document, print_screen, document)
    codes = [RESULT_CODES[entry["result"]] for entry in document["contracts"]]
    raise typer.Exit(1 if 1 in codes else max(codes))


@app.command()
@grouped
def sweep(
    contract: Contract,
    where: Where,
    form: Form,
    running: Running,
    backends: Annotated[
        str | None, typer.Option(help="Only these, joined by commas; all of the method if none.")
    ] = None,
    screen: Annotated[
        bool, typer.Option(help="Screen first, and certify only what showed no difference.")
    ] = True,
    dry_run: Annotated[
        bool, typer.Option(help="Ask the node, print what would run and what cannot; run nothing.")
    ] = False,
) -> None:
    """Every backend of one checkpoint: which can run, which PASS, and which of those is fastest."""
    from fleet.report.sweep import print_sweep, print_sweep_plan
    from fleet.report.swept import exit_code
    from fleet.schedule.candidates import SweepRequest, base_of, candidates_of, split_backends
    from fleet.schedule.certify import require_usable
    from fleet.schedule.sweep import run_sweep, sweep_plan

    places = where.places()
    named, argv = split_backends(backends), tuple(sys.argv[1:])
    asked = SweepRequest(contract, named, screen, running.limits(), argv)
    with progress("resolving the contract") as say:
        base = base_of(asked, places, say)
        if not dry_run:
            require_usable(places)
        with where.cluster() as launcher:
            say("asking the node which backends can run")
            candidates = candidates_of(asked, base, places, launcher)
            planned = sweep_plan(asked, candidates, places, say) if dry_run else None
            if planned is None:
                document = run_sweep(asked, candidates, places, launcher, say)
    if planned is not None:  # while the cluster is open, standard output is Ray's to spoil
        return form.show(planned, print_sweep_plan, planned)
    form.show(document, print_sweep, document)
    raise typer.Exit(exit_code(document))


app.command()(fleet_verbs.campaign)
app.command("upgrade-check")(upgrade_verbs.upgrade_check)

RESULT_CODES = {"DIFFERENT": 1, "NO_DIFFERENCE_SEEN": 0, "NO_EVIDENCE": 3}
"""Verbs that give a difference or none, and no verdict."""


@app.command()
@grouped
def logs(
    attempt: Annotated[str, typer.Argument(help="Attempt id, or an unambiguous beginning.")],
    where: Where,
    form: Form,
) -> None:
    """Standard output and standard error of one attempt."""
    from fleet.report.logs import print_logs, read_logs

    found = read_logs(where.mirrored(), attempt)
    form.show(found.to_json(), print_logs, found)


app.command()(fleet_verbs.doctor)
app.command()(certificate_verbs.retract)
app.command()(report_verbs.report)


@contract_app.command("check")
@grouped
def contract_check(contracts: Contracts, where: Where, as_json: Json = False) -> None:
    """Load contracts with everything they name, and print their execution ids."""
    from fleet.schedule.resolve import resolve_contract

    places = where.places()
    with progress("checking") as say:
        found = [resolve_contract(c, places.search, places.cache, say) for c in contracts]
    rows = [
        {"contract": r.name, "execution_id": r.execution_id, "digests": r.digests} for r in found
    ]
    if as_json:
        return emit({"schema": 1, "contracts": rows})
    for row in rows:
        print(f"{row['contract']}: ok, {row['execution_id']}")


@contract_app.command("show")
@grouped
def contract_show(contract: Contract, where: Where, as_json: Json = False) -> None:
    """Print every key with its value and the file it came from."""
    from fleet.contract.load import load_contract
    from fleet.report.contract_view import contract_rows

    loaded = load_contract(contract, where.places().search)
    rows = contract_rows(loaded)
    if as_json:
        body = {row.key: {"value": row.value, "from": row.origin} for row in rows}
        return emit({"schema": 1, "contract": loaded.name, "keys": body})
    with out() as console:
        for row in rows:
            value = json.dumps(row.value, ensure_ascii=False)
            console.print(f"{row.key} = {value}  # {row.origin}", soft_wrap=True)


@contract_app.command("new")
@grouped
def contract_new(
    name: Annotated[str, typer.Argument(help="Name of the new contract.")],
    where: Where,
    kind: Annotated[ModelKind, typer.Option(help="Of a text or a vision-language model.")] = (
        ModelKind.text
    ),
) -> None:
    """Write a commented starting point into the config path; never overwrites."""
    from fleet.contract.starter import write_starter

    path = write_starter(name, where.places().search, kind.value)
    print(f"{path}\n  next: edit it, then fleet contract check {name}")


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
    sys.exit(in_a_child(lambda: _answered(argv)))


def _answered(argv: Sequence[str] | None) -> int:
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup: it stays ignored
            signal.signal(number, _terminated)
    return run(argv)


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
        if isinstance(error.__context__, BrokenPipeError):  # whoever read the answer has left
            return 3
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
