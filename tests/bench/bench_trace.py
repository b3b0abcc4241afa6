"""Tracing cost: a prefill with every module hooked over the same prefill bare; bytes per call.

    python -m tests.bench.bench_trace [--quick]

SmolLM2-135M in bfloat16, 135 prompt tokens, 2 threads, host digests. The traced side includes what
a trace does once: hashing every parameter at load and at the end. The two alternate in one process
(ABBA). Targets: <= 2 times bare; trace evidence under 1 KiB per module call.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fleet.contract.load import load_contract
from fleet.evidence.parts import PartWriter
from fleet.evidence.trace import Call, calls_table
from fleet.replay import determinism
from fleet.replay.checkpoint import default_cache, resolve
from tests.bench.result import Result

CONFIGS = Path(__file__).parents[2] / "configs"
TOKENS, THREADS = 135, 2
TARGET, CALL_BYTES = 2.0, 1024.0


def _model(contract_name: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    base = load_contract(contract_name, (CONFIGS,)).contract
    settings = base.determinism.model_copy(update={"num_threads": THREADS})
    contract = base.model_copy(update={"determinism": settings})
    determinism.apply(contract)
    folder = resolve(contract.model, CONFIGS / "contracts", default_cache(os.environ))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    return model.eval().requires_grad_(False)


def _prefill(model: Any) -> None:
    import torch

    ids = torch.arange(5, 5 + TOKENS)[None]
    with torch.inference_mode():
        model(input_ids=ids, use_cache=True, logits_to_keep=1)


def _traced(model: Any, calls: list[Call]) -> tuple[float, float]:
    """(seconds of everything, of the hooked prefill alone)."""
    from fleet.replay.trace.tracer import Tracer

    started = time.perf_counter()
    tracer = Tracer(model, (), calls.append)
    tracer.start_batch("current", 0, ["bench"])
    tracer.attach()
    hooked = time.perf_counter()
    _prefill(model)
    hooks_s = time.perf_counter() - hooked
    tracer.detach()
    tracer.weight_rows()
    return time.perf_counter() - started, hooks_s


def _pairs(model: Any, pairs: int, calls: list[Call]) -> Iterator[tuple[float, float]]:
    """(everything over bare, hooks over bare) of each pair."""
    _prefill(model)
    for number in range(pairs):
        order = ("bare", "traced") if number % 2 == 0 else ("traced", "bare")
        took: dict[str, Any] = {}
        for name in order:
            started = time.perf_counter()
            if name == "bare":
                _prefill(model)
                took[name] = time.perf_counter() - started
            else:
                took[name] = _traced(model, calls)
        whole, hooks = took["traced"]
        yield whole / took["bare"], hooks / took["bare"]


def _landed_bytes(calls: list[Call]) -> float:
    """Bytes on disk per call."""
    with tempfile.TemporaryDirectory() as folder:
        writer = PartWriter(Path(folder), stem="trace", table=calls_table)
        writer.add(calls)
        writer.flush()
        return sum(part.num_bytes for part in writer.parts) / len(calls)


def run(quick: bool) -> list[Result]:
    """Ratios of each pair, and the size of the evidence."""
    model = _model("control-clean" if quick else "smollm2-bf16")
    calls: list[Call] = []
    ratios = list(_pairs(model, 2 if quick else 7, calls))
    name = "tiny-llama" if quick else "SmolLM2"
    return [
        Result(
            f"trace over bare prefill, {name}, {TOKENS} tokens",
            None if quick else TARGET,
            tuple(whole for whole, _ in ratios),
            "ratio",
        ),
        Result(f"trace, hooks alone, {name}", None, tuple(hooks for _, hooks in ratios), "ratio"),
        Result("trace evidence per call", CALL_BYTES, (_landed_bytes(calls),), "bytes"),
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    for result in run(parser.parse_args().quick):
        print(result)
