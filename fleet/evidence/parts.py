"""Write rows to Parquet parts as they come, so that a killed process leaves what it had.

Each part is written whole under a temporary name, flushed to disk and then given its own name,
which fails if that name exists: an attempt is never resumed and never stitched.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fleet.contract.canonical import sha256, to_text
from fleet.errors import EvidenceError
from fleet.evidence.landing import write_once
from fleet.evidence.manifest import Part
from fleet.evidence.records import to_table

FIRST_ROWS = 256


class PartWriter:
    """The one writer of an attempt's rows.

    Args:
        folder: the attempt's folder.
        rows_per_part: rows held back in memory at most. The first part takes 256 and each full one
            lets the next take twice as many, so that a large attempt lands in few parts.
        seconds_per_part: a row waits about this long at most.
        stem: how the files' names begin; ``part`` are the attempt's records.
        table: makes a table of rows; None for records.
    """

    def __init__(
        self,
        folder: Path,
        rows_per_part: int = 8192,
        seconds_per_part: float = 10.0,
        stem: str = "part",
        table: Callable[[Sequence[Any]], pa.Table] | None = None,
    ) -> None:
        self._folder, self._most_rows = folder, rows_per_part
        self._stem, self._table = stem, table or to_table
        self._rows_per_part = min(FIRST_ROWS, rows_per_part)
        self._seconds_per_part, self._landed_at_s = seconds_per_part, time.monotonic()
        self._waiting: list[Any] = []
        self.parts: list[Part] = []

    def add(self, records: Sequence[Any]) -> None:
        """Take rows in; lands a part when enough wait.

        Raises:
            OSError: when the landing refuses the write.
            EvidenceError: evidence-altered, when another process wrote into this attempt.
        """
        self._waiting.extend(records)
        late = time.monotonic() - self._landed_at_s >= self._seconds_per_part
        full = len(self._waiting) >= self._rows_per_part
        if late or full:
            self.flush()
        if full:
            self._rows_per_part = min(2 * self._rows_per_part, self._most_rows)

    def flush(self) -> None:
        """Land what waits."""
        if not self._waiting:
            return
        buffer = io.BytesIO()
        pq.write_table(self._table(self._waiting), buffer, compression="zstd")
        data = buffer.getvalue()
        name = f"{self._stem}-{len(self.parts):05d}.parquet"
        try:
            write_once(self._folder / name, data)
        except FileExistsError as error:
            text = f"{name}: another process wrote into this attempt"
            raise EvidenceError("evidence-altered", text) from error
        self.parts.append(Part(name, len(self._waiting), len(data), to_text(sha256(data))))
        self._waiting, self._landed_at_s = [], time.monotonic()
