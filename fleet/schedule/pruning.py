"""``fleet store prune``: rows of old, superseded replays go; a summary bound by the ledger stays.

In this order, so that a process killed anywhere loses nothing: the summary, the ledger's entry,
then the rows, in object storage and here. Each attempt and its like are derived from their bytes
once more before anything is written. Which may go is the judge's rule.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from fleet.contract.canonical import sha256, to_text
from fleet.errors import StoreError
from fleet.evidence.landing import Landing
from fleet.evidence.ledger import Ledger
from fleet.evidence.retired import CHAIN, SUMMARY, Kept, retired
from fleet.evidence.summarise import summarise
from fleet.evidence.summary import AttemptSummary
from fleet.judge.retention import prunable
from fleet.store import queries
from fleet.store.chains import read_chains, stories
from fleet.store.open import Store

Say = Callable[[str], None]


@dataclass(frozen=True)
class Doomed:
    """One attempt whose rows may go. ``like`` shows the same and keeps its own."""

    attempt: str
    contract: str
    like: str
    files: tuple[str, ...]
    num_bytes: int


@dataclass(frozen=True)
class Pruning:
    """What a prune did, or would do. ``leftovers``: files of attempts that were pruned before."""

    attempts: tuple[Doomed, ...]
    leftovers: tuple[str, ...]
    num_bytes: int
    chain: str | None

    def to_json(self) -> dict[str, object]:
        """JSON-able form."""
        return {"schema": 1} | asdict(self)


def plan_prune(store: Store, landing: Landing, older_than_s: float) -> Pruning:
    """What may go, of a store that was just brought up to the landing."""
    known = queries.summaries(store.con)
    by_id = {s.attempt: s for s in known}
    chosen = prunable(known, time.time() - older_than_s)
    doomed = [_doomed(landing, by_id[a], like) for a, like in sorted(chosen.items())]
    # the summary that stands for them was just held against ledger and manifest
    before = sorted(a for a in retired(landing) if a in by_id and by_id[a].pruned)
    left = [p for a in before for p in landing.tables(a)]
    names = tuple(str(p.relative_to(landing.root)) for p in left)
    total = sum(d.num_bytes for d in doomed) + sum(p.stat().st_size for p in left)
    return Pruning(tuple(doomed), names, total, None)


def _doomed(landing: Landing, summary: AttemptSummary, like: str) -> Doomed:
    files = landing.tables(summary.attempt)
    names = tuple(str(p.relative_to(landing.root)) for p in files)
    return Doomed(
        summary.attempt, summary.contract, like, names, sum(p.stat().st_size for p in files)
    )


def prune(landing: Landing, planned: Pruning, argv: Sequence[str], say: Say) -> Pruning:
    """Carry it out.

    Raises:
        StoreError: an attempt is not what the store says any more; nothing of it has been removed.
    """
    _remove(landing, planned.leftovers)
    if not planned.attempts:
        return planned
    name = f"{CHAIN}{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
    told = {
        story.attempt: story.entries for story in stories(landing, read_chains(landing, {}), {})
    }
    ledger = Ledger(landing, name)
    ledger.append("campaign", contracts=[], argv=list(argv), driver=secrets.token_hex(8))
    try:
        for number, doomed in enumerate(planned.attempts, start=1):
            say(f"[{number}/{len(planned.attempts)}] {doomed.contract} {doomed.attempt}")
            summary, like = (
                summarise(landing, a, told.get(a, [])) for a in (doomed.attempt, doomed.like)
            )
            data = _kept(landing, summary, like)
            _create_once(landing, f"attempts/{doomed.attempt}/{SUMMARY}", data)
            digest = to_text(sha256(data))
            ledger.append("pruned", doomed.attempt, summary_sha256=digest, like=doomed.like)
            _remove(landing, doomed.files)
    finally:
        ledger.append("closed")
    return Pruning(planned.attempts, planned.leftovers, planned.num_bytes, name)


def _kept(landing: Landing, summary: AttemptSummary, like: AttemptSummary) -> bytes:
    """The summary to keep, derived from the rows that are about to go."""
    whole = summary.state == like.state == "COMPLETE" and not like.pruned
    if not whole or (summary.roots, summary.arms) != (like.roots, like.arms):
        raise StoreError(
            landing.place, summary.attempt, f"rows that say the same as those of {like.attempt}",
            f"{summary.state} and {like.state}", "fleet store ingest, then look at fleet status",
        )  # fmt: skip
    return Kept.of(summary).to_bytes()


def _create_once(landing: Landing, name: str, data: bytes) -> None:
    """An earlier prune may have come so far."""
    try:
        landing.create(name, data)
    except FileExistsError:
        if (landing.root / name).read_bytes() != data:
            raise


def _remove(landing: Landing, names: Sequence[str]) -> None:
    if landing.remote is not None:
        landing.remote.remove(names)
    for name in names:
        Path(landing.root / name).unlink(missing_ok=True)
