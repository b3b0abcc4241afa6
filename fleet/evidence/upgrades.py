"""The record that two stacks were compared: which, by which campaigns, and what was traced.

    ledger/upgrades-<time>/000000.json    compared: both stacks, and each contract's evidence
    ledger/upgrades-<digest>/<seq>.json   step: one mixture of two stacks that a bisection tried

Each comparison has a chain of its own, so the landing's head covers it and a rebuild keeps it. It
names evidence and holds no verdict: whoever reads it asks the judge again. A bisection's chain is
found by what it is about, so that one that was interrupted goes on. Knows no rule.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from fleet.contract.canonical import digest_json
from fleet.evidence import ledger
from fleet.evidence.landing import Landing
from fleet.evidence.ledger import UPGRADES, Ledger


@dataclass(frozen=True)
class Side:
    """One stack, and the campaign that certified on it."""

    stack: str
    sha256: str
    campaign: str


@dataclass(frozen=True)
class Compared:
    """One contract's evidence. ``traces``: an attempt of each stack, or nothing; ``repeats``: those
    that repeated the call where these part; ``found``: what a bisection named, ``{"moves": [...],
    "alone": ...}``, or nothing."""

    contract: str
    execution_id: str
    traces: tuple[str, ...] = ()
    repeats: tuple[str, ...] = ()
    found: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Upgrade:
    """One comparison; ``changes``: (word, name, base, new) of everything that the stacks have
    otherwise."""

    id: str
    base: Side
    new: Side
    changes: tuple[tuple[str, str, str | None, str | None], ...]
    contracts: tuple[Compared, ...]
    at_s: float = 0.0


def log_upgrade(landing: Landing, upgrade: Upgrade) -> None:
    """Append it, whole and once."""
    body = asdict(upgrade)
    del body["id"], body["at_s"]
    Ledger(landing, upgrade.id).append("compared", **body)


def new_upgrade_id() -> str:
    """Of a comparison; sorts by time."""
    return f"{UPGRADES}{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


def read_upgrades(landing: Landing) -> list[Upgrade]:
    """Every comparison in time; what does not read as one is left out, for it gives no trust."""
    entries = [e for name in ledger.upgrade_chains(landing) for e in ledger.salvage(landing, name)]
    found = [_upgrade(e) for e in entries if e.kind == "compared"]
    return sorted((u for u in found if u is not None), key=lambda u: (u.at_s, u.id))


def _upgrade(entry: ledger.Entry) -> Upgrade | None:
    try:
        body = entry.body
        return Upgrade(
            entry.campaign,
            Side(**body["base"]),
            Side(**body["new"]),
            tuple((w, n, b, c) for w, n, b, c in body["changes"]),
            tuple(_compared(raw) for raw in body["contracts"]),
            entry.at_s,
        )
    except (KeyError, TypeError, ValueError):
        return None


def _compared(raw: Mapping[str, Any]) -> Compared:
    attempts = {name: tuple(raw.get(name, ())) for name in ("traces", "repeats")}
    return Compared(**{**raw, **attempts})


def bisection_id(base: str, new: str, execution_id: str) -> str:
    """The name of the chain of one bisection."""
    about = digest_json({"base": base, "new": new, "execution_id": execution_id})
    return f"{UPGRADES}{about.hex()[:24]}"


def steps_of(landing: Landing, name: str) -> tuple[Ledger, list[dict[str, Any]]]:
    """A bisection's chain, to be written on, and the steps that it holds.

    Raises:
        EvidenceError: the chain does not check.
    """
    chain, entries = Ledger.continued(landing, name)
    return chain, [entry.body for entry in entries if entry.kind == "step"]
