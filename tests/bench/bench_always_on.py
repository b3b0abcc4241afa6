"""Always-on trace: seconds per record of generation with every module digested, over bare.

    python -m tests.bench.bench_always_on [--model NAME] [--layers N] [--pairs 24]

Bare: ``generate`` of the loaded model, its logits kept. Untraced: what a replay does beside it.
Traced: the same with every call of every step digested, settled and landed. The three take turns
record by record in one process; importing, loading, hooking and the digests of weights are in none.
With a CUDA device: layers of the shapes of Qwen2 7B, digests on the device, target 1.5; without
one: a tiny model and host digests, whose cost is what it is.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fleet.replay import caches, determinism
from fleet.replay.checkpoint import default_cache
from fleet.replay.task import TraceOrder
from tests.bench.bench_cost import ARM, Bench, Model, contract_of
from tests.bench.result import Result

SHAPES = "demo:qwen2-7b-shapes-awq"
MODELS = {
    "tiny-llama": Model("control-clean", "demo:tiny-llama-bf16", 48),
    "awq_gemm": Model("qwen2-7b-shapes-awq@awq_gemm", SHAPES, 24),
    "awq_torch": Model("qwen2-7b-shapes-awq@awq_torch", SHAPES, 24),
}
LAYERS = (2, 8)
TARGET = 1.5
WAYS = ("bare", "untraced", "traced")


def measure(model: Model) -> dict[str, Any]:
    """Seconds per record of each way, and what the trace landed, in this process."""
    from fleet.replay.trace.session import open_session

    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(model, model.pairs, Path(folder))
        bench.task.folder.mkdir(parents=True, exist_ok=True)
        session = open_session(
            bench.task, TraceOrder(steps="all"), bench.engine, list(bench.census.kernels)
        )
        rows = bench.inputs[ARM]

        def traced(number: int) -> None:
            session.run(bench.engine, ARM, number, [rows[number]])

        def hook(way: str) -> None:
            session.attach() if way == "traced" else session.detach()

        ways: Mapping[str, Callable[[int], object]] = {
            "bare": lambda number: bench.bare(rows[number]),
            "untraced": lambda number: bench.engine.generate([rows[number]]),
            "traced": traced,
        }
        took: dict[str, list[float]] = {way: [] for way in WAYS}
        for number in (0, *range(len(rows))):  # the first use of anything is no slope
            first = number % len(WAYS)
            for way in (*WAYS[first:], *WAYS[:first]):
                hook(way)
                fired = session.tracer.fired.total()
                started = time.perf_counter()
                ways[way](number)
                took[way].append(time.perf_counter() - started)
                assert (session.tracer.fired.total() > fired) == (way == "traced")
        landing = time.perf_counter()
        session.writer.flush()
        landing_s = (time.perf_counter() - landing) / len(rows)
        parts = session.writer.parts
        calls, landed = sum(p.rows for p in parts), sum(p.num_bytes for p in parts)
    return {
        "seconds": {way: seconds[1:] for way, seconds in took.items()},
        "landing_s": landing_s,
        "calls_per_record": calls / (len(rows) + 1),
        "bytes_per_call": landed / calls,
        "digests": session.digests,
    }


def bench(name: str, model: Model) -> Iterator[Result]:
    """Measure in a process of its own, which has the environment of a replay from its start."""
    contract = contract_of(model)
    kernels = caches.pinned_kernels(default_cache(os.environ) / "scratch")
    environment = os.environ | determinism.environment(contract) | caches.kernel_folders(kernels)
    command = [sys.executable, "-m", "tests.bench.bench_always_on", "--here", json.dumps(model)]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    bare, untraced, traced = (found["seconds"][way] for way in WAYS)
    traced = [seconds + found["landing_s"] for seconds in traced]
    where = f"{name}, digests: {found['digests']}"
    on_device = found["digests"] == "device"
    yield Result(
        f"always-on trace over bare, {where}",
        TARGET if on_device else None,
        tuple(t / b for t, b in zip(traced, bare, strict=True)),
        "x bare",
        more=found,
    )
    ratios = tuple(u / b for u, b in zip(untraced, bare, strict=True))
    yield Result(f"untraced replay over bare, {where}", None, ratios, "x bare")
    more_us = (statistics.median(traced) - statistics.median(untraced)) * 1e6
    per_call = more_us / found["calls_per_record"]
    yield Result(f"trace of one call, {where}", None, (per_call,), "us")
    yield Result(f"evidence of one call, {where}", None, (found["bytes_per_call"],), "bytes")


def run(quick: bool = False) -> Iterator[Result]:
    """What this machine can run; ``quick`` for a smoke test."""
    import torch

    if quick or not torch.cuda.is_available():
        yield from bench("tiny-llama", MODELS["tiny-llama"]._replace(pairs=4 if quick else 48))
        return
    for layers in LAYERS:
        for name in ("awq_gemm", "awq_torch"):
            model = MODELS[name]._replace(checkpoint=f"{SHAPES}?layers={layers}")
            yield from bench(f"{name}, {layers} layers of Qwen2 7B", model)


def main() -> None:
    """Print one JSON line per result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=sorted(MODELS))
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=24)
    parser.add_argument("--here", help="measure this model in this process")
    given = parser.parse_args()
    if given.here:
        print(json.dumps(measure(Model(*json.loads(given.here)))))
        return
    if given.model is None:
        found = run()
    else:
        model = MODELS[given.model]._replace(pairs=given.pairs)
        if model.checkpoint == SHAPES:
            model = model._replace(checkpoint=f"{SHAPES}?layers={given.layers}")
        found = bench(given.model, model)
    for result in found:
        print(json.dumps(result.to_json()), flush=True)


if __name__ == "__main__":
    main()
