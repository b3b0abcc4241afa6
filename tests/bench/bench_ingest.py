"""Rate of the narrow hash table, and of a whole ingest.

    python -m tests.bench.bench_ingest [--rows 1000000] [--rows-per-part 8192] [--runs 5]

``hashes``: INSERT ... SELECT of 1M wide rows in Parquet into an empty store, from before BEGIN to
after COMMIT; target 400,000 records/s on 2 cores. ``ingest``: the same through the front door,
with every row checked and every root derived again in Python, on far fewer rows.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from fleet.store.hashes import classify_parts, load_hashes
from fleet.store.ingest import ingest
from fleet.store.open import open_writer, transaction
from tests.bench.result import Result
from tests.bench.synthetic_parts import write_parts
from tests.landing_builder import AttemptSpec, build_landing

TARGET_PER_S = 400_000
ROWS_PER_PART = 8192
"""The most that a replay lands in one part."""


def bench_hashes(folder: Path, rows: int, rows_per_part: int, runs: int) -> Result:
    """Records/s into the narrow table; one fresh store per run."""
    attempt = "a" * 16
    paths = write_parts(folder / "parts", attempt, rows, rows_per_part)
    rates = []
    for run in range(runs):
        with open_writer(folder / f"hashes-{run}.duckdb") as store:
            started = time.perf_counter()
            parts = classify_parts(store.con, paths, "COMPLETE", None)
            with transaction(store, "bench"):
                loaded = load_hashes(store.con, 1, attempt, parts)
            rates.append(loaded / (time.perf_counter() - started))
            assert loaded == rows
    return Result(
        f"ingest of the narrow hash table, {rows:,} rows",
        TARGET_PER_S,
        tuple(rates),
        "records/s",
        "higher",
        {"rows": rows, "rows_per_part": rows_per_part},
    )


def bench_whole_ingest(folder: Path, samples: int, runs: int) -> Result:
    """Records/s of ``ingest`` over two attempts, everything checked."""
    specs = [
        AttemptSpec(name * 16, slot=i, num_samples=samples, rows_per_part=4096)
        for i, name in enumerate("ab")
    ]
    landing = build_landing(folder / "landing", specs)
    rates = []
    for run in range(runs):
        with open_writer(folder / f"ingest-{run}.duckdb") as store:
            started = time.perf_counter()
            report = ingest(store, landing)
            rates.append(report.rows / (time.perf_counter() - started))
    return Result(
        "ingest of two attempts, every row checked",
        None,
        tuple(rates),
        "records/s",
        "higher",
        {"rows": report.rows},
    )


def run(quick: bool = False) -> Iterator[Result]:
    """One result each; ``quick`` for a smoke test."""
    with tempfile.TemporaryDirectory() as name:
        rows, samples, runs = (2000, 50, 1) if quick else (1_000_000, 5000, 5)
        yield bench_hashes(Path(name), rows, min(rows, ROWS_PER_PART), runs)
        yield bench_whole_ingest(Path(name), samples, runs)


def main() -> None:
    """Print one JSON line per measurement."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rows-per-part", type=int, default=ROWS_PER_PART)
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        hashes = bench_hashes(folder, given.rows, given.rows_per_part, given.runs)
        print(json.dumps(hashes.to_json()), flush=True)
        whole = bench_whole_ingest(folder, 5000, given.runs)
        print(json.dumps(whole.to_json()), flush=True)


if __name__ == "__main__":
    main()
