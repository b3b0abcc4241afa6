"""Standard output and standard error of an attempt, as its process left them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from fleet.errors import EvidenceError, UsageError
from fleet.evidence.landing import Landing, file_sha256
from fleet.evidence.manifest import Manifest

STREAMS = ("stdout", "stderr")


@dataclass(frozen=True)
class Logs:
    """Both streams, undecodable bytes replaced; ``altered``: those that are not what the manifest
    names. No verdict depends on them."""

    attempt: str
    stdout: str
    stderr: str
    altered: tuple[str, ...] = ()

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
    stdout, stderr = (_text(folder / f"{name}.txt") for name in STREAMS)
    return Logs(found[0], stdout, stderr, _altered(landing, found[0]))


def _altered(landing: Landing, attempt: str) -> tuple[str, ...]:
    """None of a replay without a manifest: nobody says what it printed."""
    try:
        named = Manifest.from_bytes(landing.manifest(attempt).read_bytes()).logs
    except (OSError, EvidenceError):
        return ()
    files = {name: landing.attempt(attempt) / f"{name}.txt" for name in STREAMS}
    there = {name: file_sha256(path) for name, path in files.items() if path.exists()}
    return tuple(name for name in STREAMS if there.get(name) != named.get(name))


def print_logs(console: Console, logs: Logs) -> None:
    """For a person, each line as it was."""
    for name, text in (("stdout", logs.stdout), ("stderr", logs.stderr)):
        odd = " (altered: not what the manifest names)" if name in logs.altered else ""
        console.print(f"--- {logs.attempt} {name}{odd}", highlight=False)
        console.print(text, highlight=False, soft_wrap=True)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
