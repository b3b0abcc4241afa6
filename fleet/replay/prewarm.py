"""Fill the pinned kernel cache: one process per node compiles what a contract's replays will use.

A pinned cache must not change while a replay runs, and kernels are compiled at first use, some for
each shape. So the contract is loaded once outside every attempt, and one batch of each shape (rows,
padded length) that its dataset has is run: all of the contract's own plan, and where the batch is
varied up to ``MOST_VARIED`` more of those that can be drawn. Not covered are shapes beyond these,
and steps that a row of the batch that stood for its shape did not reach: what they compile changes
the cache, and that replay is VOID and says so.

Nothing of it is evidence. A compiler may keep notes for its next run, so a contract is warm only
when a process added nothing; what was there then is noted beside the cache, and while all of it
still is, nothing is run again.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fleet.contract.canonical import digest_json
from fleet.contract.vary import Own, batch_rows, varied_contract
from fleet.evidence.whole import replaced
from fleet.replay import caches, determinism, observe, pinned, probe
from fleet.replay.engines.protocol import Prepared
from fleet.replay.engines.registry import make_engine
from fleet.replay.task import ReplayTask

MOST_VARIED = 128
"""Shapes run beyond the contract's own: some 24 samples of 16 lengths in batches of up to 8."""


def prewarm(task: ReplayTask) -> dict[str, Any]:
    """Compile, unless it is all there. ``compiled``: files that were not there before; ``warm``: is
    the cache complete, or must another process look again?

    Args:
        task: its ``varied`` values hold for every batch; with ``batch`` in its ``vary`` the shapes
            of all batches that can be drawn are covered.

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
    with replaced(mark) as unfinished:
        unfinished.write_text(json.dumps(there, sort_keys=True))


def _mark(task: ReplayTask) -> Path:
    """Another contract, package or device has other kernels, and other shapes may have."""
    device = task.device.name if task.device else "cpu"
    covered = [list(task.vary), task.varied, list(task.sample_ids), list(task.arms), MOST_VARIED]
    key = digest_json([task.execution_id, probe.packages(), device, covered]).hex()[:32]
    return Path(task.scratch) / "prewarmed" / f"{key}.json"


def _holds(mark: Path, there: dict[str, str]) -> bool:
    if not mark.exists():
        return False
    noted: dict[str, str] = json.loads(mark.read_text())
    return all(there.get(name) == digest for name, digest in noted.items())


def _run_every_shape(task: ReplayTask) -> None:
    own = task.typed_contract()
    contract = varied_contract(own, task.varied)
    folder = pinned.folder_of(task)
    determinism.apply(contract)
    engine = make_engine(contract, folder, Path(task.dataset_file))
    inputs = observe.prepare(task, contract, engine, pinned.samples(task))
    engine.load(pinned.weights(task, folder).digests, task.campaign)
    bounds = Own.of(own, len(task.sample_ids), cores=1)
    batches = list(_one_of_each_shape(inputs, bounds, "batch" in task.vary))
    for batch in batches:
        engine.generate(batch)
    engine.executed(batches[0][0])


def _one_of_each_shape(
    inputs: observe.Inputs, own: Own, varies_batch: bool
) -> Iterator[Sequence[Prepared]]:
    """The first batch of each shape of the contract's own plan, then of those that can be drawn."""
    seen: set[tuple[object, ...]] = set()

    def new(batches: Iterable[Sequence[Prepared]]) -> Iterator[Sequence[Prepared]]:
        for batch in batches:
            shape = observe.shape(batch), observe.image_shapes(batch)
            if shape not in seen:
                seen.add(shape)
                yield batch

    for prepared in inputs.values():
        yield from new(observe.batches(prepared, own.batch_size))
    if varies_batch:
        yield from itertools.islice(new(_drawn(inputs, own)), MOST_VARIED)


def _drawn(inputs: observe.Inputs, own: Own) -> Iterator[Sequence[Prepared]]:
    """A batch of every shape that a drawn one can have: each number of rows by turns, its likeliest
    padded length first."""
    by_rows = [_by_length(p, rows) for rows in batch_rows(own) for p in inputs.values()]
    for turn in itertools.zip_longest(*by_rows):
        yield from (batch for batch in turn if batch is not None)


def _by_length(prepared: Sequence[Prepared], rows: int) -> list[Sequence[Prepared]]:
    """A batch of so many rows for each length that can be its longest. As likely as there are
    choices of rows: those of samples that fit, without those of samples that are all shorter."""
    ordered = sorted(prepared, key=lambda p: len(p.prompt_ids))
    lengths = [len(p.prompt_ids) for p in ordered]
    found: list[tuple[int, Sequence[Prepared]]] = []
    for length in sorted(set(lengths)):
        shorter, fitting = bisect_left(lengths, length), bisect_right(lengths, length)
        if fitting >= rows:
            choices = math.comb(fitting, rows) - math.comb(shorter, rows)
            found.append((choices, ordered[fitting - rows : fitting]))
    return [batch for _, batch in sorted(found, key=lambda one: -one[0])]
