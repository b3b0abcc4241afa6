"""The ledger: what the driver meant and saw, written before it acts.

One write-once object per entry, ``ledger/<campaign>/<seq>.json``, holding the digest of the one
before: one hash chain per campaign. Every planned attempt ends in exactly one of ``accepted`` (its
manifest closed it; COMPLETE, VOID or FAILED) or ``given_up`` (FAILED: death observed, or LOST: not
observed; with the digests of the parts that had landed, whose rows may show a difference). A gap is
VOID. Times live here, so that a rebuild keeps ages.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from fleet.contract.canonical import canonical_json, sha256, to_text
from fleet.contract.sample_ids import SampleIds, held_once
from fleet.errors import EvidenceError
from fleet.evidence.landing import Landing

LEDGER_FORMAT = 1
START = to_text(sha256(b"fleet-ledger-1\n"))

DECISIONS = "decisions-"
"""Chains of this name are of no campaign: they hold decisions about units."""

NIGHT = "planned-"
"""Nor are these: each holds what a night planned, and did not run; its campaigns are one a unit."""

RETRACTIONS, CERTIFICATES = "retracted-", "certificates-"
"""Nor are these: signed withdrawals of evidence, and the log of certificates."""

UPGRADES = "upgrades-"
"""Nor are these: comparisons of two software stacks, and the steps of a bisection between them."""

Kind = Literal[
    "campaign", "planned", "started", "go", "gone", "accepted", "given_up", "controls", "closed",
    "quarantined", "released", "pruned", "resumed", "night", "left_out",
    "retracted", "issued", "revoked", "compared", "step",
]  # fmt: skip
"""campaign: opened, with its contracts · planned · started: process identity seen alive · go: the
token that lets it use its unit, and after which attempt there · gone: death observed, from where ·
accepted: manifest digest · given_up: FAILED or LOST with its cause · controls: which contracts were
this campaign's controls · closed: its driver writes nothing more · resumed: another one goes on ·
night, left_out: in the chain of a night · quarantined, released: decisions about a unit, in chains
of their own · pruned: an attempt of another chain keeps a summary for its rows · retracted: a
signed record withdraws an attempt · issued, revoked: of certificates · compared, step: two stacks,
and a mixture of them."""


@dataclass(frozen=True)
class Entry:
    """One ledger entry. ``attempt`` is "" for entries about the whole campaign."""

    campaign: str
    seq: int
    kind: Kind
    attempt: str
    at_s: float
    body: dict[str, Any]
    previous: str
    format: int = LEDGER_FORMAT

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        body = {k: list(v) if isinstance(v, SampleIds) else v for k, v in self.body.items()}
        return canonical_json(asdict(replace(self, body=body)))


@dataclass
class Ledger:
    """The one writer of a campaign's chain."""

    landing: Landing
    campaign: str
    _seq: int = 0
    _head: str = field(default=START)

    @classmethod
    def continued(cls, landing: Landing, campaign: str) -> tuple[Ledger, list[Entry]]:
        """The chain as far as it goes, to be written on, and its entries; none of a new one.

        Raises:
            EvidenceError: see :func:`read_chain`.
        """
        entries = read_chain(landing, campaign)
        return cls(landing, campaign, len(entries), chain_head(landing, campaign)), entries

    def append(self, kind: Kind, attempt: str = "", **body: Any) -> Entry:
        """Write the next entry.

        Raises:
            FileExistsError: when another driver wrote this chain (two drivers, one campaign).
            LandingUnreachable: object storage does not answer; the entry may be there or not.
        """
        entry = Entry(self.campaign, self._seq, kind, attempt, time.time(), body, self._head)
        data = entry.to_bytes()
        self.landing.create(f"ledger/{self.campaign}/{self._seq:06d}.json", data)
        self._seq += 1
        self._head = to_text(sha256(data))
        return entry


def chain_folder(landing: Landing, campaign: str) -> Path:
    """Folder of one campaign's chain."""
    return landing.ledger / campaign


def campaigns(landing: Landing) -> list[str]:
    """Campaign names, sorted."""
    others = (DECISIONS, NIGHT, RETRACTIONS, CERTIFICATES, UPGRADES)
    return [name for name in _chains(landing) if not name.startswith(others)]


def decision_chains(landing: Landing) -> list[str]:
    """Names of the chains that hold decisions, sorted."""
    return [name for name in _chains(landing) if name.startswith(DECISIONS)]


def retraction_chains(landing: Landing) -> list[str]:
    """Names of the chains that hold retractions, sorted."""
    return [name for name in _chains(landing) if name.startswith(RETRACTIONS)]


def certificate_chains(landing: Landing) -> list[str]:
    """Names of the chains of the log of certificates, sorted."""
    return [name for name in _chains(landing) if name.startswith(CERTIFICATES)]


def upgrade_chains(landing: Landing) -> list[str]:
    """Names of the chains of comparisons of stacks, sorted."""
    return [name for name in _chains(landing) if name.startswith(UPGRADES)]


def _chains(landing: Landing) -> list[str]:
    if not landing.ledger.exists():
        return []
    return sorted(p.name for p in landing.ledger.iterdir() if p.is_dir())


def read_chain(landing: Landing, campaign: str) -> list[Entry]:
    """All entries of a campaign, checked.

    Raises:
        EvidenceError: on a gap, a broken chain, or an entry of another campaign.
    """
    entries: list[Entry] = []
    head, before = START, None
    for seq, path in enumerate(sorted(chain_folder(landing, campaign).glob("[0-9]*.json"))):
        data = path.read_bytes()
        entry = _parse(path, data)
        if (entry.campaign, entry.seq, path.stem) != (campaign, seq, f"{seq:06d}"):
            missing = f"{path.with_name(f'{seq:06d}.json')}: entry {seq} of {campaign} is missing"
            raise EvidenceError("ledger-gap", missing)
        if entry.previous != head:
            words = f"{before or path}: the chain is broken before {path.name}"
            raise EvidenceError("evidence-altered", words)
        _pack(entry)
        entries.append(entry)
        head, before = to_text(sha256(data)), path
    return entries


def salvage(landing: Landing, campaign: str) -> list[Entry]:
    """The entries of a broken chain that read as its own."""
    found = []
    for path in sorted(chain_folder(landing, campaign).glob("[0-9]*.json")):
        try:
            entry = Entry(**json.loads(path.read_bytes()))
        except (ValueError, TypeError):
            continue
        if entry.campaign == campaign and isinstance(entry.body, dict):
            found.append(entry)
    return found


def _pack(entry: Entry) -> None:
    """Hold planned samples packed, and those of all replays of one data set once."""
    listed = entry.body.get("sample_ids")
    if isinstance(listed, list) and all(isinstance(sample, str) for sample in listed):
        entry.body["sample_ids"] = held_once(listed)


def _parse(path: Path, data: bytes) -> Entry:
    try:
        entry = Entry(**json.loads(data))
    except (ValueError, TypeError) as error:
        raise EvidenceError("evidence-altered", f"{path}: not a ledger entry: {error}") from error
    if not isinstance(entry.body, dict):
        raise EvidenceError("evidence-altered", f"{path}: not a ledger entry: no body")
    if entry.format != LEDGER_FORMAT:
        raise EvidenceError("evidence-altered", f"{path}: ledger format {entry.format!r}")
    if entry.to_bytes() != data:
        raise EvidenceError("evidence-altered", f"{path}: not in canonical form")
    return entry


def chain_head(landing: Landing, campaign: str) -> str:
    """Digest of the last entry of a campaign."""
    files = sorted(chain_folder(landing, campaign).glob("[0-9]*.json"))
    return to_text(sha256(files[-1].read_bytes())) if files else START


Heads = dict[str, tuple[int, str]]
"""Chain -> its number of entries, and its head."""


def heads_of(landing: Landing, kind: str = "") -> Heads:
    """How far every chain goes whose name begins so."""
    found: Heads = {}
    for name in _chains(landing):
        if name.startswith(kind):
            files = sorted(chain_folder(landing, name).glob("[0-9]*.json"))
            found[name] = (len(files), to_text(sha256(files[-1].read_bytes())) if files else START)
    return found


def require_prefix(landing: Landing, name: str, length: int, head: str) -> None:
    """A chain that once had so many entries still has them: the last of them is as it was, and each
    holds the digest of the one before.

    Raises:
        EvidenceError: it lost some, or was changed there.
    """
    path = chain_folder(landing, name) / f"{length - 1:06d}.json"
    if length < 1 and (length, head) != (0, START):
        raise EvidenceError("evidence-altered", f"no chain {name} ever stood so: {length} entries")
    if length == 0:
        return
    if not path.exists():
        raise EvidenceError("ledger-gap", f"{path}: gone; the chain had {length} entries")
    if to_text(sha256(path.read_bytes())) != head:
        raise EvidenceError("evidence-altered", f"{path}: not the entry that stood here before")


def head_over(heads: Heads) -> str:
    """SHA-256 over sorted heads of chains: one value for all that they hold."""
    lines = [f"{name} {head}\n" for name, (_, head) in sorted(heads.items())]
    return to_text(sha256("".join(lines).encode()))


def landing_head(landing: Landing) -> str:
    """:func:`head_over` all chains: one value for everything the ledger holds."""
    return head_over(heads_of(landing))


def ends(entries: list[Entry]) -> Iterator[tuple[str, Entry | None]]:
    """``(planned attempt, its accepted or given_up entry or None)`` in the order planned."""
    closing = {e.attempt: e for e in entries if e.kind in ("accepted", "given_up")}
    for entry in entries:
        if entry.kind == "planned":
            yield entry.attempt, closing.get(entry.attempt)
