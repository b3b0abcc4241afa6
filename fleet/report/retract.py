"""``fleet retract``: which attempt is meant, and what its retraction means to whoever made it.

Holds no rule: the record is ``evidence.retractions``', its effect the judge's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from fleet.errors import UsageError
from fleet.evidence.landing import Landing
from fleet.evidence.ledger import campaigns, salvage
from fleet.evidence.retractions import Retraction
from fleet.report import screen


@dataclass(frozen=True)
class Retracted:
    """A record that was just made, and whether its key is one that counts here."""

    retraction: Retraction
    counts: bool

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        return {"schema": 1, "retraction": self.retraction.to_json(), "counts": self.counts}


def attempt_of(landing: Landing, beginning: str) -> str:
    """The one attempt, landed or planned, whose id begins so.

    Raises:
        UsageError: none, or several.
    """
    planned = {e.attempt for name in campaigns(landing) for e in salvage(landing, name)}
    known = {*planned, *landing.attempts()} - {""}
    found = sorted(name for name in known if beginning and name.startswith(beginning))
    if len(found) != 1:
        raise UsageError(
            "retract", beginning, "the id of one attempt, or an unambiguous beginning",
            f"{len(found)} attempts that begin so", "fleet status --json lists attempts",
        )  # fmt: skip
    return found[0]


def told(retraction: Retraction, trusted: Mapping[str, str]) -> Retracted:
    """Whether it counts for whoever trusts these keys."""
    return Retracted(retraction, retraction.fault is None and retraction.by in trusted)


def print_retracted(console: Console, found: Retracted) -> None:
    """For a person."""
    r = found.retraction
    screen.verbatim(console, f"attempt {r.attempt} retracted {r.at} by key {r.by}: {r.reason}")
    if found.counts:
        screen.verbatim(console, "  its evidence no longer counts; every verdict says so")
    else:
        screen.verbatim(console, "  recorded, but ignored here: this key is not a trusted one")
        screen.verbatim(console, f"  next: add `{r.by} NAME` to the file `keys` of the config path")
