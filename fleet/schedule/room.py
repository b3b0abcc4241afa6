"""Is there room for what a campaign will write? Asked before anything is planned.

Bytes of a row are measured: in the landing, on an earlier replay of the same contract; where there
is none, by a formula that was fitted to parts (``tests/unit/test_room.py`` holds it against some).
Retries and what follows from a FAIL are not counted. Knows no file system but its free bytes.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fleet.errors import EvidenceError, StoreError
from fleet.evidence.landing import Landing
from fleet.evidence.manifest import Manifest
from fleet.evidence.summary import AttemptSummary
from fleet.replay.checkpoint_tensors import num_tensors
from fleet.replay.task import ReplayTask
from fleet.schedule.resolve import Resolved

PART_BYTES = 12_000
"""Schema and statistics of one Parquet part."""
ROW_BYTES, STEP_BYTES, CHAR_BYTES = 600, 110, 2
"""A row: its digests; a step's digest, top 8 and margin; a character of its prompt, with its id."""
CALL_BYTES, CALLS_PER_TENSOR = 100, 2
"""A traced call (65 measured on two layers); a dense layer calls fewer modules than twice its
tensors."""
STORED_BYTES = 300
"""A row of the narrow table; a snapshot holds it once more."""
STORE_BYTES = 4 << 20
SCRATCH_BYTES = 64 << 20
"""Private caches of one attempt; they go with it."""


@dataclass(frozen=True)
class Need:
    """Bytes that will be written below one folder, for what."""

    what: str
    folder: Path
    num_bytes: int


def needs(
    tasks: Sequence[tuple[ReplayTask, Resolved]],
    known: Sequence[AttemptSummary],
    landing: Landing,
    store: Path,
    scratch: Path,
) -> list[Need]:
    """What the planned replays will take.

    Args:
        tasks: one for each slot, with its contract.
        known: earlier attempts of their contracts.
        landing: where they land.
        store: the DuckDB file.
        scratch: folder of private caches.
    """
    rows = sum(_rows(task) for task, _ in tasks)
    landed = sum(landed_bytes(task, resolved, known, landing) for task, resolved in tasks)
    real = any(task.checkpoint is not None for task, _ in tasks)
    stored = 2 * rows * STORED_BYTES + STORE_BYTES + (store.stat().st_size if store.exists() else 0)
    return [
        Need("landing", landing.root, landed),
        Need("store", store.parent, stored),
        Need("scratch", scratch, SCRATCH_BYTES if real else 0),
    ]


def require_room(wanted: Iterable[Need]) -> None:
    """Hold what will be written against what is free, disk by disk.

    Raises:
        StoreError: a disk that cannot take it.
    """
    by_disk: dict[int, list[Need]] = {}
    for need in wanted:
        by_disk.setdefault(_nearest(need.folder).stat().st_dev, []).append(need)
    for together in by_disk.values():
        total = sum(need.num_bytes for need in together)
        free = shutil.disk_usage(_nearest(together[0].folder)).free
        if total > free:
            parts = ", ".join(f"{n.what} {_told(n.num_bytes)}" for n in together if n.num_bytes)
            raise StoreError(
                str(together[0].folder), "", f"room for about {_told(total)} ({parts})",
                f"{_told(free)} free",
                "free space, or move --landing, --store or FLEET_CACHE to another disk",
            )  # fmt: skip


def landed_bytes(
    task: ReplayTask, resolved: Resolved, known: Sequence[AttemptSummary], landing: Landing
) -> int:
    """What one replay lands: measured on an earlier one of the kind, else by the formula."""
    kind = (task.execution_id, task.purpose, task.trace is not None)
    for summary in reversed(known):
        alike = (summary.execution_id, summary.purpose, summary.traced) == kind
        if alike and summary.state == "COMPLETE" and not summary.pruned and summary.rows:
            measured = _measured(landing, summary)
            if measured:
                return measured * _rows(task) // summary.rows + PART_BYTES
    return _by_formula(task, resolved) + _trace_by_formula(task, resolved)


def _measured(landing: Landing, summary: AttemptSummary) -> int:
    """Bytes of an attempt's parts, and of its trace where every call was traced."""
    try:
        manifest = Manifest.from_bytes(landing.manifest(summary.attempt).read_bytes())
        trace = manifest.trace.get("files", ()) if summary.traced else ()
        files = [landing.attempt(summary.attempt) / str(name) for name in trace]
        return sum(p.num_bytes for p in manifest.parts) + sum(f.stat().st_size for f in files)
    except (OSError, EvidenceError):
        return 0


def _rows(task: ReplayTask) -> int:
    return len(task.sample_ids) * len(task.arms)


def _by_formula(task: ReplayTask, resolved: Resolved) -> int:
    """An upper estimate: every sample takes all its new tokens."""
    contract, data = resolved.loaded.contract, resolved.dataset
    steps = contract.decoding.max_new_tokens
    record = data.file.stat().st_size // max(1, len(data.ids))
    template = max(len(arm.template) for arm in contract.arms.values())
    row = ROW_BYTES + STEP_BYTES * steps + CHAR_BYTES * (record + template)
    return _rows(task) * row + (2 + _rows(task) // 256) * PART_BYTES


def _trace_by_formula(task: ReplayTask, resolved: Resolved) -> int:
    if task.trace is None or resolved.checkpoint is None:
        return 0
    decoding = resolved.loaded.contract.decoding
    batches = len(task.arms) * -(-len(task.sample_ids) // decoding.batch_size)
    calls = CALLS_PER_TENSOR * num_tensors(resolved.checkpoint)
    return batches * decoding.max_new_tokens * calls * CALL_BYTES


def _nearest(folder: Path) -> Path:
    """The folder, or the first above it that exists."""
    return next(p for p in (folder, *folder.absolute().parents) if p.exists())


def _told(num_bytes: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes} bytes"
