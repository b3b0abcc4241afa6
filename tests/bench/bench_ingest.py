"""Rate of the narrow hash table, and of a whole ingest.

    python -m tests.bench.bench_ingest [--rows 1000000] [--rows-per-part 50000] [--runs 5]

``hashes``: INSERT ... SELECT of 1M wide rows in Parquet into an empty store, from before BEGIN to
after COMMIT; target 400,000 records/s on 2 cores. ``ingest``: the same through the front door,
with every row checked and every root derived again in Python, on far fewer rows.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from fleet.store.hashes import classify_parts, load_hashes
from fleet.store.ingest import ingest
from fleet.store.open import open_writer, transaction
from tests.bench.synthetic_parts import write_parts
from tests.landing_builder import AttemptSpec, build_landing

TARGET_PER_S = 400_000


def bench_hashes(folder: Path, rows: int, rows_per_part: int, runs: int) -> dict[str, object]:
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
    return _result("hashes", rates, rows, rows_per_part=rows_per_part, target_per_s=TARGET_PER_S)


def bench_whole_ingest(folder: Path, samples: int, runs: int) -> dict[str, object]:
    """Records/s of ``ingest`` over two attempts, everything checked."""
    specs = [
        AttemptSpec(name * 16, slot=i, num_samples=samples, rows_per_part=256)
        for i, name in enumerate("ab")
    ]
    landing = build_landing(folder / "landing", specs)
    rates = []
    for run in range(runs):
        with open_writer(folder / f"ingest-{run}.duckdb") as store:
            started = time.perf_counter()
            report = ingest(store, landing)
            rates.append(report.rows / (time.perf_counter() - started))
    return _result("ingest", rates, report.rows)


def _result(name: str, rates: list[float], rows: int, **more: object) -> dict[str, object]:
    return {
        "bench": name,
        "rows": rows,
        "median_per_s": round(statistics.median(rates)),
        "least_per_s": round(min(rates)),
        "most_per_s": round(max(rates)),
        "runs": len(rates),
        **more,
    }


def main() -> None:
    """Print one JSON line per measurement."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rows-per-part", type=int, default=50_000)
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        hashes = bench_hashes(folder, given.rows, given.rows_per_part, given.runs)
        print(json.dumps(hashes), flush=True)
        print(json.dumps(bench_whole_ingest(folder, 5000, given.runs)), flush=True)


if __name__ == "__main__":
    main()
