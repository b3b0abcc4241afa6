"""What a person sees of a sweep: one table, what cannot run and why, and the fastest that PASSes.

Reads the document that ``--json`` gives, so that both say the same. Where the columns do not fit,
a backend's verdict and figures stay in the table, and kernels and culprits go below it.
Holds no rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from fleet.report import screen
from fleet.report.screen import COLOURS
from fleet.report.trace_view import place_of

WIDE = 132
"""From this many columns on, kernels and culprits have columns of their own."""

FEW = ("backend", "dtype", "verdict", "grade", "records", "tokens/s", "peak", "load s")
ALL = (
    "backend", "dtype", "kernels", "verdict", "grade", "records", "culprit", "fault", "tokens/s",
    "peak", "load s",
)  # fmt: skip
NUMBERS = ("records", "tokens/s", "peak", "load s")
LINED = 180
"""From this many columns on there is room for the table's lines too."""

Entry = Mapping[str, Any]


def print_sweep(console: Console, document: Mapping[str, Any]) -> None:
    """Table, details of what did not PASS, what cannot run, controls, and the one line."""
    entries = document["contracts"]
    ran = [e for e in entries if e["verdict"] is not None]
    if ran:
        _print_table(console, document, ran)
    if console.width < WIDE:
        _print_kernels(console, ran)
    for entry in ran:
        _print_details(console, entry)
    if any(e["measured_in"] == "screen" for e in ran):
        _line(console, "* of the screening's few samples: it was not certified")
    _print_refused(console, [e for e in entries if not e["runnable"]])
    _print_controls(console, document["controls"])
    _line(console, Text(fastest_line(document), style="bold"))


def _print_table(console: Console, document: Mapping[str, Any], ran: Sequence[Entry]) -> None:
    names = FEW if console.width < WIDE else ALL
    title = f"a row is the contract {document['base']}@BACKEND"
    if any(":" in e["contract"].rpartition("@")[2] for e in ran):
        title += " or @BACKEND:DTYPE"
    table = screen.table(console, title, *names, narrow=LINED)
    screen.to_the_right(table, *NUMBERS)
    for entry in ran:
        cells = _cells(entry)
        table.add_row(*(cells[name] for name in names))
    console.print(table)


def _cells(entry: Entry) -> dict[str, str | Text]:
    verdict, records = entry["verdict"], entry["records"]
    return {
        "backend": entry["backend"],
        "dtype": entry["dtype"],
        "kernels": kernel_words(entry["kernels"]) or "-",
        "verdict": Text(verdict, style=COLOURS.get(verdict, "")),
        "grade": entry["grade"] or "-",
        "records": f"{records - entry['mismatches']}/{records}" if records else "-",
        "culprit": _short_place(entry["culprit"]),
        "fault": entry["fault"] or "-",
        "tokens/s": speed_words(entry),
        "peak": bytes_words(entry["peak_bytes"]),
        "load s": "-" if entry["load_s"] is None else f"{entry['load_s']:.1f}",
    }


def kernel_words(kernels: Mapping[str, int]) -> str:
    """``AwqTorchLinear/inference x14``."""
    return ", ".join(f"{name} x{count}" for name, count in kernels.items())


def speed_words(entry: Entry) -> str:
    """Tokens a second; a star where only the screening measured it."""
    speed = entry["tokens_per_s"]
    if speed is None:
        return "-"
    return number(speed) + ("*" if entry["measured_in"] == "screen" else "")


def number(speed: float) -> str:
    """Three figures or so."""
    return f"{speed:.0f}" if speed >= 100 else f"{speed:.1f}"


def bytes_words(size: int | None) -> str:
    """In MiB, from 10 GiB on in GiB."""
    if size is None:
        return "-"
    mib = size / 2**20
    return f"{mib:.0f} MiB" if mib < 10240 else f"{mib / 1024:.1f} GiB"


def _short_place(culprit: Mapping[str, Any] | None) -> str:
    """The module's path; its class is said below the table."""
    if culprit is None:
        return "-"
    return culprit["path"] or place_of(culprit)


def _print_kernels(console: Console, ran: Sequence[Entry]) -> None:
    known = [e for e in ran if e["kernels"]]
    if known:
        _line(console, "kernels:")
    for entry in known:
        _line(console, f"  {entry['backend']}: {kernel_words(entry['kernels'])}")


def _print_details(console: Console, entry: Entry) -> None:
    """Why a verdict is no PASS, and what to do next."""
    if entry["verdict"] == "PASS":
        return
    _line(console, f"{entry['contract']}: {entry['verdict_reason']}")
    culprit = entry["culprit"]
    if culprit is not None:
        _line(console, f"  first divergence: {place_of(culprit)}, {entry['fault']}")
    elif entry["verdict"] == "FAIL":
        _line(console, f"  its cause: fleet trace {entry['contract']}")


def _print_refused(console: Console, refused: Sequence[Entry]) -> None:
    if refused:
        _line(console, "cannot run here:")
    for entry in refused:
        _line(console, f"  {entry['backend']}: {entry['reason']}")


def _print_controls(console: Console, controls: Sequence[Entry]) -> None:
    behave = [c["contract"] for c in controls if c["behaves"]]
    if behave:
        _line(console, f"controls that behave as expected: {', '.join(behave)}")
    for control in controls:
        if not control["behaves"]:
            words = "; ".join(control["mismatches"])
            _line(console, f"control {control['contract']}: DOES NOT BEHAVE: {words}")


def fastest_line(document: Mapping[str, Any]) -> str:
    """``fastest backend that PASSes: awq_torch_aten, 123 tokens/s (1.8x the next)``."""
    best = document["fastest"]
    if best is None:
        return "no backend PASSes"
    in_dtype = f" in {best['dtype']}" if ":" in best["contract"].rpartition("@")[2] else ""
    speed = best["tokens_per_s"]
    told = "speed unknown" if speed is None else f"{number(speed)} tokens/s"
    times = best["times_next"]
    more = "" if times is None else f" ({times:.1f}x the next)"
    return f"fastest backend that PASSes: {best['backend']}{in_dtype}, {told}{more}"


def print_sweep_plan(console: Console, document: Mapping[str, Any]) -> None:
    """What a dry run says: what would run, and what cannot and why."""
    able = [e for e in document["contracts"] if e["runnable"]]
    _line(console, "would run:" if able else "nothing can run here")
    for entry in able:
        _line(console, f"  {entry['contract']} in {entry['dtype']}")
    _print_refused(console, [e for e in document["contracts"] if not e["runnable"]])
    if able:
        first = "a screening of all of them, then " if document["screen"] else ""
        replays = Counter(row["contract"] for row in document["plan"])
        told = ", ".join(f"{name} ({count} replays)" for name, count in replays.items())
        _line(console, f"in this order: {first}{told}")


def _line(console: Console, text: str | Text) -> None:
    """As it stands: reasons may hold brackets and colons, which are no markup and no emoji."""
    plain = Text(text) if isinstance(text, str) else text
    console.print(plain, soft_wrap=True, highlight=False)
