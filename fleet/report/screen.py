"""Where output goes: the screen or a file, one JSON document, and progress on standard error.

Verbatim everywhere: evidence may hold brackets and colons, which are no markup and no emoji. Knows
nothing of what is shown.
"""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

COLOURS = {
    "PASS": "green",
    "FAIL": "red",
    "REGRESSED": "red",
    "VOID": "yellow",
    "STALE": "yellow",
    "UNTESTED": "dim",
    "FAIL on predecessor": "yellow",
}
"""Of verdicts and states."""

FILE_WIDTH = 160
NARROW = 100
"""Below this many columns a table goes without its lines: they cost three columns a column."""


@contextmanager
def out(output: Path | None = None) -> Iterator[Console]:
    """Standard output, or a file; plain when it is no terminal."""
    if output is None:
        width = None if sys.stdout.isatty() else FILE_WIDTH
        yield Console(width=width, markup=False, emoji=False)
        return
    with output.open("w", encoding="utf-8") as file:
        yield Console(file=file, width=FILE_WIDTH, markup=False, emoji=False)


def table(console: Console, title: str, *columns: str, narrow: int = NARROW) -> Table:
    """An empty table in which no word is cut short: what does not fit goes on below."""
    made = Table(title=title, title_justify="left")
    if console.width < narrow:
        made.box, made.show_edge = box.SIMPLE_HEAD, False
        made.padding, made.pad_edge = (0, 0), False
    for name in columns:
        made.add_column(name, overflow="fold")
    return made


def to_the_right(made: Table, *numbers: str) -> None:
    """Columns of numbers."""
    for column in made.columns:
        if column.header in numbers:
            column.justify = "right"


@contextmanager
def progress(first: str) -> Iterator[Callable[[str], None]]:
    """A spinner with the newest line on a terminal, plain lines for ``FLEET_PROGRESS=plain``."""
    console = Console(stderr=True)
    if os.environ.get("FLEET_PROGRESS") == "plain":
        yield lambda line: print(f"fleet: {line}", file=sys.stderr, flush=True)
        return
    if not console.is_terminal:
        yield lambda line: None
        return
    with console.status(Text(first)) as status:
        yield lambda line: status.update(Text(line))


def emit(document: dict[str, Any], output: Path | None = None) -> None:
    """One JSON document."""
    text = json.dumps(document, indent=2, sort_keys=False, ensure_ascii=False) + "\n"
    if output is None:
        sys.stdout.write(text)
    else:
        output.write_text(text, encoding="utf-8")


Cells = tuple[Sequence[str], Iterable[Sequence[Any]]]
"""A table for programs: its header, and its rows."""


def emit_csv(cells: Cells, output: Path | None = None) -> None:
    """RFC 4180: a header, CRLF, quotes where they are needed; what is not known is empty."""
    with nullcontext(sys.stdout) if output is None else output.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\r\n")
        writer.writerow(cells[0])
        writer.writerows([_cell(value) for value in row] for row in cells[1])


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def verbatim(console: Console, text: str | Text) -> None:
    """As it stands: evidence may hold brackets and colons, which are no markup and no emoji."""
    plain = Text(text) if isinstance(text, str) else text
    console.print(plain, soft_wrap=True, highlight=False)


def utc(at_s: float) -> str:
    """An instant, to the second."""
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%dT%H:%M:%SZ}"


def minute(at_s: float | None) -> str:
    """An instant to the minute, in UTC."""
    return "-" if at_s is None else utc(at_s)[:16].replace("T", " ")


def day(at_s: float | None) -> str:
    """Its date, in UTC."""
    return "-" if at_s is None else f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d}"


def age(age_s: float | None) -> str:
    """In the largest unit that still tells."""
    if age_s is None:
        return "-"
    for limit, unit, size in ((120, "s", 1), (7200, "min", 60), (172800, "h", 3600)):
        if age_s < limit:
            return f"{age_s / size:.0f} {unit}"
    return f"{age_s / 86400:.0f} d"
