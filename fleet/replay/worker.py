"""The inside of a fresh process: entry facts first, its own log files, then the replay.

Imported by whatever started the process; imports nothing heavy until the entry facts are taken.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleet.contract.canonical import to_text
from fleet.replay.probe import AtEntry
from fleet.replay.task import ReplayTask

if TYPE_CHECKING:  # at run time only once the entry facts are taken
    from fleet.replay.run import Replay


def prepare_in_this_process(
    task: ReplayTask, entry: AtEntry, scheduler_ids: dict[str, str] | None = None
) -> Replay:
    """Prepare the attempt, in its own log files; no device is touched."""
    folder = task.folder
    folder.mkdir(parents=True, exist_ok=True)
    redirect_output(folder)
    from fleet.replay.run import Replay

    replay = Replay(task, entry, scheduler_ids)
    replay.prepare()
    return replay


def run_in_this_process(replay: Replay, token: str) -> str:
    """Run the prepared attempt; returns the manifest's digest as ``sha256:<hex>``."""
    manifest = replay.run(token)
    sys.stdout.flush()
    sys.stderr.flush()
    return to_text(manifest.digest)


def redirect_output(folder: Path) -> None:
    """Point file descriptors 1 and 2 at the attempt's own files, native libraries included."""
    for descriptor, stream, name in ((1, sys.stdout, "stdout.txt"), (2, sys.stderr, "stderr.txt")):
        stream.flush()
        target = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(target, descriptor)
        os.close(target)


def check_in_this_process(raw_tasks: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Which of these tasks this machine cannot run: the fields of a usage error each."""
    from fleet.replay.preflight import problems

    return problems([ReplayTask.from_json(raw) for raw in raw_tasks])


def backends_in_this_process(
    raw_task: dict[str, Any], only: Sequence[str] | None
) -> list[dict[str, Any]]:
    """What each backend of the task's quantisation method says of its checkpoint here."""
    from fleet.replay.backends import backends_of

    task = ReplayTask.from_json(raw_task)
    assert task.checkpoint is not None
    return [vars(b) for b in backends_of(task.typed_contract(), Path(task.checkpoint), only)]


def lengths_in_this_process(raw_task: dict[str, Any]) -> dict[str, list[int]]:
    """Arm -> prompt length in tokens of every sample, in dataset order."""
    from fleet.replay.preflight import prompt_lengths

    return prompt_lengths(ReplayTask.from_json(raw_task))


def warm_in_this_process(raw_task: dict[str, Any]) -> dict[str, Any]:
    """Fill the pinned kernel cache for one contract; what was compiled."""
    from fleet.replay.prewarm import prewarm

    return prewarm(ReplayTask.from_json(raw_task))


def devices_of_this_node() -> list[dict[str, Any]]:
    """The NVIDIA devices that a replay on this node can use; none where torch cannot.

    Raises:
        EvidenceError: cannot-observe, when the devices are there and NVML does not answer.
    """
    from fleet.replay.gpu.facts import cuda_of_torch
    from fleet.replay.gpu.nvml import devices, driver_is_loaded

    if not driver_is_loaded():
        return []
    try:
        cuda_of_torch()
    except LookupError:
        return []
    return [asdict(device) for device in devices()]
