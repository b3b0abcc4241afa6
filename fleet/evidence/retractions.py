"""Retractions: somebody withdrew an attempt's evidence, and signed it with a reason.

    ledger/retracted-<time>/000000.json    one signed record, in a chain of its own

The record names the attempt, the digest of what it left, and its own public key, so that a
signature can be checked by everybody; whether that key counts is each reader's to declare. What is
recorded stays: evidence is never removed, and a record that is no good is read, told and ignored.
Knows no verdict (law 3 is the judge's).
"""

from __future__ import annotations

import secrets
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from fleet.contract.canonical import sha256, to_text
from fleet.errors import EvidenceError, UsageError
from fleet.evidence import ledger, signing
from fleet.evidence.landing import Landing
from fleet.evidence.ledger import RETRACTIONS, Entry, Ledger
from fleet.evidence.statement import RETRACTION, read_statement, statement, utc

if TYPE_CHECKING:
    from securesystemslib.signer import CryptoSigner


@dataclass(frozen=True)
class Retraction:
    """One record. ``by``: the id of its key. ``fault``: why it is not what it claims to be; None
    when the key signed it and the attempt is the one that landed."""

    attempt: str
    reason: str
    by: str
    at: str
    chain: str
    fault: str | None = None

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        return asdict(self)


def record(
    landing: Landing, attempt: str, reason: str, signer: CryptoSigner, at_s: float
) -> Retraction:
    """Append a signed retraction.

    Raises:
        UsageError: no such attempt, or no reason.
    """
    if not reason.strip():
        raise UsageError(
            "retract", "--reason", "why the evidence is withdrawn", "nothing", "say it"
        )
    digest = left_by(landing, attempt)
    if digest is None:
        fix = "fleet status --json lists attempts"
        raise UsageError("retract", attempt, "an attempt of this landing", "none", fix)
    key = signer.public_key
    predicate = {
        "attempt": attempt,
        "reason": reason.strip(),
        "at": utc(at_s),
        "public_key": key.keyval["public"],
    }
    data = signing.sign(statement(RETRACTION, {attempt: digest}, predicate), signer)
    name = f"{RETRACTIONS}{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
    entry = Ledger(landing, name).append("retracted", attempt, envelope=data.decode())
    return _read(landing, entry)


def left_by(landing: Landing, attempt: str) -> str | None:
    """The digest that a retraction binds: of the manifest, else of the entry that planned it; None
    when there is neither."""
    manifest = landing.manifest(attempt)
    if manifest.exists():
        return to_text(sha256(manifest.read_bytes()))
    for name in ledger.campaigns(landing):
        for entry in ledger.salvage(landing, name):
            if entry.kind == "planned" and entry.attempt == attempt:
                return to_text(sha256(entry.to_bytes()))
    return None


def read(landing: Landing) -> list[Retraction]:
    """Every record, by time; those that are no good too. A signature needs no chain to hold.

    Raises:
        CannotRunError: there are some, and the library that checks signatures is missing.
    """
    entries = [
        e for name in ledger.retraction_chains(landing) for e in ledger.salvage(landing, name)
    ]
    return sorted((_read(landing, e) for e in entries), key=lambda r: (r.at, r.chain, r.attempt))


def _read(landing: Landing, entry: Entry) -> Retraction:
    data = str(entry.body.get("envelope", "")).encode()
    claimed: dict[str, Any] = {}
    by = ""
    try:
        by = signing.signed_by(data)
        claimed = read_statement(signing.unverified(data), RETRACTION)[1]
        fault = _fault(landing, entry, data)
    except EvidenceError as error:
        fault = error.text
    told = {key: str(claimed.get(key, "")) for key in ("reason", "at")}
    return Retraction(entry.attempt, **told, by=by, chain=entry.campaign, fault=fault)


def _fault(landing: Landing, entry: Entry, data: bytes) -> str | None:
    """Held against its own signature, its entry, and what the attempt left."""
    predicate = read_statement(signing.unverified(data), RETRACTION)[1]
    try:
        key = signing.key_from_hex(str(predicate["public_key"]))
    except (KeyError, ValueError) as error:
        raise EvidenceError("evidence-altered", "it holds no public key") from error
    subjects, signed = read_statement(signing.open_envelope(data, key).payload, RETRACTION)
    words = ("attempt", "reason", "at", "public_key")
    if set(signed) != set(words) or not all(isinstance(signed[k], str) for k in words):
        return f"its keys are not {', '.join(words)}"
    if signed["attempt"] != entry.attempt or set(subjects) != {entry.attempt}:
        return f"signed of attempt {signed['attempt']}, recorded of {entry.attempt}"
    if subjects[entry.attempt] != left_by(landing, entry.attempt):
        return "signed of other bytes than the attempt left"
    return None
