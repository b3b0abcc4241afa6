"""The first sample in which two attempts differ, straight from Parquet, without a store.

Equal column chunks of two files from one writer are equal bytes, so chunks are compared first and
only row groups that differ are decoded. Equal bytes under equal encodings are equal values, so this
skips work and never evidence. Files of another shape, or rows in another order, are joined by
(arm, sample) instead. Knows no manifest: whether the bytes are the landed ones is another question.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fleet.errors import StoreError
from fleet.store.open import CONFIG

KEY = ("arm", "position", "sample_id")
DIGESTS = (
    "input_sha256",
    "settings_sha256",
    "prediction_sha256",
    "tokens_sha256",
    "logits_sha256",
)


@dataclass(frozen=True, order=True)
class FirstDifference:
    """Where, by position and then arm, and in which of :data:`DIGESTS`."""

    position: int
    arm: str
    sample_id: str
    columns: tuple[str, ...]


def first_difference(paths_a: Sequence[Path], paths_b: Sequence[Path]) -> FirstDifference | None:
    """First differing row of two attempts over the samples that both have; None when equal.

    A NULL is neither equal nor different. Rows that only one side has are not a difference of rows.

    Raises:
        StoreError: when a part cannot be read.
    """
    try:
        try:
            return _aligned(paths_a, paths_b)
        except _OtherShape:
            return _joined(paths_a, paths_b)
    except (OSError, ValueError, KeyError, duckdb.Error) as error:
        where = str(paths_a[0].parent if paths_a else "attempt")
        line = str(error).splitlines()[0]
        raise StoreError(where, "", "readable parts", line, "fleet store ingest") from error


class _OtherShape(Exception):
    """The two do not hold the same samples in the same places of the same files."""


@dataclass(frozen=True)
class _GroupPair:
    """A row group of both sides, in the same place, with the same samples and other digests."""

    path_a: Path
    path_b: Path
    index: int
    first_position: int


@dataclass(frozen=True)
class _Chunk:
    """One column of one row group as it lies in the file: compared, never decoded."""

    shape: tuple[str, str, tuple[str, ...], int]
    data: pa.Buffer

    def same(self, other: _Chunk) -> bool:
        return self.shape == other.shape and bool(self.data.equals(other.data))


def _aligned(paths_a: Sequence[Path], paths_b: Sequence[Path]) -> FirstDifference | None:
    """Compare files pairwise, in place.

    Raises:
        _OtherShape: when that is not possible.
    """
    if len(paths_a) != len(paths_b):
        raise _OtherShape
    pairs = [p for a, b in zip(paths_a, paths_b, strict=True) for p in _unequal_groups(a, b)]
    best: FirstDifference | None = None
    for pair in sorted(pairs, key=lambda p: p.first_position):
        if best is not None and best.position < pair.first_position:
            break
        found = _first_of_group(pair)
        best = min((d for d in (best, found) if d is not None), default=None)
    return best


def _unequal_groups(path_a: Path, path_b: Path) -> Iterator[_GroupPair]:
    with pa.memory_map(str(path_a)) as map_a, pa.memory_map(str(path_b)) as map_b:
        footer_a, footer_b = pq.read_metadata(map_a), pq.read_metadata(map_b)
        if _sizes(footer_a) != _sizes(footer_b):
            raise _OtherShape
        bytes_a, bytes_b = _all_bytes(map_a), _all_bytes(map_b)
        for i in range(footer_a.num_row_groups):
            a, b = _chunks(footer_a, i, bytes_a), _chunks(footer_b, i, bytes_b)
            unequal = {name for name in a if not a[name].same(b[name])}
            if not unequal.isdisjoint(KEY):
                raise _OtherShape
            if unequal:
                yield _GroupPair(path_a, path_b, i, _first_position(footer_a, i))


def _all_bytes(file: pa.MemoryMappedFile) -> pa.Buffer:
    file.seek(0)
    return file.read_buffer()


def _sizes(footer: pq.FileMetaData) -> list[int]:
    return [footer.row_group(i).num_rows for i in range(footer.num_row_groups)]


def _chunks(footer: pq.FileMetaData, index: int, data: pa.Buffer) -> dict[str, _Chunk]:
    """The compared columns of one row group.

    Raises:
        KeyError: when one is missing.
    """
    group = footer.row_group(index)
    columns = {c.path_in_schema: c for c in map(group.column, range(group.num_columns))}
    found = {}
    for name in (*KEY, *DIGESTS):
        column = columns[name]
        pages = (column.dictionary_page_offset, column.data_page_offset)
        start = min(offset for offset in pages if offset is not None)
        shape = (column.physical_type, column.compression, column.encodings, column.num_values)
        found[name] = _Chunk(shape, data.slice(start, column.total_compressed_size))
    return found


def _first_position(footer: pq.FileMetaData, index: int) -> int:
    """Least position in a row group; -1 (look at it first) when the file does not say."""
    group = footer.row_group(index)
    for column in map(group.column, range(group.num_columns)):
        if column.path_in_schema == "position" and column.is_stats_set:
            return int(column.statistics.min) if column.statistics.has_min_max else -1
    return -1


def _first_of_group(pair: _GroupPair) -> FirstDifference | None:
    """Decode the digests of one row group of each side and find the first unequal pair."""
    names = [*KEY, *DIGESTS]
    a = pq.ParquetFile(pair.path_a).read_row_group(pair.index, columns=names)
    b = pq.ParquetFile(pair.path_b).read_row_group(pair.index, columns=names)
    unequal = {
        name: pc.fill_null(pc.not_equal(a[name], b[name]), False).combine_chunks()
        for name in DIGESTS
    }
    anywhere = reduce(pc.or_, unequal.values())
    table = pa.table({**{name: a[name] for name in KEY}, **unequal}).filter(anywhere)
    if table.num_rows == 0:
        return None
    return _as_difference(table.sort_by([("position", "ascending"), ("arm", "ascending")]))


def _as_difference(table: pa.Table) -> FirstDifference:
    row: dict[str, Any] = table.slice(0, 1).to_pylist()[0]
    columns = tuple(name for name in DIGESTS if row[name])
    return FirstDifference(row["position"], row["arm"], row["sample_id"], columns)


def _joined(paths_a: Sequence[Path], paths_b: Sequence[Path]) -> FirstDifference | None:
    """Any shape and any order, by a join on (arm, sample)."""
    flags = [f"coalesce(a.{name} <> b.{name}, false)" for name in DIGESTS]
    with duckdb.connect(config=CONFIG) as con:
        row = con.execute(
            f"SELECT a.position, a.arm, a.sample_id, [{', '.join(flags)}] FROM read_parquet(?) a "
            f"JOIN read_parquet(?) b ON a.arm = b.arm AND a.sample_id = b.sample_id "
            f"WHERE {' OR '.join(flags)} ORDER BY 1, 2, 3 LIMIT 1",
            [[str(path) for path in paths_a], [str(path) for path in paths_b]],
        ).fetchone()
    if row is None:
        return None
    position, arm, sample_id, broken = row
    columns = tuple(name for name, differs in zip(DIGESTS, broken, strict=True) if differs)
    return FirstDifference(position, arm, sample_id, columns)
