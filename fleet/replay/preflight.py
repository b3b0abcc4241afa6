"""Before any attempt is planned: can this machine run these contracts at all?

A backend that is missing here, a chat template that does not exist or reads the clock, a model that
does not fit: all are usage errors, found without loading a weight. Knows no ledger and no verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import psutil

from fleet.contract.model import Contract
from fleet.errors import AttemptVoid, UsageError
from fleet.replay import observe, pinned
from fleet.replay.engines.registry import make_engine
from fleet.replay.task import ReplayTask


def problems(tasks: Sequence[ReplayTask]) -> list[dict[str, str]]:
    """One entry per task that cannot run: contract, key, expected, got, fix."""
    return [problem for task in tasks for problem in _problems_of(task)]


def _problems_of(task: ReplayTask) -> list[dict[str, str]]:
    try:
        return _cannot_run(task) or _cannot_prepare(task)
    except UsageError as error:
        return [_problem(task, error.key, error.expected, error.got, error.fix)]
    except AttemptVoid as ended:
        return [_problem(task, ended.code, "inputs that can be prepared", ended.text, _CHECK)]


_CHECK = "fleet contract check CONTRACT"


def _problem(task: ReplayTask, key: str, expected: str, got: str, fix: str) -> dict[str, str]:
    return {
        "contract": task.contract_name,
        "key": key,
        "expected": expected,
        "got": got,
        "fix": fix,
    }


def _cannot_run(task: ReplayTask) -> list[dict[str, str]]:
    contract = task.typed_contract()
    if task.checkpoint is None:
        return []
    folder = Path(task.checkpoint)
    needed = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    available = _memory_for(task)
    if needed > available:
        return [
            _problem(
                task,
                "model.checkpoint",
                "a model that fits whole on one device (it is never split or offloaded)",
                f"{needed / 2**30:.1f} GiB of weights, {available / 2**30:.1f} GiB of memory free",
                "a larger machine, or a smaller checkpoint",
            )
        ]
    if contract.model.kind == "vision" and (problem := _other_processor(task, contract, folder)):
        return [problem]
    if contract.quantization.method == "none":
        return []
    from fleet.replay.capability import cannot_run, runnable_backends

    reasons = cannot_run(contract, folder)
    if not reasons:
        return []
    quantization = contract.quantization
    can, _ = runnable_backends(
        quantization.method, quantization.bits or 0, quantization.group_size or 0
    )
    return [
        _problem(
            task,
            "quantization.backend",
            f"a backend that this machine can run: {', '.join(can) or 'none'}",
            f"{quantization.backend!r}: {'; '.join(reasons)}",
            "choose one of those, or run on a machine that has it",
        )
    ]


def _other_processor(task: ReplayTask, contract: Contract, folder: Path) -> dict[str, str] | None:
    """transformers takes another image processor than it was asked for, when that is missing."""
    from fleet.replay.engines.pictures import BACKENDS, image_processor

    found, wanted = image_processor(contract, folder), str(contract.model.processor)
    if found.backend == BACKENDS[wanted]:
        return None
    return _problem(
        task,
        "model.processor",
        f'the image processor "{wanted}" ({BACKENDS[wanted]})',
        f"{type(found).__name__} ({found.backend}), which this machine has instead",
        'install torchvision beside torch, or write processor = "slow": it gives other pixels',
    )


def _memory_for(task: ReplayTask) -> int:
    """Bytes that the slot's device can offer a model."""
    if task.device is None:
        return int(psutil.virtual_memory().available)
    return task.device.total_bytes - task.device.idle_bytes


def _cannot_prepare(task: ReplayTask) -> list[dict[str, str]]:
    contract = task.typed_contract()
    folder = pinned.folder_of(task)
    engine = make_engine(contract, folder, Path(task.dataset_file))
    observe.prepare(task, contract, engine, pinned.samples(task))
    return []


def prompt_lengths(task: ReplayTask) -> dict[str, list[int]]:
    """Arm -> prompt length in tokens of every planned sample; no weight is loaded."""
    contract = task.typed_contract()
    engine = make_engine(contract, pinned.folder_of(task), Path(task.dataset_file))
    inputs = observe.prepare(task, contract, engine, pinned.samples(task))
    return {arm: [len(p.prompt_ids) for p in prepared] for arm, prepared in inputs.items()}
