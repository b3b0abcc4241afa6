"""Bring the store up to what the landing holds. Doing it twice changes nothing.

An attempt is looked at again when one of its files changed (size, mtime, ctime: a time that was
set back still shows in ctime) or the ledger says more of it, so an edited shard is noticed at the
next ingest. One transaction per attempt: a process killed half-way leaves whole attempts.

Knows no verdict. Keeps law 2: the store is derived, the landing is the truth.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args

import fleet
from fleet.contract.canonical import sha256, to_text
from fleet.errors import EvidenceError, StoreError
from fleet.evidence import ledger, retractions
from fleet.evidence.contracts import KeptContracts, read_contracts
from fleet.evidence.landing import Landing
from fleet.evidence.ledger import Heads
from fleet.evidence.manifest import Manifest
from fleet.evidence.mirror import altered
from fleet.evidence.retired import SUMMARY
from fleet.evidence.states import Purpose
from fleet.evidence.summarise import summarise
from fleet.evidence.summary import AttemptSummary
from fleet.store import queries, write
from fleet.store.chains import Chain, Story, planned, read_chains, stories
from fleet.store.hashes import classify_parts, load_hashes
from fleet.store.heap import release_freed
from fleet.store.open import Store, accept, lost, refuse, transaction
from fleet.store.seal import ATTEMPTS, FACTS, TABLES, seal, seal_attempt
from fleet.store.views import replace_landing_views

OnAttempt = Callable[[int, int], None]
"""Called after each attempt with (done, total)."""


NOTHING_SEEN: Heads = {}


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


def ingest(
    store: Store, landing: Landing, on_attempt: OnAttempt | None = None, heads: Heads = NOTHING_SEEN
) -> IngestReport:
    """Take in what is new or changed.

    Args:
        store: opened for writing.
        landing: the evidence.
        on_attempt: told of progress.
        heads: how far its chains went when another store saw it.

    Raises:
        StoreError: an attempt that this version cannot store, a store that refuses the write, or a
            landing that lacks chains or attempts the store knows: evidence never disappears in
            silence, and nothing is derived from the store until it is back.
    """
    heads = queries.heads(store.con) | heads
    require_no_chain_gone(store, landing, heads)
    chains = read_chains(landing, heads)
    kept = read_contracts(landing, {digest for digest, _ in planned(chains)})
    told = stories(landing, chains, kept.faults)
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
    faults = [*_finish(store, landing, chains, kept, heads), *altered(landing).values()]
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


def require_no_chain_gone(store: Store, landing: Landing, heads: Heads) -> None:
    """A campaign that was changed is VOID; of one that is gone nobody can say what it was about,
    and what other chains hold stands nowhere else."""
    mine = set(ledger.campaigns(landing))
    for name, head in heads.items():
        try:
            if name not in mine:
                ledger.require_prefix(landing, name, *head)
        except EvidenceError as error:
            refuse(store, error.text)
            raise lost(store.path, error.text) from error


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
        rows = load_hashes(store.con, key, story.attempt, parts)
        seal_attempt(store.con, key)
        seal(store.con, (ATTEMPTS, *FACTS))
    return rows


def _summarise(landing: Landing, story: Story) -> AttemptSummary:
    summary = summarise(landing, story.attempt, story.entries)
    kept = story.fault is not None and story.fault.details.get("original_kept")
    if story.fault is None or (kept and summary.state == "VOID"):
        return summary
    told = {f.name: _plain(f.type, getattr(summary, f.name)) for f in fields(summary)}
    told |= {"state": "VOID", "cause": story.fault, "arms": {}, "roots": {}, "power": None}
    return replace(summary, **told)


def _plain(kind: Any, value: Any) -> Any:
    """What a broken chain says may be anything; a store takes only words and numbers it knows."""
    if kind == "Purpose":
        return value if value in get_args(Purpose) else "certify"
    if kind == "int":
        return value if type(value) is int and abs(value) < 2**31 else -1
    if kind == "tuple[str, ...]":
        return tuple(map(str, value))
    return str(value) if kind == "str" else value


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


def _finish(
    store: Store, landing: Landing, chains: Sequence[Chain], kept: KeptContracts, heads: Heads
) -> list[str]:
    """What is small is written anew: campaigns, contracts, views over the landing."""
    withdrawn = retractions.read(landing)
    told = {chain.fault.text for chain in chains if chain.fault}
    told |= {*kept.faults.values(), *altered(landing).values()}
    faults = [
        *kept.faults.values(),
        *(f"attempt {a}: {text}" for a, text in queries.altered(store.con) if text not in told),
        *(f"retraction of {r.attempt} in {r.chain}: {r.fault}" for r in withdrawn if r.fault),
        *_broken(landing),
    ]
    with transaction(store, "campaigns"):
        write.replace_campaigns(store.con, chains)
        write.replace_contracts(store.con, chains, kept.bodies)
        write.replace_retractions(store.con, withdrawn)
        write.drop_unused_facts(store.con)
        write.replace_heads(store.con, _heads(landing, chains, heads))
        accept(store)
        seal(store.con, TABLES)
        replace_landing_views(store.con, landing)
    return faults


def _broken(landing: Landing) -> Iterator[str]:
    """Chains of retractions that do not check: a record of them may be missing."""
    for name in ledger.retraction_chains(landing):
        try:
            ledger.read_chain(landing, name)
        except EvidenceError as error:
            yield f"chain {name}: {error}"


def _heads(landing: Landing, chains: Sequence[Chain], before: Heads) -> Heads:
    """As far as the chains go now; of one that was changed, as far as it went before."""
    odd = {chain.campaign for chain in chains if chain.fault}
    return ledger.heads_of(landing) | {n: head for n, head in before.items() if n in odd}
