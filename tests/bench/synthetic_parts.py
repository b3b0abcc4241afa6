"""Parquet parts of the record schema, any number of rows, made by columns instead of by rows.

Digests are random bytes, so nothing compresses that would not compress in real life. Rows are arm
after arm in dataset order, as a replay lands them. No row is checked against itself: these parts
measure reading, not checking.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fleet.evidence.records import SCHEMA

ARMS = ("controlled", "current")
STEPS = 8
PROMPT = 24

Change = Callable[[pa.Table], pa.Table]


def write_parts(folder: Path, attempt: str, num_rows: int, rows_per_part: int) -> list[Path]:
    """Land ``num_rows`` synthetic rows of one attempt."""
    folder.mkdir(parents=True)
    paths = []
    for number, start in enumerate(range(0, num_rows, rows_per_part)):
        count = min(rows_per_part, num_rows - start)
        paths.append(folder / f"part-{number:05d}.parquet")
        table = _table(attempt, start, count, num_rows // len(ARMS))
        pq.write_table(table, paths[-1], compression="zstd")
    return paths


def copy_parts(
    paths: list[Path], folder: Path, attempt: str, change: Change | None = None
) -> list[Path]:
    """The same rows as another attempt, each part through ``change``."""
    folder.mkdir(parents=True)
    copies = []
    for path in paths:
        table = pq.read_table(path)
        names = pa.array([attempt] * table.num_rows, pa.string())
        table = table.set_column(0, SCHEMA.field("attempt"), names)
        copies.append(folder / path.name)
        changed = change(table) if change else table
        pq.write_table(changed.cast(SCHEMA), copies[-1], compression="zstd")
    return copies


def _table(attempt: str, start: int, count: int, rows_per_arm: int) -> pa.Table:
    at = pa.array(range(start, start + count), pa.int32())
    arm = pc.min_element_wise(pc.divide(at, rows_per_arm), len(ARMS) - 1)
    position = pc.subtract(at, pc.multiply(arm, rows_per_arm)).cast(pa.int32())
    named = {
        "attempt": pa.array([attempt] * count, pa.string()),
        "arm": pa.array(ARMS).take(arm),
        "position": position,
        "sample_id": pc.binary_join_element_wise("s", position.cast(pa.string()), ""),
    }
    columns = [named[f.name] if f.name in named else _filler(f.type, count, f.name) for f in SCHEMA]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _filler(kind: pa.DataType, count: int, name: str) -> pa.Array:
    if pa.types.is_fixed_size_binary(kind):
        return pa.FixedSizeBinaryArray.from_buffers(
            kind, count, [None, pa.py_buffer(os.urandom(count * kind.byte_width))]
        )
    if pa.types.is_list(kind):
        size = PROMPT if name == "prompt_ids" else STEPS
        offsets = pa.array(range(0, count * size + 1, size), pa.int32())
        values = _filler(kind.value_type, count * size, name)
        return pa.ListArray.from_arrays(offsets, values, type=kind)
    if pa.types.is_string(kind):
        return pa.array(["A question of some forty characters, or so?"] * count, kind)
    if pa.types.is_boolean(kind):
        return pa.array([True] * count, kind)
    return pa.array([7] * count).cast(kind)
