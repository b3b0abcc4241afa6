"""The log of certificates: which were issued, over what state of the landing, and which revoked.

    ledger/certificates-<time>/000000.json    issued: the envelope, and how far every chain went
    ledger/certificates-<time>/000000.json    revoked: the digest of an envelope, and why

Each record has a chain of its own, so the landing's head covers it. A revocation is a fact about
evidence, as a quarantine is: no key signs it, the chain covers it, and whoever doubts it derives it
again. Knows no verdict and no signature.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from fleet.contract.canonical import sha256, to_text
from fleet.evidence import ledger
from fleet.evidence.landing import Landing
from fleet.evidence.ledger import CERTIFICATES, Heads, Ledger


@dataclass(frozen=True)
class Revocation:
    """Why a certificate does not hold any more: ``campaign`` is the one with whose end that was
    seen, ``reason`` the words of the FAIL."""

    certificate: str
    campaign: str
    reason: str
    at_s: float

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        return asdict(self)


@dataclass(frozen=True)
class Issued:
    """One certificate of the log; ``heads``: the chains that its verdict could see."""

    digest: str
    envelope: bytes
    heads: Heads
    at_s: float
    revocations: tuple[Revocation, ...] = ()


def log_issue(landing: Landing, envelope: bytes, heads: Heads) -> None:
    """Append that a certificate was issued over this state of the landing."""
    table = {name: list(head) for name, head in heads.items()}
    _chain(landing).append("issued", envelope=envelope.decode(), heads=table)


def log_revocation(landing: Landing, certificate: str, campaign: str, reason: str) -> None:
    """Append that a certificate does not hold any more."""
    _chain(landing).append("revoked", certificate=certificate, campaign=campaign, reason=reason)


def _chain(landing: Landing) -> Ledger:
    name = f"{CERTIFICATES}{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
    return Ledger(landing, name)


def read_log(landing: Landing) -> list[Issued]:
    """Every certificate by the time of its issue. Of a chain that does not check a revocation is
    believed too: a doubt takes trust away, and gives none."""
    names = ledger.certificate_chains(landing)
    entries = [entry for name in names for entry in ledger.salvage(landing, name)]
    revoked: dict[str, tuple[Revocation, ...]] = {}
    for entry in entries:
        if entry.kind == "revoked":
            words = {k: str(entry.body.get(k, "")) for k in ("certificate", "campaign", "reason")}
            found = Revocation(**words, at_s=entry.at_s)
            revoked[found.certificate] = (*revoked.get(found.certificate, ()), found)
    issued = []
    for entry in entries:
        heads = _heads(entry.body.get("heads"))
        if entry.kind == "issued" and heads is not None:
            data = str(entry.body.get("envelope", "")).encode()
            digest = to_text(sha256(data))
            issued.append(Issued(digest, data, heads, entry.at_s, revoked.get(digest, ())))
    return sorted(issued, key=lambda each: (each.at_s, each.digest))


def _heads(raw: Any) -> Heads | None:
    """None for what is no table of heads."""
    if not isinstance(raw, Mapping):
        return None
    try:
        return {str(name): (int(length), str(head)) for name, (length, head) in raw.items()}
    except (TypeError, ValueError):
        return None
