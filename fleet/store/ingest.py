"""Bring the store up to what the landing holds. Doing it twice changes nothing.

An attempt is looked at again when one of its files changed (size, mtime, ctime: a time that was
set back still shows in ctime) or the ledger says more of it, so an edited shard is noticed at the
next ingest. One transaction per attempt: a process killed half-way leaves whole attempts.

Knows no verdict. Keeps law 2: the store is derived, the landing is the truth.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import fleet
from fleet.contract.canonical import sha256, to_text
from fleet.errors import EvidenceError, StoreError
from fleet.evidence import ledger, retractions
from fleet.evidence.landing import Landing
from fleet.evidence.manifest import Manifest
from fleet.evidence.mirror import altered
from fleet.evidence.retired import SUMMARY
from fleet.evidence.summarise import summarise
from fleet.evidence.summary import AttemptSummary
from fleet.store import write
from fleet.store.chains import Chain, Story, read_chains, stories
from fleet.store.hashes import classify_parts, load_hashes
from fleet.store.heap import release_freed
from fleet.store.open import Store, transaction
from fleet.store.views import replace_landing_views

OnAttempt = Callable[[int, int], None]
"""Called after each attempt with (done, total)."""


@dataclass(frozen=True)
class IngestReport:
    """What one ingest did. ``rows`` are narrow rows inserted; ``warnings`` are for a person."""

    campaigns: int
    attempts: int
    new: int
    changed: int
    unchanged: int
    rows: int
    warnings: tuple[str, ...]


def ingest(store: Store, landing: Landing, on_attempt: OnAttempt | None = None) -> IngestReport:
    """Take in what is new or changed.

    Raises:
        StoreError: an attempt that this version cannot store, a store that refuses the write, or a
            landing that lacks attempts the store knows: evidence never disappears in silence.
    """
    chains = read_chains(landing)
    told = stories(landing, chains)
    known = dict(store.con.execute("SELECT attempt, seen FROM attempts").fetchall())
    _require_nothing_gone(store, landing, known.keys() - {story.attempt for story in told})
    count = Counter[str]()
    for done, story in enumerate(told, start=1):
        seen = _seen(landing, story)
        if known.get(story.attempt) == seen:
            count["unchanged"] += 1
        else:
            count["rows"] += _take(store, landing, story, seen)
            count["changed" if story.attempt in known else "new"] += 1
        if on_attempt is not None:
            on_attempt(done, len(told))
    faults = [*_finish(store, landing, chains), *altered(landing).values()]
    release_freed()
    return IngestReport(
        campaigns=len(chains),
        attempts=len(told),
        new=count["new"],
        changed=count["changed"],
        unchanged=count["unchanged"],
        rows=count["rows"],
        warnings=(*(f"campaign {c.campaign}: {c.fault}" for c in chains if c.fault), *faults),
    )


def _require_nothing_gone(store: Store, landing: Landing, gone: Collection[str]) -> None:
    if gone:
        raise StoreError(
            str(store.path),
            "",
            f"a landing with all attempts that this store knows ({landing.root})",
            f"{len(gone)} attempts that are not there, first {min(gone)}",
            "the right --landing; or fleet store rebuild, which starts from this landing alone",
        )


def _take(store: Store, landing: Landing, story: Story, seen: str) -> int:
    """Check one attempt and store it, in place of what was stored of it. Returns narrow rows."""
    summary = _summarise(landing, story)
    found, manifest = _manifest(landing, story.attempt)
    named = _vouched(story, found, manifest)
    parts = classify_parts(store.con, landing.parts(story.attempt), summary.state, named)
    release_freed()  # what the rows' check took and freed, before DuckDB fills its own memory
    with transaction(store, f"attempt {story.attempt}"):
        write.forget_attempt(store.con, story.attempt)
        key = write.next_key(store.con)
        write.insert_attempt(store.con, key, summary, found, seen)
        write.insert_summaries(store.con, key, summary)
        write.insert_parts(store.con, key, parts)
        if manifest is not None:
            write.insert_facts(store.con, manifest)
            write.insert_trace(store.con, key, manifest)
        return load_hashes(store.con, key, story.attempt, parts)


def _summarise(landing: Landing, story: Story) -> AttemptSummary:
    summary = summarise(landing, story.attempt, story.entries)
    kept = story.fault is not None and story.fault.details.get("original_kept")
    if story.fault is None or (kept and summary.state == "VOID"):
        return summary
    return replace(summary, state="VOID", cause=story.fault, arms={}, roots={}, power=None)


def _manifest(landing: Landing, attempt: str) -> tuple[bytes | None, Manifest | None]:
    """Digest of the manifest's bytes, and the manifest when it reads as one."""
    path = landing.manifest(attempt)
    if not path.exists():
        return None, None
    data = path.read_bytes()
    try:
        return sha256(data), Manifest.from_bytes(data)
    except EvidenceError:
        return sha256(data), None


def _vouched(story: Story, found: bytes | None, manifest: Manifest | None) -> dict[str, str] | None:
    """Part name -> digest that somebody vouches for; None when nobody ever did.

    An accepted attempt is vouched for by the manifest that the ledger names, and by no other.
    """
    accepted = story.accepted()
    if accepted is not None:
        same = found is not None and to_text(found) == accepted.body.get("manifest_sha256")
        return _named(manifest) if same and manifest is not None else {}
    return _named(manifest) if manifest is not None else None


def _named(manifest: Manifest) -> dict[str, str]:
    return {part.name: part.sha256 for part in manifest.parts}


def _seen(landing: Landing, story: Story) -> str:
    """A digest of all that a summary depends on, the code's version included, read from no row."""
    summary = landing.attempt(story.attempt) / SUMMARY
    files = [landing.manifest(story.attempt), summary, *landing.tables(story.attempt)]
    stats = [_stat(path) for path in files]
    return sha256(repr((fleet.__version__, story.digest(), stats)).encode()).hex()


def _stat(path: Path) -> tuple[str, int, int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return path.name, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _finish(store: Store, landing: Landing, chains: Sequence[Chain]) -> list[str]:
    """What is small is written anew: campaigns, contracts, views over the landing."""
    bodies, faults = _contracts(landing)
    withdrawn = retractions.read(landing)
    faults += [
        *(f"retraction of {r.attempt} in {r.chain}: {r.fault}" for r in withdrawn if r.fault),
        *_broken(landing),
    ]
    with transaction(store, "campaigns"):
        write.replace_campaigns(store.con, chains)
        write.replace_contracts(store.con, chains, bodies)
        write.replace_retractions(store.con, withdrawn)
        write.drop_unused_facts(store.con)
        replace_landing_views(store.con, landing)
    return faults


def _broken(landing: Landing) -> Iterator[str]:
    """Chains of retractions that do not check: a record of them may be missing."""
    for name in ledger.retraction_chains(landing):
        try:
            ledger.read_chain(landing, name)
        except EvidenceError as error:
            yield f"chain {name}: {error}"


def _contracts(landing: Landing) -> tuple[dict[bytes, dict[str, object]], list[str]]:
    """What execution ids stand for: shown to people, read by no verdict."""
    try:
        return landing.contracts(), []
    except ValueError as error:
        return {}, [f"contracts: {error}"]
