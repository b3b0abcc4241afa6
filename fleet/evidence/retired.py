"""What stays of an attempt whose rows were pruned: its summary, bound by the ledger.

    attempts/<attempt>/summary.json     what its rows said, canonical, written once
    ledger/pruned-<time>/<seq>.json     the digest of that summary, in a chain of its own

The manifest, its digest in the ledger and the roots in it stay, so a summary can add nothing to
what was accepted; counts and column digests, which no manifest holds, rest on the chain. Knows no
rule about what may be pruned.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from fleet.contract.canonical import canonical_json, sha256, to_text
from fleet.errors import EvidenceError
from fleet.evidence import ledger
from fleet.evidence.landing import Landing
from fleet.evidence.ledger import Entry
from fleet.evidence.manifest import Manifest
from fleet.evidence.summary import ArmSummary, AttemptSummary, Power

SUMMARY = "summary.json"
CHAIN = "pruned-"
"""How the name of a chain begins that says what was pruned; it plans nothing."""
SUMMARY_FORMAT = 1


@dataclass(frozen=True)
class Kept:
    """What the rows of one COMPLETE attempt said, as :class:`AttemptSummary` has it."""

    attempt: str
    rows: int
    arms: dict[str, ArmSummary]
    roots: dict[str, str]
    power: Power
    trace: dict[str, Any]
    format: int = SUMMARY_FORMAT

    @classmethod
    def of(cls, summary: AttemptSummary) -> Kept:
        """Of a summary that was just derived from rows."""
        s = summary
        assert s.power is not None and s.state == "COMPLETE"
        return cls(s.attempt, s.rows, s.arms, s.roots, s.power, s.trace)

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        return canonical_json(asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> Kept:
        """Read :meth:`to_bytes`.

        Raises:
            EvidenceError: when it is none, or was written by newer code.
        """
        try:
            raw = json.loads(data)
            if raw["format"] != SUMMARY_FORMAT:
                raise ValueError(f"format {raw['format']!r}")
            arms = {name: ArmSummary(**arm) for name, arm in raw["arms"].items()}
            return cls(**raw | {"arms": arms, "power": Power(**raw["power"])})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise EvidenceError(
                "evidence-altered", f"{SUMMARY}: not a kept summary: {error}"
            ) from error


def read_kept(landing: Landing, entry: Entry, manifest: Manifest) -> Kept:
    """The summary that a *pruned* entry names, held against it and the manifest.

    Raises:
        EvidenceError: evidence-altered, where they do not agree.
    """
    path = landing.attempt(entry.attempt) / SUMMARY
    if not path.exists():
        raise EvidenceError("evidence-altered", f"{SUMMARY}: pruned, but its summary is gone")
    data = path.read_bytes()
    if to_text(sha256(data)) != entry.body.get("summary_sha256"):
        raise EvidenceError("evidence-altered", f"{SUMMARY} is not the one the ledger names")
    kept = Kept.from_bytes(data)
    arm_roots = {name: arm.roots for name, arm in kept.arms.items()}
    if (kept.attempt, kept.roots, arm_roots) != (
        manifest.attempt, manifest.roots, manifest.arm_roots,
    ):  # fmt: skip
        raise EvidenceError("evidence-altered", f"{SUMMARY} does not give the manifest's roots")
    return kept


def retired(landing: Landing) -> dict[str, Entry]:
    """Attempt -> the entry that says its rows were pruned, of every chain that checks."""
    found: dict[str, Entry] = {}
    for campaign in ledger.campaigns(landing):
        if campaign.startswith(CHAIN):
            try:
                entries = ledger.read_chain(landing, campaign)
            except EvidenceError:
                continue
            found |= {e.attempt: e for e in entries if e.kind == "pruned"}
    return found
