"""Faults of the process: how it ends, whether it is fresh, what it can read."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from fleet.evidence import landing, parts
from fleet.replay import probe, run
from fleet.replay.engines.protocol import Prepared
from fleet.replay.engines.synthetic import SyntheticEngine
from fleet.replay.probe import AtEntry
from fleet.replay.task import ReplayTask
from tests.cases.faults.framework import other_autotune_table
from tests.cases.faults.generation import flipped_bit
from tests.cases.faults.patching import Fault, is_current, wrap


def _at_s05(act: Callable[[], Any]) -> Fault:
    """Something happens when sample s05 of the arm ``current`` is due."""

    def fault(task: ReplayTask, entry: AtEntry) -> None:
        def make(original: Any) -> Any:
            def generate(self: Any, batch: Sequence[Prepared]) -> Any:
                if is_current(batch[0], "s05"):
                    act()
                return original(self, batch)

            return generate

        wrap(SyntheticEngine, "generate", make)

    return fault


def _raise(error: BaseException) -> NoReturn:
    raise error


def another_writer(task: ReplayTask, entry: AtEntry) -> None:
    """While the replay runs, another process lands a part in its folder."""
    _at_s05(lambda: (task.folder / "part-00000.parquet").write_bytes(b"rows"))(task, entry)


killed = _at_s05(lambda: os.kill(os.getpid(), signal.SIGKILL))
out_of_memory = _at_s05(lambda: _raise(MemoryError()))
raises = _at_s05(lambda: _raise(RuntimeError("kernel launch failed")))
hangs = _at_s05(lambda: time.sleep(600))


def slow_load(task: ReplayTask, entry: AtEntry) -> None:
    """Loading takes as long as another process needs to prepare beside it."""

    def make(original: Any) -> Any:
        def load(self: Any, *args: Any) -> Any:
            time.sleep(3)
            return original(self, *args)

        return load

    wrap(SyntheticEngine, "load", make)


def _full(path: Any, data: bytes) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def disk_full_at_a_part(task: ReplayTask, entry: AtEntry) -> None:
    """The landing takes no more rows; the manifest still fits."""
    parts.write_once = _full


def disk_full_for_everything(task: ReplayTask, entry: AtEntry) -> None:
    """Not even the manifest fits."""
    parts.write_once = run.write_once = landing.write_once = _full


def differs_then_out_of_memory(task: ReplayTask, entry: AtEntry) -> None:
    """A row with another logits bit lands, then the process runs out of memory."""
    flipped_bit(task, entry)
    out_of_memory(task, entry)


def differs_with_other_settings_then_out_of_memory(task: ReplayTask, entry: AtEntry) -> None:
    """The same, but under settings that the other replays did not have."""
    other_autotune_table(task, entry)
    differs_then_out_of_memory(task, entry)


def unreadable_packages(task: ReplayTask, entry: AtEntry) -> None:
    """One fact of the platform cannot be read."""
    probe.packages = lambda: _raise(PermissionError(13, "Permission denied", "RECORD"))


def another_process(task: ReplayTask, entry: AtEntry) -> AtEntry:
    """The manifest will name another process than the one that was seen alive."""
    return replace(entry, process=replace(entry.process, start_tick=entry.process.start_tick + 1))


def torch_at_entry(task: ReplayTask, entry: AtEntry) -> AtEntry:
    """A warm process: torch was imported before the replay came."""
    return replace(entry, imported=("torch",))


def no_nonce(task: ReplayTask, entry: AtEntry) -> AtEntry:
    """The environment that the process was given carries no nonce."""
    environment = {k: v for k, v in entry.environment.items() if k != "FLEET_NONCE"}
    return replace(entry, environment=environment)


def lives_on(task: ReplayTask, entry: AtEntry) -> None:
    """The process does not end when its replay does."""
    threading.Thread(target=time.sleep, args=(60,)).start()
