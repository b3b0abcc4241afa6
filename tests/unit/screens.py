"""What a printer prints, as text."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from rich.console import Console


def shown(print_it: Callable[[Console, Any], None], what: Any, width: int = 160) -> str:
    """The output of a printer on a plain console."""
    file = io.StringIO()
    print_it(Console(file=file, width=width, markup=False, emoji=False), what)
    return file.getvalue()
