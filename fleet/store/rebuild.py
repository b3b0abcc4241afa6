"""Build the store again from the landing alone; the old file stays until the new one is whole.

Keeps law 2: verdicts come from append-only evidence, so dropping the store loses nothing.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from fleet.evidence.landing import Landing
from fleet.store.ingest import IngestReport, OnAttempt, ingest
from fleet.store.open import hold, log_of, open_writer, publish, settle, snapshot_path


def rebuild(path: Path, landing: Landing, on_attempt: OnAttempt | None = None) -> IngestReport:
    """Replace the store at ``path``, and its snapshot when there is one.

    A store that is corrupt or of another version is replaced too: it holds nothing of its own.

    Raises:
        StoreError: when another process writes it, or disk or folder refuse; the old store stays.
    """
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        with hold(path), open_writer(fresh) as store:
            report = ingest(store, landing, on_attempt)
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
