"""Where output goes: the screen or a file, one JSON document, and progress on standard error.

Verbatim everywhere: evidence may hold brackets and colons, which are no markup and no emoji. Knows
nothing of what is shown.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

FILE_WIDTH = 160


@contextmanager
def out(output: Path | None = None) -> Iterator[Console]:
    """Standard output, or a file; plain when it is no terminal."""
    if output is None:
        width = None if sys.stdout.isatty() else FILE_WIDTH
        yield Console(width=width, markup=False, emoji=False)
        return
    with output.open("w", encoding="utf-8") as file:
        yield Console(file=file, width=FILE_WIDTH, markup=False, emoji=False)


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
