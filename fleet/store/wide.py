"""Fetch wide rows from Parquet by (part, row), reading each row group once while it is in use.

Knows which parts of an attempt were ingested, and nothing of why a row is wanted.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fleet.errors import StoreError
from fleet.evidence.landing import Landing
from fleet.store.open import Connection

KEPT_GROUPS = 8
"""Row groups held in memory: rows are asked for in dataset order, arm after arm."""


class WideRows:
    """Rows of one attempt."""

    def __init__(self, con: Connection, landing: Landing, attempt: str) -> None:
        found = con.execute(
            "SELECT p.number, p.name FROM parts p JOIN attempts t ON t.key = p.attempt "
            "WHERE t.attempt = ?",
            [attempt],
        ).fetchall()
        self._paths = {number: landing.attempt(attempt) / name for number, name in found}
        self._groups: OrderedDict[tuple[int, int], pa.Table] = OrderedDict()
        self._starts: dict[int, list[int]] = {}

    def get(self, part: int, row: int, key: tuple[str, str]) -> dict[str, Any]:
        """One row.

        Args:
            part: number of the part.
            row: its place in the part, from 0.
            key: the (arm, sample_id) that must stand there.

        Raises:
            StoreError: when the part is gone or holds something else.
        """
        try:
            group, start = self._locate(part, row)
            found: dict[str, Any] = self._group(part, group).slice(row - start, 1).to_pylist()[0]
        except (OSError, ValueError, IndexError) as error:
            raise self._changed(part, str(error)) from error
        if (found.get("arm"), found.get("sample_id")) != key:
            raise self._changed(part, f"{found.get('arm')}/{found.get('sample_id')}")
        return found

    def _locate(self, part: int, row: int) -> tuple[int, int]:
        """Row group that holds the row, and that group's first row."""
        if part not in self._starts:
            footer = pq.read_metadata(self._paths[part])
            sizes = [footer.row_group(i).num_rows for i in range(footer.num_row_groups)]
            self._starts[part] = [sum(sizes[:i]) for i in range(len(sizes))]
        starts = self._starts[part]
        group = max(i for i, start in enumerate(starts) if start <= row)
        return group, starts[group]

    def _group(self, part: int, group: int) -> pa.Table:
        if (part, group) not in self._groups:
            table = pq.ParquetFile(self._paths[part]).read_row_group(group)
            self._groups[part, group] = table
            if len(self._groups) > KEPT_GROUPS:
                self._groups.popitem(last=False)
        self._groups.move_to_end((part, group))
        return self._groups[part, group]

    def _changed(self, part: int, got: str) -> StoreError:
        return StoreError(
            str(self._paths.get(part, f"part {part}")),
            "",
            "the part that was ingested",
            got.splitlines()[0] if got else "nothing",
            "fleet store ingest",
        )
