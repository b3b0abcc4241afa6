"""Fill the pinned kernel cache: one process per node compiles what a contract's replays will use.

A pinned cache must not change while a replay runs, and kernels are compiled at first use, some for
each shape. So the contract is loaded once outside every attempt, and one batch of each shape that
its dataset has is run. Nothing of it is evidence. A compiler may keep notes for its next run, so a
contract is warm only when a process added nothing; what was there then is noted beside the cache,
and while all of it still is, nothing is run again.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fleet.contract.canonical import digest_json
from fleet.replay import caches, determinism, observe, pinned, probe
from fleet.replay.engines.protocol import Prepared
from fleet.replay.engines.registry import make_engine
from fleet.replay.task import ReplayTask


def prewarm(task: ReplayTask) -> dict[str, Any]:
    """Compile, unless it is all there. ``compiled``: files that were not there before; ``warm``: is
    the cache complete, or must another process look again?

    Raises:
        AttemptEnded, UsageError: the contract cannot be loaded or run here.
    """
    begun = time.monotonic()
    root, mark = caches.pinned_kernels(Path(task.scratch)), _mark(task)
    before = caches.kernel_files(root)
    if _holds(mark, before):
        return {"compiled": 0, "files": len(before), "seconds": 0.0, "warm": True}
    _run_every_shape(task)
    after = caches.kernel_files(root)
    new = sum(1 for name in after if after[name] != before.get(name))
    if not new:
        _note(mark, after)
    seconds = time.monotonic() - begun
    return {"compiled": new, "files": len(after), "seconds": seconds, "warm": not new}


def _note(mark: Path, there: dict[str, str]) -> None:
    mark.parent.mkdir(parents=True, exist_ok=True)
    unfinished = mark.with_suffix(f".{os.getpid()}")
    unfinished.write_text(json.dumps(there, sort_keys=True))
    unfinished.replace(mark)


def _mark(task: ReplayTask) -> Path:
    """Another contract, package or device has other kernels."""
    device = task.device.name if task.device else "cpu"
    key = digest_json([task.execution_id, probe.packages(), device]).hex()[:32]
    return Path(task.scratch) / "prewarmed" / f"{key}.json"


def _holds(mark: Path, there: dict[str, str]) -> bool:
    if not mark.exists():
        return False
    noted: dict[str, str] = json.loads(mark.read_text())
    return all(there.get(name) == digest for name, digest in noted.items())


def _run_every_shape(task: ReplayTask) -> None:
    contract = task.typed_contract()
    folder = pinned.folder_of(task)
    determinism.apply(contract)
    engine = make_engine(contract, folder)
    inputs = observe.prepare(task, contract, engine, pinned.samples(task))
    engine.load(pinned.weights(task, folder).digests, task.campaign)
    batches = list(_one_of_each_shape(inputs, contract.decoding.batch_size))
    for batch in batches:
        engine.generate(batch)
    engine.executed(batches[0][0])


def _one_of_each_shape(inputs: observe.Inputs, size: int) -> Iterator[Sequence[Prepared]]:
    """The first batch of each shape."""
    seen = set()
    for prepared in inputs.values():
        for batch in observe.batches(prepared, size):
            if observe.shape(batch) not in seen:
                seen.add(observe.shape(batch))
                yield batch
