"""Certification cost: seconds per record of a replay over those of the bare generate loop.

    python -m tests.bench.bench_cost [--model tiny-llama] [--pairs 24]

Bare: ``generate`` of the same loaded model on the same record, greedy, returning the logits of
every step. Replay: what a replay does with that record, from the state of the generators to the
landed part. The two alternate record by record in one process (ABBA), so that a busy machine slows
both; what happens once in a replay (import, load, weights) is in neither. Target 1.05.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fleet.contract.dataset import load_dataset
from fleet.contract.load import load_contract
from fleet.contract.model import Contract
from fleet.contract.parsers import load_parser
from fleet.evidence.parts import PartWriter
from fleet.replay import determinism, observe
from fleet.replay.checkpoint import default_cache, resolve, tensor_digests
from fleet.replay.engines.protocol import Prepared
from fleet.replay.engines.registry import make_engine
from fleet.replay.pinned import Samples
from fleet.replay.task import ReplayTask
from tests.bench.result import Result

CONFIGS = Path(__file__).parents[2] / "configs"
ARM = "current"
TARGET = 1.05


class Model(NamedTuple):
    """``contract`` gives everything but the control, the threads and the checkpoint.

    ``pairs``: records, each run both ways.
    """

    contract: str
    checkpoint: str
    pairs: int


MODELS = {
    "smollm2": Model("smollm2-bf16", "demo:smollm2-135m", 24),
    "tiny-llama": Model("control-clean", "demo:tiny-llama-bf16", 192),
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
        num_samples = min(num_samples, 24)
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
        self.census = self.engine.load(tensor_digests(folder) if folder else {})
        self.writer = PartWriter(self.task.folder)

    def pairs(self) -> Iterator[tuple[float, float]]:
        """(bare, replay) seconds of each record, alternating which goes first."""
        replayed = observe.generate(
            self.task, self.contract, self.engine, self.inputs, self.samples, self.parsers
        )
        for number, prepared in enumerate(self.inputs[ARM]):
            took = {}
            for name in ("bare", "replay") if number % 2 == 0 else ("replay", "bare"):
                started = time.perf_counter()
                if name == "bare":
                    self.bare(prepared)
                else:
                    self.writer.add(next(replayed))
                took[name] = time.perf_counter() - started
            yield took["bare"], took["replay"]

    def land(self) -> float:
        """Seconds to land the rows that still wait."""
        started = time.perf_counter()
        self.writer.flush()
        return time.perf_counter() - started

    def bare(self, prepared: Prepared) -> None:
        """Generate, and keep the logits as ``generate`` hands them out."""
        import torch

        model = self.engine.model()
        with _unobserved(model), torch.inference_mode():
            ids = torch.tensor([prepared.prompt_ids])
            mask = torch.tensor([prepared.attention_mask])
            found = model.generate(inputs=ids, attention_mask=mask, generation_config=self.config)
            assert len(found.logits) == found.sequences.shape[1] - ids.shape[1]

    @functools.cached_property
    def config(self) -> Any:
        """What the contract asks for, the rest as the library has it."""
        import transformers

        rule = self.contract.decoding
        return transformers.GenerationConfig(
            do_sample=False,
            max_new_tokens=rule.max_new_tokens,
            eos_token_id=list(rule.stop_token_ids or (self.engine.model().config.eos_token_id,)),
            pad_token_id=rule.pad_token_id or 0,
            output_logits=True,
            return_dict_in_generate=True,
        )


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


def measure(name: str, pairs: int) -> list[tuple[float, float]]:
    """(bare, replay) seconds per record, over as many records as asked, in this process.

    Landing the last part is shared out over all of them, as it would be in a replay.
    """
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(MODELS[name], pairs, Path(folder))
        next(bench.pairs())  # the first use of a kernel, a module or a file is no slope
        bench.land()
        measured: list[tuple[float, float]] = []
        while len(measured) < pairs:
            measured += bench.pairs()
        landing_s = bench.land() / len(measured)
    return [(bare, replay + landing_s) for bare, replay in measured]


def bench(name: str, pairs: int) -> Result:
    """Measure in a process of its own, which has the environment of a replay from its start."""
    environment = os.environ | determinism.environment(contract_of(MODELS[name]))
    given = ["--model", name, "--pairs", str(pairs), "--here"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.bench_cost", *given],
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    seconds = json.loads(done.stdout.splitlines()[-1])
    bare_s, replay_s = (statistics.median(column) for column in zip(*seconds, strict=True))
    return Result(
        f"certification cost, {name} bf16, 1 thread",
        TARGET,
        tuple(replay / bare for bare, replay in seconds),
        "x bare",
        more={"bare_s_per_record": bare_s, "replay_s_per_record": replay_s},
    )


def run(quick: bool = False) -> Iterator[Result]:
    """One result per model; ``quick`` for a smoke test."""
    if quick:
        yield bench("tiny-llama", 4)
    else:
        yield from (bench(name, model.pairs) for name, model in MODELS.items())


def main() -> None:
    """Print one JSON line per model."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int)
    parser.add_argument("--model", choices=sorted(MODELS))
    parser.add_argument("--here", action="store_true", help="measure in this process")
    given = parser.parse_args()
    if given.here:
        print(json.dumps(measure(given.model, given.pairs)))
        return
    for name in [given.model] if given.model else MODELS:
        print(json.dumps(bench(name, given.pairs or MODELS[name].pairs).to_json()), flush=True)


if __name__ == "__main__":
    main()
