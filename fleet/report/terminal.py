"""What a person sees: a verdict table, the lines under it, and the evidence of each FAIL.

Knows no rule; every word about a verdict comes from the judge.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fleet.contract.vary import in_words
from fleet.evidence.decisions import Decision
from fleet.judge.charge import Charge
from fleet.judge.rules import retraction_lines, verdict_lines
from fleet.judge.verdict import Verdict
from fleet.report import screen
from fleet.report.answers import CampaignAnswer, ControlAnswer
from fleet.report.difference import difference_lines, look_again
from fleet.report.status import StatusRow
from fleet.report.trace_view import culprit_lines, place_of


def print_campaign(console: Console, answer: CampaignAnswer) -> None:
    """Table, verdict lines per contract, then what each FAIL and VOID rests on."""
    names = ("contract", "verdict", "grade", "records equal", "logits root", "n", "bound")
    table = screen.table(console, f"campaign {answer.campaign}", *names)
    screen.to_the_right(table, "n", "bound")
    controls = [control.verdict for control in answer.controls]
    for verdict in (*controls, *answer.contracts):
        _add_row(table, verdict, "control" if verdict in controls else "")
    console.print(table)
    for verdict in answer.contracts:
        _print_details(console, verdict, answer.behaved)
    for control in answer.controls:
        print_control(console, control)


def _add_row(table: Table, verdict: Verdict, role: str) -> None:
    name = told_name(verdict.contract, verdict.vary)
    table.add_row(
        f"{name} ({role})" if role else name,
        _word(verdict.state),
        verdict.attained_grade or "-",
        f"{verdict.records - verdict.mismatches}/{verdict.records}" if verdict.records else "-",
        " ".join(_short(root) for root in verdict.roots.get("logits", [])[:3]) or "-",
        str(verdict.records or "-"),
        _bound(verdict.bounds.get("record")),
    )


def told_name(contract: str, vary: Sequence[str]) -> str:
    """A contract, and what its replays varied."""
    return f"{contract}, {in_words(vary)}" if vary else contract


def _word(state: str) -> Text:
    return Text(state, style=screen.COLOURS.get(state, ""))


def _short(digest: str) -> str:
    return digest.removeprefix("sha256:")[:12]


def _bound(value: float | None) -> str:
    return "-" if value is None else f"<= {value:.3%}"


def _print_details(console: Console, verdict: Verdict, behaved: frozenset[str]) -> None:
    note = "  (a control: as expected)" if verdict.contract in behaved else ""
    name = Text(f"\n{told_name(verdict.contract, verdict.vary)}", style="bold")
    screen.verbatim(console, name + Text(f": {verdict.reason}{note}"))
    for line in verdict_lines(verdict):
        screen.verbatim(console, f"  {line}")
    if verdict.bounds.get("process") is not None:
        of, share = verdict.bounds["replays"], _bound(verdict.bounds["process"])
        screen.verbatim(console, f"  processes of another kind: {share} after {of} equal ones")
    if verdict.first_difference:
        _print_difference(console, verdict)
    for line in culprit_lines(verdict.culprit) if verdict.culprit else ():
        screen.verbatim(console, line)
    for line in retraction_lines(verdict):
        screen.verbatim(console, Text(f"  {line}", style="yellow"))
    for warning in verdict.warnings:
        screen.verbatim(console, Text(f"  warning: {warning}", style="yellow"))


def _print_difference(console: Console, verdict: Verdict) -> None:
    first: dict[str, Any] = verdict.first_difference or {}
    head, *rest = difference_lines(first)
    screen.verbatim(console, f"  first difference: {head}")
    for line in rest:
        screen.verbatim(console, f"  {line}")
    for purpose, command in look_again(verdict).items():
        screen.verbatim(console, f"  {purpose}: {command}")


def print_status(console: Console, rows: Sequence[StatusRow]) -> None:
    """One line per contract, claim and platform."""
    is_narrow = console.width < screen.NARROW  # there, when a PASS expires stands below its age
    times = ("age",) if is_narrow else ("age", "expires")
    bounds = ("n", "record", "process")
    names = ("contract", "state", "grade", "scope", *bounds, *times, "platform")
    table = screen.table(console, "status", *names)
    for row in rows:
        verdict = row.verdict
        table.add_row(
            _name_of(row),
            _word(row.word),
            (verdict.attained_grade if verdict else None) or "-",
            _scope(row),
            str(verdict.records) if verdict else "0",
            _bound(verdict.bounds.get("record")) if verdict else "-",
            _process_bound(verdict),
            *_times(row, is_narrow),
            Text(row.platform_label or "-"),
        )
    console.print(table)
    for row in rows:
        words = row.note or (row.verdict.reason if row.verdict else "")
        if row.verdict and row.verdict.culprit:
            words += f"; first divergence: {place_of(row.verdict.culprit)}, {row.verdict.fault}"
        if row.state != "PASS" and words:
            told = f"{words}  (a control: as expected)" if row.behaves else words
            screen.verbatim(console, f"{_name_of(row)}: {told}")
        if row.predecessor and row.verdict:
            before = row.predecessor.platform_label
            screen.verbatim(console, f"{_name_of(row)}: FAIL on predecessor ({before})")
        if row.regressed and not row.behaves:
            since, campaign = row.regressed.since or "unknown", row.regressed.campaign
            screen.verbatim(console, f"{_name_of(row)}: REGRESSED since {since}, {campaign}")
        if row.charge and not row.behaves:
            screen.verbatim(console, f"{_name_of(row)}: {_charge(row.charge, row.decisions)}")
        for line in retraction_lines(row.verdict) if row.verdict else ():
            screen.verbatim(console, f"{_name_of(row)}: {line}")
    for line in _apart(rows):
        screen.verbatim(console, line)
    if not rows:
        screen.verbatim(console, "nothing matches")


def _times(row: StatusRow, is_narrow: bool) -> list[str]:
    told, expires = screen.age(row.age_s), screen.day(row.expires_at_s)
    if not is_narrow:
        return [told, expires]
    return [told if row.expires_at_s is None else f"{told}, until {expires}"]


def _charge(charge: Charge, decisions: Sequence[Decision]) -> str:
    told = "".join(f"; unit {d.unit} {d.in_words()}" for d in decisions)
    return f"charge {charge.charge}: {charge.words}{told}"


def _apart(rows: Sequence[StatusRow]) -> Iterator[str]:
    """Once for two groups of platforms that differ from each other."""
    told: set[frozenset[tuple[str, ...]]] = set()
    names = {row.platform: row.platform_label for row in rows}
    for row in rows:
        if row.apart is None or (pair := frozenset((row.apart.here, row.apart.there))) in told:
            continue
        told.add(pair)
        here, there = (_places(group, names) for group in (row.apart.here, row.apart.there))
        units = f"all {row.apart.units_here} units of {here} agree and differ from all of {there}"
        yield f"{_name_of(row)}: {units}; {row.apart.in_words()}"


def _places(platforms: Sequence[str], labels: Mapping[str, str]) -> str:
    return " and ".join(f"{labels.get(p, 'unknown')} [{_short(p)}]" for p in platforms)


def _name_of(row: StatusRow) -> str:
    return told_name(row.contract, row.vary if row.verdict or row.platform else ())


def _scope(row: StatusRow) -> str:
    """Of how many of the units that are known of this platform."""
    if row.verdict is None:
        return "-"
    return f"{row.verdict.scope} {row.units_tested}/{max(row.units_known, row.units_tested)}"


def _process_bound(verdict: Verdict | None) -> str:
    if verdict is None or verdict.verdict != "PASS":
        return "-"
    bound = verdict.bounds.get("process")
    return "not bounded" if bound is None else _bound(bound)


def print_control(console: Console, control: ControlAnswer, where: str = "") -> None:
    """One line: did it do what it must?"""
    words = "behaves as expected"
    if control.verdict.culprit:
        words += f": {place_of(control.verdict.culprit)}, {control.verdict.fault}"
    if control.mismatches:
        words = "DOES NOT BEHAVE: " + "; ".join(control.mismatches)
    screen.verbatim(console, f"control {control.verdict.contract}{where}: {words}")
