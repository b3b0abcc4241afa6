"""Parquet parts -> the narrow table of per-row digests, without a row passing through Python.

Rows of any attempt are evidence of a difference, whatever its state, with three exceptions, each
because the row is not this attempt's testimony: bytes that are not the ones its manifest names
(edited after the fact, or added), parts that cannot be read, and rows that name another attempt
(they count where they belong). Knows no verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import duckdb
import pyarrow.parquet as pq

from fleet.evidence.landing import file_sha256
from fleet.evidence.states import State
from fleet.store.open import Connection

PartState = Literal["whole", "altered", "unreadable"]

NARROW: dict[str, str] = {
    "arm": "VARCHAR",
    "position": "INTEGER",
    "sample_id": "VARCHAR",
    "batch_ordinal": "INTEGER",
    "unparsed": "BOOLEAN",
    "input_sha256": "BLOB",
    "settings_sha256": "BLOB",
    "prediction_sha256": "BLOB",
    "tokens_sha256": "BLOB",
    "logits_sha256": "BLOB",
}
"""Columns of a record that the narrow table keeps, in its order, with their SQL types."""


@dataclass(frozen=True)
class StoredPart:
    """One landed part: its place in the attempt, whether its rows count, columns it lacks."""

    number: int
    path: Path
    state: PartState
    lacks: frozenset[str] = frozenset()


def classify_parts(
    con: Connection, paths: Sequence[Path], state: State, named: Mapping[str, str] | None
) -> list[StoredPart]:
    """Which landed parts of an attempt count.

    Args:
        con: the store.
        paths: the parts, in order.
        state: of the attempt's summary. Those of a COMPLETE attempt were just read and found whole.
        named: part name -> digest text of the manifest that vouches for them, None when none does.
    """
    if state == "COMPLETE":
        return [StoredPart(i, path, "whole") for i, path in enumerate(paths)]
    return [_classify(con, i, path, named) for i, path in enumerate(paths)]


def _classify(
    con: Connection, number: int, path: Path, named: Mapping[str, str] | None
) -> StoredPart:
    if named is not None and named.get(path.name) != file_sha256(path):
        return StoredPart(number, path, "altered")
    try:
        names = set(pq.read_schema(path).names)
    except (OSError, ValueError):
        return StoredPart(number, path, "unreadable")
    part = StoredPart(number, path, "whole", frozenset(NARROW.keys() - names))
    readable = "attempt" in names and _decodes(con, part)
    return part if readable else StoredPart(number, path, "unreadable")


def _decodes(con: Connection, part: StoredPart) -> bool:
    """Can every narrow value be decoded? Asked before any transaction, which it would abort."""
    largest = ", ".join(f"max({value})" for value in _values(part.lacks))
    try:
        con.execute(f"SELECT max(attempt), {largest} FROM read_parquet(?)", [str(part.path)])
    except duckdb.Error:
        return False
    return True


def load_hashes(con: Connection, key: int, attempt: str, parts: Sequence[StoredPart]) -> int:
    """Insert the narrow rows of the whole parts. Returns how many.

    Args:
        con: the store, inside a transaction.
        key: the attempt's number in the store.
        attempt: its id; rows that name another are left out.
        parts: from :func:`classify_parts`.
    """
    whole = [part for part in parts if part.state == "whole"]
    loaded = 0
    for lacks in sorted({part.lacks for part in whole}, key=sorted):
        group = [part for part in whole if part.lacks == lacks]
        row = con.execute(
            "INSERT INTO hashes SELECT ?, list_extract(?, file_index::BIGINT + 1), "
            f"file_row_number, {', '.join(_values(lacks))} FROM read_parquet(?) WHERE attempt = ?",
            [key, [part.number for part in group], [str(p.path) for p in group], attempt],
        ).fetchone()
        loaded += int(row[0]) if row else 0
    return loaded


def _values(lacks: frozenset[str]) -> list[str]:
    """SQL for each narrow column: itself, or a typed NULL where the part has none."""
    return [f"{'NULL' if name in lacks else name}::{kind}" for name, kind in NARROW.items()]
