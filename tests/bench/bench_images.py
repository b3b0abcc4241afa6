"""Peak memory of a process that prepares ten thousand images, over that with one thousand.

    python -m tests.bench.bench_images [--images 1000 10000]

The input stage of a small Qwen2-VL, a process of its own per size: each image is read out of a
Parquet, decoded, resized, normalised, digested and let go; one image's pixels take 1.2 MB, its
evidence a few kilobytes. Target 1.2.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.bench.bench_memory import CONFIGS, peak_bytes
from tests.bench.result import Result

TARGET = 1.2
SIZES = (1_000, 10_000)
ROWS_PER_GROUP = 100


def prepare(folder: Path, images: int) -> dict[str, Any]:
    """Prepare so many samples in this process: seconds and peak memory."""
    from fleet.contract.load import load_contract
    from fleet.contract.parquet import parquet_lines
    from fleet.replay.checkpoint import default_cache, resolve
    from fleet.replay.engines.pictures import Pictures

    contract = load_contract("tiny-qwen2-vl", [CONFIGS]).contract
    checkpoint = resolve(contract.model, CONFIGS, default_cache(os.environ))
    assert checkpoint is not None
    file = _dataset(folder, images)
    pictures = Pictures(contract, checkpoint, file)
    records = [json.loads(line) for line in parquet_lines(file)]
    begun, held = time.monotonic(), peak_bytes()
    now = datetime(2026, 1, 1, tzinfo=UTC)
    made = pictures.prepare("current", records, ["How many?"] * images, now)
    seconds = time.monotonic() - begun
    distinct = len({p.images.pictures[0].sha256 for p in made if p.images})
    return {"distinct": distinct, "seconds": seconds, "before": held, "peak": peak_bytes()}


def _dataset(folder: Path, images: int) -> Path:
    """A Parquet of so many different images, written a row group at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    shades = random.Random(0)
    item = pa.list_(pa.binary())
    schema = pa.schema([("id", pa.string()), ("answer", pa.string()), ("images", item)])
    file = folder / "many.parquet"
    with pq.ParquetWriter(file, schema) as writer:
        for first in range(0, images, ROWS_PER_GROUP):
            rows = []
            for number in range(first, min(first + ROWS_PER_GROUP, images)):
                image = Image.new("RGB", (160, 160), tuple(shades.randbytes(3)))
                image.putpixel((number % 160, number // 160), (0, 0, 0))
                buffer = io.BytesIO()
                image.save(buffer, "PNG")
                rows.append({"id": f"r{number}", "answer": "A", "images": [buffer.getvalue()]})
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))
    return file


def bench(sizes: tuple[int, int] = SIZES) -> Result:
    """Measure both sizes, each in a fresh process."""
    few, many = (_measure(images) for images in sizes)
    ratio = many["peak"] / few["peak"]
    each = (many["peak"] - few["peak"]) / (sizes[1] - sizes[0])
    more = {"few": few, "many": many, "bytes_per_image": each}
    what = f"peak memory of preparing, {sizes[1]:,} images over {sizes[0]:,}"
    return Result(what, TARGET, (ratio,), "x", more=more)


def _measure(images: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.bench.bench_images", "--here", str(images)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if found["distinct"] != images:
        raise RuntimeError(f"{images} images: {found['distinct']} different ones were prepared")
    return found


def run(quick: bool = False) -> Iterator[Result]:
    """One result; ``quick`` for a smoke test."""
    yield bench((20, 200)) if quick else bench()


def main() -> None:
    """Print one JSON line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, nargs=2, default=SIZES)
    parser.add_argument("--here", type=int, help="images to prepare in this process")
    given = parser.parse_args()
    if given.here:
        with tempfile.TemporaryDirectory() as folder:
            return print(json.dumps(prepare(Path(folder), given.here)))
    print(json.dumps(bench(tuple(given.images)).to_json()))


if __name__ == "__main__":
    main()
