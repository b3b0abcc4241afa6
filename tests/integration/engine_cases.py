"""What the engine tests share: a contract to start from, and samples to run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from fleet.contract.model import Contract
from fleet.replay.checkpoint_tensors import tensor_digests
from fleet.replay.engines.protocol import Census, Engine, Generation, Prepared

NOW = datetime(2026, 1, 1, tzinfo=UTC)
QUESTIONS = tuple("What is " + "one plus " * n + "one?" for n in range(4))

BASE: dict[str, dict[str, Any]] = {
    "model": {"checkpoint": "demo:tiny-llama-bf16", "dtype": "bfloat16"},
    "decoding": {
        "do_sample": False,
        "num_beams": 1,
        "max_new_tokens": 6,
        "batch_size": 1,
        "use_cache": True,
    },
    "determinism": {
        "seed": 0,
        "python_hash_seed": 0,
        "deterministic_algorithms": "strict",
        "fill_uninitialized_memory": True,
        "cudnn_benchmark": False,
        "cudnn_deterministic": True,
        "cublas_workspace": ":4096:8",
        "allow_tf32": False,
        "num_threads": 1,
        "kernel_cache": "pinned",
    },
    "dataset": {"name": "none"},
    "arms": {"current": {"template": "{{ question }}", "parser": "letter", "chat": False}},
}


def contract(**changes: dict[str, Any]) -> Contract:
    """The base contract with keys of some tables replaced."""
    tables = {name: dict(table) for name, table in BASE.items()}
    for name, table in changes.items():
        tables[name] = tables.get(name, {}) | table
    return Contract.model_validate(tables)


def edit(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Change the tensors of a checkpoint."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def load(engine: Engine, folder: Path) -> Census:
    """Load what is in the folder now, as if it were the pinned checkpoint."""
    return engine.load(tensor_digests(folder))


def prepared(engine: Engine, questions: Sequence[str] = QUESTIONS) -> list[Prepared]:
    """The questions, ready to run."""
    records = [{"id": f"q{n}"} for n in range(len(questions))]
    return engine.prepare("current", records, questions, NOW)


def one_by_one(engine: Engine, samples: Sequence[Prepared]) -> list[Generation]:
    """Each sample in a batch of its own."""
    return [generation for sample in samples for generation in engine.generate([sample])]


def not_in_force(engine: Engine, prefixes: tuple[str, ...] = ("env.", "python.")) -> list[str]:
    """Required keys whose effective value differs; those of the process's start left out."""
    settings = engine.settings()
    return [
        key
        for key, value in settings.required.items()
        if settings.effective[key] != value and not key.startswith(prefixes)
    ]
