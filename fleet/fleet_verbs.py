"""Verbs about a whole fleet: ``campaign`` and ``doctor``. As thin as those of the command line.

Each calls the room that does it; what a fleet's TOML says and what a night runs is theirs.
"""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from fleet.options import CampaignId, Form, ReportFile, Running, Where, grouped
from fleet.report.screen import progress
from fleet.report_verbs import report_after

FleetName = Annotated[str, typer.Argument(help="Name in the config path, or a TOML file.")]


@grouped
def campaign(
    fleet: FleetName,
    where: Where,
    form: Form,
    running: Running,
    dry_run: Annotated[
        bool, typer.Option(help="Print the plan over the expected units; run nothing.")
    ] = False,
    budget: Annotated[
        int | None,
        typer.Option(min=1, metavar="MINUTES", help="Of this night, not what the file says."),
    ] = None,
    campaign_id: CampaignId = None,
    report: ReportFile = None,
) -> None:
    """Plan a night within its budget and run it: what is never tested and stale comes first."""
    from fleet.report.night_answer import print_answer
    from fleet.report.night_view import print_night
    from fleet.schedule.certify import require_usable
    from fleet.schedule.nightly import NightRequest, plan_and_run, plan_campaign

    places = where.places()
    request = NightRequest(fleet, budget, campaign_id, running.limits(), tuple(sys.argv[1:]))
    with progress("planning the night") as say:
        plan = plan_campaign(request, places, time.time()).plan  # refuses before a cluster is asked
        if dry_run:
            return form.show(plan.to_json(), print_night, plan)
        require_usable(places)
        with where.cluster() as launcher:
            planned, answer = plan_and_run(request, places, launcher, say)
    if answer is None:
        form.show(planned.plan.to_json(), print_night, planned.plan)
        code = 0 if planned.plan.is_covered else 3
    else:
        form.show(answer.to_json(), print_answer, answer)
        code = answer.exit_code()
    report_after(report, places)
    raise typer.Exit(code)


@grouped
def doctor(
    where: Where,
    form: Form,
    prewarm: Annotated[
        list[str] | None,
        typer.Option(
            help="Compile the kernels of this contract into the pinned cache; repeatable."
        ),
    ] = None,
    fleet: Annotated[
        str | None, typer.Option(help="Hold the nodes of the cluster against this fleet.")
    ] = None,
) -> None:
    """What this machine can run, and what is missing; with --address or --fleet, every node."""
    from fleet.schedule import doctor as room

    if prewarm:
        return _prewarm(prewarm, where, form)
    if fleet is not None or where.address is not None:
        return _inventory(fleet, where, form)
    with progress("looking at this machine") as say:
        findings = room.examine(where.places(), where.device(), say)
    form.show(findings.to_json(), room.print_findings, findings)


def _prewarm(contracts: list[str], where: Where, form: Form) -> None:
    from fleet.schedule import doctor as room

    with progress("resolving contracts") as say, where.cluster() as launcher:
        found = room.prewarm(contracts, where.places(), launcher, say)
    form.show({"schema": 1, "prewarmed": found}, room.print_prewarmed, found)
    if any(isinstance(outcome, str) for outcome in found.values()):
        raise typer.Exit(3)


def _inventory(fleet: str | None, where: Where, form: Form) -> None:
    from fleet.schedule.inventory import compare, print_inventory, quarantined_in
    from fleet.schedule.nightly import read_fleet

    places = where.places()
    expected = None if fleet is None else read_fleet(fleet, places.search)
    with progress("looking at every node"), where.cluster() as cluster:
        found = compare(expected, cluster.nodes(), quarantined_in(places.landing))
    form.show(found.to_json(), print_inventory, found)
