"""Certification cost: seconds per record of a replay over those of the bare generate loop.

    python -m tests.bench.bench_cost [--pairs 6] [--model tiny-llama] [--samples 24]

Bare: ``generate`` of the same loaded model on the same inputs, greedy, returning the logits of
every step. Replay: what a replay does with each record, from the state of the generators to the
landed part. Both run in one process, in blocks that alternate (ABBA), so that a busy machine slows
both; what happens once in a replay (import, load, weights) is in neither. Target 1.05.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.contract.dataset import load_dataset
from fleet.contract.load import load_contract
from fleet.contract.model import Contract
from fleet.contract.parsers import load_parser
from fleet.evidence.parts import PartWriter
from fleet.replay import determinism, observe
from fleet.replay.checkpoint import default_cache, resolve
from fleet.replay.engines.registry import make_engine
from fleet.replay.pinned import Samples
from fleet.replay.task import ReplayTask
from tests.bench.result import Result

CONFIGS = Path(__file__).parents[2] / "configs"
ARM = "current"
TARGET = 1.05


@dataclass(frozen=True)
class Model:
    """``contract`` gives everything but the control, the threads and the checkpoint."""

    contract: str
    checkpoint: str
    num_samples: int


MODELS = {
    "smollm2": Model("smollm2-bf16", "demo:smollm2-135m", 2),
    "tiny-llama": Model("control-clean", "demo:tiny-llama-bf16", 24),
}


def contract_of(model: Model) -> Contract:
    """One thread, no control."""
    base = load_contract(model.contract, (CONFIGS,)).contract
    settings = base.determinism.model_copy(update={"num_threads": 1})
    checkpoint = base.model.model_copy(update={"checkpoint": model.checkpoint})
    return base.model_copy(
        update={"model": checkpoint, "determinism": settings, "control": None, "expect": None}
    )


class Bench:
    """One loaded model, its inputs, and the two loops over them."""

    def __init__(self, model: Model, num_samples: int, landing: Path) -> None:
        self.contract = contract_of(model)
        near = CONFIGS / "contracts"
        folder = resolve(self.contract.model, near, default_cache(os.environ))
        dataset = load_dataset(self.contract.dataset.name, (CONFIGS,))
        records = tuple(dict(r) for r in dataset.records[:num_samples])
        raw = dict(zip(dataset.ids, dataset.raw, strict=True))
        self.samples = Samples(records, raw)
        self.parsers = {ARM: load_parser(self.contract.arms[ARM].parser, near)}
        self.task = _task(self.contract, dataset.ids[:num_samples], landing)
        determinism.apply(self.contract)
        self.engine: Any = make_engine(self.contract, folder)
        self.inputs = observe.prepare(self.task, self.contract, self.engine, self.samples)
        self.engine.load()
        self.writer = PartWriter(self.task.folder)

    def replay(self) -> None:
        """What a replay does with every record, the landing included."""
        found = observe.generate(
            self.task, self.contract, self.engine, self.inputs, self.samples, self.parsers
        )
        for records in found:
            self.writer.add(records)
        self.writer.flush()

    def bare(self) -> None:
        """Generate, and keep the logits as ``generate`` hands them out."""
        import torch
        import transformers

        rule = self.contract.decoding
        model = self.engine.model()
        stops = list(rule.stop_token_ids or ()) or model.config.eos_token_id
        config = transformers.GenerationConfig(
            do_sample=False,
            max_new_tokens=rule.max_new_tokens,
            eos_token_id=stops,
            pad_token_id=rule.pad_token_id or 0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        with _unobserved(model), torch.inference_mode():
            for prepared in self.inputs[ARM]:
                ids = torch.tensor([prepared.prompt_ids])
                mask = torch.tensor([prepared.attention_mask])
                found = model.generate(inputs=ids, attention_mask=mask, generation_config=config)
                assert len(found.logits) == found.sequences.shape[1] - ids.shape[1]


@contextlib.contextmanager
def _unobserved(model: Any) -> Iterator[None]:
    """The model as it is without a replay around it: no hook, transformers' own methods."""
    hooks = dict(model._forward_hooks)
    own = {k: vars(model)[k] for k in ("_get_logits_processor", "_get_stopping_criteria")}
    model._forward_hooks.clear()
    for name in own:
        delattr(model, name)
    try:
        yield
    finally:
        model._forward_hooks.update(hooks)
        vars(model).update(own)


def _task(contract: Contract, ids: tuple[str, ...], landing: Path) -> ReplayTask:
    return ReplayTask(
        attempt="a" * 16,
        campaign="bench",
        slot=0,
        purpose="certify",
        contract_name="bench",
        contract_file="",
        contract={},
        execution_id="",
        digests={},
        checkpoint=None,
        dataset_file="",
        sample_ids=tuple(ids),
        arms=(ARM,),
        landing=str(landing),
        scratch=str(landing),
        node_label="",
    )


def measure(name: str, num_samples: int, pairs: int) -> dict[str, Any]:
    """Seconds per record of both loops, ``pairs`` times each, in one process."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(MODELS[name], num_samples, Path(folder))
        loops: tuple[Callable[[], None], Callable[[], None]] = (bench.bare, bench.replay)
        for loop in loops:  # first use of a kernel, a module or a file is no slope
            loop()
        seconds: tuple[list[float], list[float]] = ([], [])
        for pair in range(pairs):
            for which in (0, 1) if pair % 2 == 0 else (1, 0):
                started = time.perf_counter()
                loops[which]()
                seconds[which].append((time.perf_counter() - started) / num_samples)
    return {"bare_s": seconds[0], "replay_s": seconds[1]}


def run(quick: bool) -> list[Result]:
    """One result per model; ``quick`` for a smoke test."""
    names = ("tiny-llama",) if quick else tuple(MODELS)
    return [bench(name, 2 if quick else 6, 2 if quick else None) for name in names]


def bench(name: str, pairs: int, num_samples: int | None = None) -> Result:
    """Measure in a process of its own, which has the environment of a replay from its start."""
    samples = num_samples or MODELS[name].num_samples
    environment = os.environ | determinism.environment(contract_of(MODELS[name]))
    given = ["--model", name, "--samples", str(samples), "--pairs", str(pairs), "--here"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.bench_cost", *given],
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    bare_s, replay_s = found["bare_s"], found["replay_s"]
    return Result(
        f"certification cost, {name} bf16, 1 thread",
        TARGET,
        tuple(b / a for a, b in zip(bare_s, replay_s, strict=True)),
        "x bare",
        more={"bare_s_per_record": bare_s, "replay_s_per_record": replay_s, "records": samples},
    )


def main() -> None:
    """Print one JSON line per model."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--model", choices=sorted(MODELS))
    parser.add_argument("--samples", type=int)
    parser.add_argument("--here", action="store_true", help="measure in this process")
    given = parser.parse_args()
    if given.here:
        print(json.dumps(measure(given.model, given.samples, given.pairs)))
        return
    for name in [given.model] if given.model else MODELS:
        print(json.dumps(bench(name, given.pairs, given.samples).to_json()), flush=True)


if __name__ == "__main__":
    main()
