"""Faults of weights, settings and batches."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fleet.contract.canonical import sha256
from fleet.replay import observe
from fleet.replay.engines.protocol import Generation, Prepared, Settings
from fleet.replay.engines.synthetic import SyntheticEngine
from fleet.replay.probe import AtEntry
from fleet.replay.task import ReplayTask
from tests.cases.faults.generation import flipped_bit
from tests.cases.faults.patching import Fault, is_current, wrap


def _census(**found: Any) -> Fault:
    def fault(task: ReplayTask, entry: AtEntry) -> None:
        wrap(SyntheticEngine, "load", lambda load: lambda *given: replace(load(*given), **found))

    return fault


missing_weight = _census(missing=["layers.3.mlp.down_proj.weight"])
reinitialised_weight = _census(altered=["lm_head.weight"])
unmapped_tensor = _census(unmapped=["layers.0.adapter.weight"])
weight_elsewhere = _census(off_device=["layers.1.mlp.up_proj.weight"])


def other_weights(task: ReplayTask, entry: AtEntry) -> None:
    """A load-time kernel wrote other bits, which no output shows."""
    SyntheticEngine.weights = lambda self: sha256(b"other bits")  # type: ignore[method-assign]


def weights_move_unseen(task: ReplayTask, entry: AtEntry) -> None:
    """Weights at the end are not those after load; no output shows it."""
    digests = iter((sha256(b"fleet-synthetic-1"), sha256(b"moved")))
    SyntheticEngine.weights = lambda self: next(digests)  # type: ignore[method-assign]


def weights_move(task: ReplayTask, entry: AtEntry) -> None:
    """From sample s05 of the arm ``current`` on, the weights are others, and so is the output."""

    def make(generate: Any) -> Any:
        def moved(self: Any, batch: Sequence[Prepared]) -> list[Generation]:
            if is_current(batch[0], "s05"):
                self._key = b"fleet-synthetic-2"
            return list(generate(self, batch))

        return moved

    wrap(SyntheticEngine, "generate", make)


def setting_moves(task: ReplayTask, entry: AtEntry) -> None:
    """Another component changes a setting while sample s05 of the arm ``current`` runs."""

    def make(generate: Any) -> Any:
        def moved(self: Any, batch: Sequence[Prepared]) -> list[Generation]:
            if is_current(batch[0], "s05"):
                os.environ["PYTHONHASHSEED"] = "9"
            return list(generate(self, batch))

        return moved

    wrap(SyntheticEngine, "generate", make)


def _settings(effective: dict[str, Any], required: dict[str, Any]) -> Fault:
    def fault(task: ReplayTask, entry: AtEntry) -> None:
        def make(settings: Any) -> Any:
            def changed(self: Any) -> Settings:
                s = settings(self)
                return Settings({**s.effective, **effective}, {**s.required, **required})

            return changed

        wrap(SyntheticEngine, "settings", make)

    return fault


undeclared_penalty = _settings(
    {"decoding.repetition_penalty": 1.1}, {"decoding.repetition_penalty": 1.0}
)
other_autotune_table = _settings({"autotune_table": "sha256:0123"}, {})


def larger_batches(task: ReplayTask, entry: AtEntry) -> None:
    """The process forms batches of another size than its contract says."""

    def make(original: Any) -> Any:
        def generate(task: Any, contract: Any, *rest: Any) -> Any:
            decoding = contract.decoding.model_copy(update={"batch_size": 4})
            return original(task, contract.model_copy(update={"decoding": decoding}), *rest)

        return generate

    wrap(observe, "generate", make)


def turned_batches(task: ReplayTask, entry: AtEntry) -> None:
    """Batch-mates in another order inside their batch, and one of them gets other logits."""
    wrap(observe, "_run_batch", _turned)
    flipped_bit(task, entry)


def _turned(original: Any) -> Any:
    def run_batch(engine: Any, arm: str, ordinal: int, rows: Sequence[Prepared], *rest: Any) -> Any:
        batch, made = original(engine, arm, ordinal, rows[::-1], *rest)
        return batch, made[::-1]

    return run_batch
