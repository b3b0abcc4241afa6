"""What a traced replay says at the grade *modules*: one digest per batch over all of its calls.

A batch's digest is SHA-256 over a header and, for every call in the order the calls ended, its
step, its places, its module's path, its in-root and its out-root. The rows of a batch share it.
Read from the landed calls a group of rows at a time, by the worker and by whoever checks it. Knows
no manifest and no verdict.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fleet.errors import EvidenceError
from fleet.evidence.records import length_prefixed
from fleet.evidence.trace import (
    CALLS,
    CALLS_1,
    IN_PARTS,
    MODULES,
    MODULES_FILE,
    UNCHANGED,
    calls_files,
    in_roots,
)

HEADER = b"fleet-modules-1\n"
BATCH_ROWS = 8192
_COLUMNS = ("arm", "batch", "step", "begin", "end", "path", "out_sha256", "unhashed")

Batch = tuple[str, int]
"""(arm, ordinal of the batch in it)."""


@dataclass
class Coverage:
    """How much of what ran the trace saw. ``silent``: modules with a forward that never fired."""

    calls: int = 0
    unknown: int = 0
    unhashed: int = 0
    never_returned: int = 0
    silent: list[str] = field(default_factory=list)
    hooks: str = ""

    def gap(self) -> str | None:
        """Why the trace does not cover everything, or None when it does."""
        if self.calls == 0:
            return "no call was traced"
        for number, words in (
            (self.unknown, "calls had nothing hashable going in"),
            (self.unhashed, "calls were given something that is not hashed"),
            (self.never_returned, "calls never returned"),
            (len(self.silent), f"modules never fired, {', '.join(self.silent[:2])} among them"),
        ):
            if number:
                return f"{number} {words}"
        return None

    def doubt(self) -> str | None:
        """Why the hooks may have changed what they watched, or None when they changed no bit."""
        return None if self.hooks == UNCHANGED else self.hooks or "the hooks were not looked at"


@dataclass(frozen=True)
class Modules:
    """``digests`` in the order the batches ran; 32 bytes each."""

    digests: Mapping[Batch, bytes]
    coverage: Coverage


def read_modules(folder: Path, files: Iterable[str], hooks: str) -> Modules:
    """Digest every batch of a trace.

    Args:
        folder: the attempt's folder.
        files: names of the trace's files.
        hooks: what the session found out about its own hooks.

    Raises:
        EvidenceError: a file is not the columns of a trace.
    """
    coverage = Coverage(hooks=hooks)
    hashers: dict[Batch, Any] = {}
    for _ in _read_calls(folder, files, hashers, coverage):
        pass
    for columns in _groups(folder / MODULES_FILE, (MODULES,), ("path", "expected", "fired")):
        coverage.silent += [
            path
            for path, expected, fired in zip(*columns.values(), strict=True)
            if expected and not fired
        ]
    return Modules({batch: h.digest() for batch, h in hashers.items()}, coverage)


def in_turn(folder: Path, files: Iterable[str]) -> Iterator[tuple[Batch, bytes]]:
    """Batches and their digests in the order they ran, each once the next has begun: whoever stops
    at one reads no further.

    Raises:
        EvidenceError: as :func:`read_modules`.
    """
    hashers: dict[Batch, Any] = {}
    for _ in _read_calls(folder, files, hashers, Coverage()):
        while len(hashers) > 1:
            batch = next(iter(hashers))
            yield batch, hashers.pop(batch).digest()
    for batch, hasher in hashers.items():
        yield batch, hasher.digest()


def _read_calls(
    folder: Path, files: Iterable[str], hashers: dict[Batch, Any], coverage: Coverage
) -> Iterator[None]:
    """Add all calls, and stop for a moment after some of them."""
    for name in calls_files(files):
        path = folder / name
        for columns in _groups(path, (CALLS, CALLS_1), (*_COLUMNS, *IN_PARTS, "in_sha256")):
            _add(columns, in_roots(path, columns), hashers, coverage)
            yield


def _groups(
    path: Path, schemas: Sequence[pa.Schema], columns: Sequence[str]
) -> Iterable[dict[str, list[Any]]]:
    """Of these columns those that the file has, some rows at a time."""
    try:
        opened = pq.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise EvidenceError("evidence-altered", f"{path.name}: {error}") from error
    if not any(opened.schema_arrow.equals(schema) for schema in schemas):
        raise EvidenceError("evidence-altered", f"{path.name}: not the columns of a trace")
    there = [name for name in columns if name in opened.schema_arrow.names]
    for batch in opened.iter_batches(BATCH_ROWS, columns=there):
        yield {name: batch.column(name).to_pylist() for name in there}


def _add(
    columns: Mapping[str, list[Any]],
    came_in: Sequence[bytes | None],
    hashers: dict[Batch, Any],
    coverage: Coverage,
) -> None:
    rows = zip(came_in, *(columns[name] for name in _COLUMNS), strict=True)
    for root_in, arm, batch, step, begin, end, path, root_out, unhashed in rows:
        hasher = hashers.get((arm, batch))
        if hasher is None:
            hasher = hashers[arm, batch] = hashlib.sha256(HEADER)
        places = struct.pack("<iii", step, begin, end)
        roots = [b"" if root is None else b"+" + root for root in (root_in, root_out)]
        hasher.update(length_prefixed([places, path.encode("utf-8"), *roots]))
        coverage.calls += 1
        coverage.unknown += root_in is None
        coverage.unhashed += unhashed > 0
        coverage.never_returned += end < 0
