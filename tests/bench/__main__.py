"""Every benchmark in a row, and one table (``make bench``).

    python -m tests.bench [cost trace always_on fixed ...] [--quick] [--output FILE]

A missed target is said, and is no error: a figure depends on the machine and on what else runs on
it. Exit code 3 when a benchmark could not run.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from subprocess import SubprocessError

from rich.console import Console
from rich.table import Table

from fleet.errors import FleetError
from tests.bench.result import Result, figure

BENCHES = (
    "cost", "trace", "always_on", "fixed", "turnover", "memory", "ingest", "queries", "digests",
    "schedule", "dispatch", "images",
)  # fmt: skip
"""Each is the module ``bench_<name>`` with a function ``run(quick)``."""

COULD_NOT_RUN = 3
BROKEN = (AssertionError, FleetError, ImportError, OSError, RuntimeError, SubprocessError)


def results(name: str, quick: bool) -> Iterator[Result]:
    """What one benchmark measures, as it comes."""
    run = importlib.import_module(f"tests.bench.bench_{name}").run
    yield from run(quick)


def run_all(names: Iterable[str], quick: bool, console: Console) -> tuple[list[Result], list[str]]:
    """(results, the benchmarks that could not run)."""
    found: list[Result] = []
    broken: list[str] = []
    for name in names:
        try:
            for result in results(name, quick):
                console.print(f"{result.name}: {figure(result.median)} {result.unit}")
                found.append(result)
        except BROKEN:  # the others still run, and the exit code says it
            traceback.print_exc()
            broken.append(name)
    return found, broken


def table(found: Iterable[Result]) -> Table:
    """One row per result."""
    shown = Table("what", "target", "median", "spread", "unit", "outcome", "n")
    for result in found:
        bound = "<=" if result.better == "lower" else ">="
        target = "" if result.target is None else f"{bound} {figure(result.target)}"
        spread = f"{figure(min(result.values))}..{figure(max(result.values))}"
        words = {True: "met", False: "missed", None: ""}[result.met]
        shown.add_row(
            result.name,
            target,
            figure(result.median),
            spread,
            result.unit,
            words,
            str(len(result.values)),
        )
    return shown


def main() -> int:
    """Run, print, and say in a sentence what was missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(BENCHES)}")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: do they still run")
    parser.add_argument("--output", type=Path, help="one JSON line per result")
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in BENCHES]:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(BENCHES)}")
    console = Console(width=None if sys.stdout.isatty() else 160)
    found, broken = run_all(given.names or BENCHES, given.quick, console)
    if given.output is not None:
        lines = [json.dumps(result.to_json()) + "\n" for result in found]
        given.output.write_text("".join(lines), encoding="utf-8")
    console.print(table(found))
    for result in found:
        if result.met is False:
            console.print(f"missed: {result.name}: {figure(result.median)} {result.unit}")
    for name in broken:
        console.print(f"could not run: {name}")
    return COULD_NOT_RUN if broken else 0


if __name__ == "__main__":
    sys.exit(main())
