"""Time of the reads that must not grow with the number of records.

    python -m tests.bench.bench_queries [--rows 1000000] [--rows-per-part 50000] [--runs 5]

``first_difference``: two attempts of 1M rows, straight from Parquet, target 0.5 s, as four pairs:
equal, one row late in the data set, every logits digest, and the same rows in parts of another
size (which have to be joined). ``status``: 100M records behind it, target 0.3 s. That store is
built from summaries alone, since a status reads nothing else: attempts of 2 arms x ``--per-attempt``
samples, over 50 contracts x 4 platforms x 5 units, inserted through the ingester's own writers,
until their records reach 100M. The page cache is warm in all of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from fleet.contract.canonical import sha256, to_text
from fleet.evidence.records import SCHEMA
from fleet.evidence.roots import ROOTED
from fleet.evidence.summary import STAGE_COLUMNS, ArmSummary, AttemptSummary, Power
from fleet.store import queries, write
from fleet.store.first_difference import first_difference
from fleet.store.open import Store, open_writer, transaction
from tests.bench.synthetic_parts import ARMS, Change, copy_parts, write_parts

RECORDS = 100_000_000


def bench_first_difference(folder: Path, rows: int, size: int, runs: int) -> list[dict[str, object]]:
    """Seconds for each kind of pair."""
    base = write_parts(folder / "a", "a" * 16, rows, size)
    late = rows // len(ARMS) - 1
    pairs: dict[str, tuple[list[Path], object]] = {
        "equal": (copy_parts(base, folder / "equal", "b" * 16), None),
        "one late row": (copy_parts(base, folder / "late", "b" * 16, _flip(late)), late),
        "every row": (copy_parts(base, folder / "all", "b" * 16, _flip(None)), 0),
        "other part sizes": (_in_one_part(base, folder / "one"), None),
    }
    results = []
    for name, (other, expected) in pairs.items():
        found = first_difference(base, other)
        assert (found.position if found else None) == expected, (name, found)
        seconds = _times(lambda other=other: first_difference(base, other), runs)  # type: ignore[misc]
        results.append(_result(f"first_difference, {name}", seconds, 0.5, rows=rows))
    return results


def _flip(position: int | None) -> Change:
    """Another logits digest at one position of every arm, or everywhere."""

    def change(table: pa.Table) -> pa.Table:
        at = table["position"]
        here = pc.equal(at, position) if position is not None else pc.equal(at, at)
        other = pa.array([b"\xff" * 32] * table.num_rows, pa.binary(32))
        column = pc.if_else(here, other, table["logits_sha256"])
        index = SCHEMA.get_field_index("logits_sha256")
        return table.set_column(index, SCHEMA.field(index), column)

    return change


def _in_one_part(paths: list[Path], folder: Path) -> list[Path]:
    import pyarrow.parquet as pq

    folder.mkdir()
    whole = pa.concat_tables([pq.read_table(path) for path in paths])
    pq.write_table(whole, folder / "part-00000.parquet", compression="zstd")
    return [folder / "part-00000.parquet"]


def bench_status(folder: Path, per_attempt: int, runs: int) -> list[dict[str, object]]:
    """Seconds for the ``status`` view, and for the summaries of one contract and of all."""
    results = []
    with open_writer(folder / f"status-{per_attempt}.duckdb") as store:
        attempts = _fill(store, per_attempt)
        more = {"attempts": attempts, "records": attempts * per_attempt * len(ARMS)}
        asked: dict[str, Callable[[], object]] = {
            "status view": store.con.cursor().execute("SELECT * FROM status").fetchall,
            "summaries of one contract": lambda: queries.summaries(store.con, contract="c7"),
            "summaries of all": lambda: queries.summaries(store.con),
        }
        asked["status view"] = lambda: store.con.execute("SELECT * FROM status").fetchall()
        for name, ask in asked.items():
            results.append(_result(f"status, {name}", _times(ask, runs), 0.3, **more))
    return results


def _fill(store: Store, per_attempt: int) -> int:
    """Summaries, and nothing else, until their records reach 100M. Returns the attempts."""
    attempts = RECORDS // (per_attempt * len(ARMS))
    rows: list[list[object]] = []
    with transaction(store, "bench"):
        for key in range(attempts):
            one = _summary(key, per_attempt)
            if attempts <= 2000:
                write.insert_attempt(store.con, key, one, None, "")
                write.insert_summaries(store.con, key, one)
            else:
                rows.append([key, one.attempt, json.dumps(one.to_json())])
        if rows:
            _insert_many(store, rows)
    return attempts
