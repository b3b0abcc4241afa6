"""Build the store again from the landing alone; the old file stays until the new one is whole.

Keeps law 2: verdicts come from append-only evidence, so dropping the store loses nothing.
"""

from __future__ import annotations

import secrets
from pathlib import Path

import duckdb

from fleet.evidence.landing import Landing
from fleet.evidence.ledger import Heads
from fleet.store import queries
from fleet.store.ingest import IngestReport, OnAttempt, ingest, require_no_chain_gone
from fleet.store.open import Store, hold, log_of, open_writer, publish, settle, snapshot_path


def rebuild(path: Path, landing: Landing, on_attempt: OnAttempt | None = None) -> IngestReport:
    """Replace the store at ``path``, and its snapshot when there is one.

    A store that is corrupt or of another version is replaced too: it holds nothing of its own but
    how far the chains of the landing went when it saw them.

    Raises:
        StoreError: when another process writes it, disk or folder refuse, or the landing lacks what
            the old store saw; the old store stays.
    """
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        with hold(path) as old, open_writer(fresh) as store:
            heads = {} if old is None else _seen(old)
            if old is not None:
                require_no_chain_gone(old, landing, heads)
            report = ingest(store, landing, on_attempt, heads)
            settle(store)
        log_of(path).unlink(missing_ok=True)  # a log that outlived its store must not be replayed
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
        log_of(fresh).unlink(missing_ok=True)
    if snapshot_path(path).exists():
        with open_writer(path) as store:
            publish(store)
    return report


def _seen(old: Store) -> Heads:
    """How far the chains went, if the old store knows."""
    try:
        return queries.heads(old.con)
    except duckdb.Error:
        return {}
