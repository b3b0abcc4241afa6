"""Decisions about units: quarantined, released. Append-only evidence beside the campaigns.

Each time that anything is decided, one chain ``ledger/decisions-<id>/`` is written, in the form of
a campaign's: write-once entries, each holding the digest of the one before, so the landing's head
covers them. A decision names the replays it rests on, so that it can be derived again. Knows no
rule: what is due is the judge's to say.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from fleet.errors import EvidenceError
from fleet.evidence import ledger
from fleet.evidence.landing import Landing
from fleet.evidence.ledger import DECISIONS, Entry, Ledger


class DecisionKey(NamedTuple):
    """What a decision is about: a unit, by the exact repeats of one contract at one grade."""

    unit: str
    execution_id: str
    traced: bool
    grade: str


@dataclass(frozen=True)
class Decision:
    """One decision; a release ends the quarantine of the same :class:`DecisionKey`.

    Evidence accepted up to ``as_of_s`` was looked at. Counts are replays: fresh ones of a
    quarantine, those of the ``nights`` of a release. ``attempts`` and ``attempts_elsewhere`` are
    what was counted, ``raised_by`` the odd replay before them, which was not. ``rule`` is the
    version of the rules that decided.
    """

    kind: Literal["quarantined", "released"]
    unit: str
    contract: str
    execution_id: str
    platform: str
    traced: bool
    grade: str
    as_of_s: float
    rule: int
    odd: int
    replays: int
    elsewhere_odd: int
    elsewhere_replays: int
    p: float | None = None
    nights: int | None = None
    raised_by: str | None = None
    attempts: tuple[str, ...] = ()
    attempts_elsewhere: tuple[str, ...] = ()

    @property
    def key(self) -> DecisionKey:
        """What it is about."""
        return DecisionKey(self.unit, self.execution_id, self.traced, self.grade)

    def in_words(self) -> str:
        """For a person, without the unit."""
        on = f"{datetime.fromtimestamp(self.as_of_s, UTC):%Y-%m-%d} on {self.contract}"
        if self.kind == "released":
            return f"released {on} after {self.nights} clean nights, {self.replays} replays"
        counts = f"{self.odd}/{self.replays} vs {self.elsewhere_odd}/{self.elsewhere_replays}"
        return f"quarantined {on}, {counts}, p={self.p:.2g}"

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        lists = {key: list(getattr(self, key)) for key in ("attempts", "attempts_elsewhere")}
        return asdict(self) | lists


def record(landing: Landing, decisions: Iterable[Decision]) -> None:
    """Write decisions as one chain of their own; nothing when there are none."""
    stamp = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
    chain = Ledger(landing, f"{DECISIONS}{stamp}")
    for decision in decisions:
        body = decision.to_json()
        chain.append(body.pop("kind"), **body)


def read(landing: Landing) -> list[Decision]:
    """All decisions in the order decided.

    Of a chain that does not check, releases are not believed and quarantines are: a doubt keeps a
    unit out, and never lets one in.
    """
    found = [d for name in ledger.decision_chains(landing) for d in _read(landing, name)]
    return sorted(found, key=lambda d: (d.as_of_s, d.kind == "released"))


def _read(landing: Landing, name: str) -> list[Decision]:
    try:
        return [_decision(entry) for entry in ledger.read_chain(landing, name)]
    except EvidenceError:
        kept = []
        for entry in ledger.salvage(landing, name):
            try:
                kept.append(_decision(entry))
            except EvidenceError:
                continue
        return [d for d in kept if d.kind == "quarantined"]


def _decision(entry: Entry) -> Decision:
    lists = {key: tuple(entry.body.get(key, ())) for key in ("attempts", "attempts_elsewhere")}
    if entry.kind not in ("quarantined", "released"):
        raise EvidenceError("evidence-altered", f"{entry.campaign}: {entry.kind} is no decision")
    try:
        return Decision(kind=entry.kind, **entry.body | lists)
    except TypeError as error:
        raise EvidenceError(
            "evidence-altered", f"{entry.campaign}: no decision: {error}"
        ) from error


def in_force(decisions: Iterable[Decision]) -> dict[DecisionKey, Decision]:
    """The newest decision about each key; its unit is quarantined by it, or released."""
    return {decision.key: decision for decision in decisions}


def standing(landing: Landing) -> dict[str, tuple[Decision, ...]]:
    """Unit -> the decisions in force about it, releases included."""
    found: dict[str, tuple[Decision, ...]] = {}
    for decision in in_force(read(landing)).values():
        found[decision.unit] = (*found.get(decision.unit, ()), decision)
    return found


def quarantined(landing: Landing) -> dict[str, tuple[Decision, ...]]:
    """Units that only the nightly look at them should go to -> the quarantines in force."""
    told = {
        unit: tuple(d for d in found if d.kind == "quarantined")
        for unit, found in standing(landing).items()
    }
    return {unit: found for unit, found in told.items() if found}
