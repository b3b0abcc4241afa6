"""Read landed rows back, in dataset order, a batch at a time.

Knows no manifest and no verdict. A missing column or a NULL is an error, never a value.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fleet.errors import EvidenceError
from fleet.evidence.records import IMAGES_SCHEMA, SCHEMA, SCHEMAS

BATCH_ROWS = 1024

Identity = tuple[str, str, int, str, bool]
"""attempt, arm, position in the dataset, sample id, is correct."""

IDENTITY = ("attempt", "arm", "position", "sample_id", "is_correct")

DERIVED_FROM = tuple(
    name
    for name in IMAGES_SCHEMA.names
    if name not in ("attempt", "top_ids", "top_bits", "rng_sha256", "seconds", "finished_at_s")
)
"""Columns that a digest, a root or a count is derived from, as far as a row has them."""


def check_columns(parts: Sequence[Path], with_images: bool = False) -> None:
    """Every part has exactly the columns and types of its record schema.

    Args:
        parts: Parquet files of one attempt.
        with_images: every sample had images, and every part must say what they were.

    Raises:
        EvidenceError: naming the part and the column.
    """
    for part in parts:
        try:
            schema = pq.read_schema(part)
        except (pa.ArrowInvalid, OSError) as error:
            raise EvidenceError("evidence-altered", f"{part.name}: not Parquet: {error}") from error
        found = (schema.metadata or {}).get(b"fleet.record_format", b"").decode()
        wanted = IMAGES_SCHEMA if with_images else SCHEMAS.get(found, SCHEMA)
        missing = sorted(set(wanted.names) - set(schema.names))
        if missing:
            raise EvidenceError("missing-evidence", f"{part.name}: no column {', '.join(missing)}")
        if found not in SCHEMAS or set(schema.names) != set(SCHEMAS[found].names):
            raise EvidenceError("evidence-altered", f"{part.name}: record format {found!r}")
        for column in wanted:
            if schema.field(column.name).type != column.type:
                raise EvidenceError(
                    "evidence-altered", f"{part.name}: {column.name} is {schema.field(column.name)}"
                )


def identities(parts: Sequence[Path]) -> list[Identity]:
    """Identities of every row, in file order."""
    found: list[Identity] = []
    for part in parts:
        columns = pq.read_table(part, columns=list(IDENTITY)).to_pydict()
        found.extend(zip(*(columns[name] for name in IDENTITY), strict=True))
    return found


def arm_counts(parts: Sequence[Path]) -> dict[str, tuple[int, int]]:
    """Arm -> (rows, correct rows)."""
    found: dict[str, tuple[int, int]] = {}
    for part in parts:
        table = pq.read_table(part, columns=["arm", "is_correct"])
        counted = table.group_by("arm").aggregate([("is_correct", "count"), ("is_correct", "sum")])
        for row in counted.to_pylist():
            rows, correct = found.get(row["arm"], (0, 0))
            more = (row["is_correct_count"], row["is_correct_sum"] or 0)
            found[row["arm"]] = (rows + more[0], correct + more[1])
    return found


def batch_places(parts: Sequence[Path]) -> Iterator[tuple[str, int, str, int]]:
    """Arm, position, sample id and batch ordinal of every row, a part at a time."""
    names = ["arm", "position", "sample_id", "batch_ordinal"]
    for part in parts:
        columns = pq.read_table(part, columns=names).to_pydict()
        yield from zip(*(columns[name] for name in names), strict=True)


def decode_steps(parts: Sequence[Path]) -> int:
    """Steps after the first of every batch: a batch runs until its longest row has ended."""
    longest: dict[tuple[str, int], int] = {}
    for part in parts:
        names = ["arm", "batch_ordinal", "generated_token_count"]
        columns = pq.read_table(part, columns=names).to_pydict()
        for arm, ordinal, count in zip(*(columns[name] for name in names), strict=True):
            longest[arm, ordinal] = max(longest.get((arm, ordinal), 1), count)
    return sum(length - 1 for length in longest.values())


def rows(parts: Sequence[Path], in_order: bool) -> Iterator[dict[str, Any]]:
    """Rows as dicts, per arm in dataset order.

    Args:
        parts: Parquet files of one attempt.
        in_order: the files already are; otherwise they are sorted in memory.

    Raises:
        EvidenceError: on a NULL.
    """
    for batch in _batches(parts, in_order):
        yield from batch.to_pylist()


def derivable_rows(parts: Sequence[Path], in_order: bool) -> Iterator[dict[str, Any]]:
    """Like :func:`rows`, with the columns of :data:`DERIVED_FROM` alone and the lists of ids and
    of digests packed into bytes, which is how they are hashed."""
    for batch in _batches(parts, in_order):
        names = [name for name in DERIVED_FROM if name in batch.schema.names]
        columns = [_values(batch.column(name), name) for name in names]
        for values in zip(*columns, strict=True):
            yield dict(zip(names, values, strict=True))


def _batches(parts: Sequence[Path], in_order: bool) -> Iterator[pa.RecordBatch]:
    if in_order:
        batches = (b for part in parts for b in pq.ParquetFile(part).iter_batches(BATCH_ROWS))
    else:
        table = pa.concat_tables([pq.read_table(part) for part in parts])
        batches = iter(
            table.sort_by([("arm", "ascending"), ("position", "ascending")]).to_batches(BATCH_ROWS)
        )
    for batch in batches:
        _no_nulls(batch)
        yield batch


def _values(column: pa.Array, name: str) -> list[Any]:
    if name in ("prompt_ids", "generated_token_ids"):
        return _packed(column, column.values.cast(pa.int64()), 8)
    if name == "step_logits_sha256":
        return _packed(column, column.values, 32)
    values: list[Any] = column.to_pylist()
    return values


def _packed(column: pa.ListArray, values: pa.Array, width: int) -> list[bytes]:
    """The bytes of each list; ``values`` are its elements, ``width`` bytes each."""
    buffer = values.buffers()[1]
    data = buffer.to_pybytes() if buffer else b""
    ends = [(values.offset + end) * width for end in column.offsets.to_pylist()]
    return [data[start:end] for start, end in itertools.pairwise(ends)]


def _no_nulls(batch: pa.RecordBatch) -> None:
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        depth = column
        while True:
            if depth.null_count:
                raise EvidenceError(
                    "missing-evidence", f"{name} is NULL in {depth.null_count} rows"
                )
            if not pa.types.is_list(depth.type):
                break
            depth = depth.flatten()
