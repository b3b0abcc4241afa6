"""What this replay's set varies, put in force where no contract key can, and counted.

Order, batches and threads follow from the varied contract and the batch plan; here their evidence
is gathered, memory is probed before the first generation and after the last one, and in between
busy neighbours run beside it, on the host and on the device that it has. A replay whose counters
are short ends as VOID: agreement of replays that were not varied proves nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleet.contract.model import Contract
from fleet.contract.vary import Own
from fleet.errors import AttemptVoid
from fleet.evidence.stress import THREADS, Ran, cache_in_force, shortfall, to_show
from fleet.replay import caches
from fleet.replay.gpu.neighbour_stream import neighbour_stream
from fleet.replay.memory import probe_host
from fleet.replay.neighbours import neighbours
from fleet.replay.task import ReplayTask


@dataclass
class Stress:
    """The counters of one replay; all empty for an exact repeat, and for a reference but for its
    caches."""

    task: ReplayTask
    ran: Ran
    _memory: dict[str, int] = field(default_factory=dict)
    _load: dict[str, int | float] = field(default_factory=dict)
    _kernels: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, task: ReplayTask, contract: Contract) -> Stress:
        """Nothing counted yet. ``contract``: with its own values."""
        return cls(task, Ran(Own.of(contract, len(task.sample_ids), cores=0)))

    def before_load(self) -> None:
        """The last moment before anything is loaded."""
        if "kernel_cache" in self.task.vary:
            self._kernels = self._kernels_now()

    def after_load(self) -> None:
        """The last moment before the first generation."""
        if "memory" not in self.task.varied:
            return
        byte = self.task.varied["memory"]
        self._memory = probe_host(byte)
        if self.task.device is not None:
            self._memory |= _device(byte)

    @contextmanager
    def while_samples_run(self) -> Iterator[None]:
        """From before the first generation until after the last one."""
        if "load" not in self.task.varied:
            yield
            return
        with ExitStack() as stack:
            beside = stack.enter_context(neighbours(self.task.varied["load"]))
            on_device = self.task.device is not None
            stream = stack.enter_context(neighbour_stream()) if on_device else None
            yield
            self._load = beside.counters() | (stream.counters() if stream else {})

    def at_the_end(
        self,
        effective: Mapping[str, Any],
        at_end: Mapping[str, Any],
        decode_steps: Mapping[str, int] | None = None,
    ) -> dict[str, Any]:
        """All counters, by name.

        Args:
            effective: settings read back after load.
            at_end: settings read back at the end.
            decode_steps: as the engine counted them, with a key-value cache and without.

        Raises:
            AttemptVoid: they do not show that the stress was there; the counters are its details.
        """
        varied = self.task.varied
        found = self.ran.counters(varied)
        if "threads" in varied:
            found["threads"] = {"at_load": effective.get(THREADS), "at_end": at_end.get(THREADS)}
        if "load" in varied:
            found["load"] = self._load
        if "memory" in varied:
            later = probe_host(varied["memory"])
            more = {key: self._memory[key] + later[key] for key in ("blocks", "filled")}
            found["memory"] = self._memory | more
        if "cache" in self.task.vary:
            found["cache"] = {"in_force": cache_in_force(at_end)} | dict(decode_steps or {})
        if "kernel_cache" in self.task.vary:
            found["kernel_cache"] = {"at_load": self._kernels, "at_end": self._kernels_now()}
        wanted = to_show(self.task.vary, varied, self.ran.own)
        why = shortfall(wanted, found, self.task.device is not None)
        if why:
            raise AttemptVoid("stress-not-applied", why, {"stress": found})
        return found

    def _kernels_now(self) -> dict[str, Any]:
        return caches.counted(Path(self.task.scratch), self.task.attempt, os.environ)


def _device(byte: int) -> dict[str, int]:
    import torch

    from fleet.replay.gpu.prefill import prefill

    device = torch.device("cuda", 0)
    return prefill(byte, device, torch.cuda.mem_get_info(device)[0])
