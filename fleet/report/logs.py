"""Standard output and standard error of an attempt, as its process left them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from fleet.errors import UsageError
from fleet.evidence.landing import Landing


@dataclass(frozen=True)
class Logs:
    """Both streams, undecodable bytes replaced."""

    attempt: str
    stdout: str
    stderr: str

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        return {"schema": 1} | asdict(self)


def read_logs(landing: Landing, beginning: str) -> Logs:
    """Logs of the one attempt whose id begins so.

    Raises:
        UsageError: no attempt, or several, begin so.
    """
    found = [name for name in landing.attempts() if name.startswith(beginning)]
    if len(found) != 1 or not beginning:
        raise UsageError(
            "logs",
            beginning,
            "the id of one landed attempt, or an unambiguous beginning",
            f"{len(found)} attempts that begin so",
            "fleet status --json lists attempts",
        )
    folder = landing.attempt(found[0])
    return Logs(found[0], _text(folder / "stdout.txt"), _text(folder / "stderr.txt"))


def print_logs(console: Console, logs: Logs) -> None:
    """For a person, each line as it was."""
    for name, text in (("stdout", logs.stdout), ("stderr", logs.stderr)):
        console.print(f"--- {logs.attempt} {name}", highlight=False)
        console.print(text, highlight=False, soft_wrap=True)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
