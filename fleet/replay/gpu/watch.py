"""Is the slot's device free, and does it stay this replay's alone? Evidence, and a VOID if not.

Free means: no process computes on it, and its memory is back at the level it had when the campaign
began. Memory is seen across containers, processes are not, so both are asked. Sampled at every
batch; nothing here runs beside the replay, so nothing here can disturb it.
"""

from __future__ import annotations

import os
import resource
import time
from typing import Any

from fleet.errors import AttemptVoid
from fleet.replay.gpu import cuda, nvml
from fleet.replay.task import Device

IDLE_LIMIT_BYTES = 1 << 30
"""More than this is no idle device, whatever the campaign began with: a desktop's windows may hold
that much, a neighbour's model holds more."""

SLACK_BYTES = 64 << 20
"""Idle levels differ by a few MiB between readings; a CUDA context alone takes some hundreds."""

CONTEXT_BYTES = 3 << 30
"""What a process holds beside torch's own allocations: context, kernels, workspaces."""

FREE_WITHIN_S = 60.0
"""How long the memory of a dead process may take to come back."""

EVERY_S = 0.5
"""Samples are not taken more often than this."""


class HostWatch:
    """A replay on the CPU: there is no device to hold."""

    def in_use_here(self) -> bool:
        """There is nothing that could be."""
        return False

    def wait_free(self) -> None:
        """Nothing to wait for."""

    def sample(self) -> None:
        """Nothing to look at."""

    def peak_bytes(self) -> int:
        """The most memory that the process held."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # KiB on Linux

    def close(self) -> dict[str, Any]:
        """Nothing was seen."""
        return {}


class DeviceWatch:
    """One device over one replay.

    Raises:
        EvidenceError: cannot-observe, when NVML does not answer.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._gpu = nvml.gpu(device.uuid)
        self._xids = nvml.Xids(self._gpu)
        self._ecc_before = self._gpu.ecc_errors()
        self._readings: list[dict[str, Any]] = []
        self._sees_itself = False
        self._sampled_at = -EVERY_S

    def in_use_here(self) -> bool:
        """Did this process use the device before it was told to?"""
        return cuda.context_exists()

    def wait_free(self, within_s: float = FREE_WITHIN_S) -> dict[str, Any]:
        """Wait until the device is free, or the time is over; what was seen. ``not_free`` is None
        or why; ``seen_at_s`` counts from the start of the machine."""
        begun = time.monotonic()
        while (why := self._not_free()) is not None and time.monotonic() - begun < within_s:
            time.sleep(0.01)
        return {
            "uuid": self._device.uuid,
            "idle_bytes": self._device.idle_bytes,
            "used_bytes": self._gpu.used_bytes(),
            "processes": self._gpu.processes(),
            "not_free": why,
            "waited_s": time.monotonic() - begun,
            "seen_at_s": since_boot_s(),
        }

    def _not_free(self) -> str | None:
        level = min(self._device.idle_bytes, IDLE_LIMIT_BYTES) + SLACK_BYTES
        if others := _others(self._gpu.processes()):
            return f"processes {others} compute on it"
        used = self._gpu.used_bytes()
        return None if used <= level else f"{used} bytes in use, idle is {level} at most"

    def sample(self) -> None:
        """Look again, unless the last look is fresh. torch is in use by now.

        Raises:
            AttemptVoid: device-not-free, when somebody else is on the device.
        """
        if time.monotonic() - self._sampled_at < EVERY_S:
            return
        import torch

        self._sampled_at = time.monotonic()
        pids = self._gpu.processes()
        self._sees_itself |= os.getpid() in pids
        if others := _others(pids):
            raise AttemptVoid("device-not-free", f"processes {others} compute beside the replay")
        foreign = self._gpu.used_bytes() - torch.cuda.memory_reserved()
        if foreign > self._device.idle_bytes + CONTEXT_BYTES:
            text = f"{foreign} bytes in use that are not this replay's"
            raise AttemptVoid("device-not-free", text)
        self._readings.append(self._gpu.reading())

    def peak_bytes(self) -> int:
        """The most memory that torch's allocator gave out."""
        import torch

        return torch.cuda.max_memory_allocated()

    def close(self) -> dict[str, Any]:
        """What happened to the device; faults too, which :func:`require_healthy` judges."""
        ecc = self._gpu.ecc_errors()
        return {
            "samples": len(self._readings),
            "processes_visible": self._sees_itself,
            "clocks": _ranges(self._readings),
            "throttle": sorted({w for r in self._readings for w in _words(r["throttle"])}),
            "ecc_new": {kind: _more(self._ecc_before[kind], ecc[kind]) for kind in ecc},
            "xids": self._xids.seen(),
        }


def _others(pids: list[int]) -> list[int]:
    return [pid for pid in pids if pid != os.getpid()]


def require_healthy(seen: dict[str, Any]) -> None:
    """No uncorrectable error may have come up while the replay ran.

    Raises:
        AttemptVoid: device-fault.
    """
    if not seen:
        return
    uncorrected, xids = seen["ecc_new"]["uncorrected"], seen["xids"]
    if isinstance(uncorrected, int) and uncorrected:
        raise AttemptVoid("device-fault", f"{uncorrected} uncorrected memory errors")
    if isinstance(xids, list) and xids:
        raise AttemptVoid("device-fault", f"XID {', '.join(map(str, xids))}")


def open_watch(device: Device | None) -> HostWatch | DeviceWatch:
    """What watches the slot's device.

    Raises:
        EvidenceError: cannot-observe, when NVML does not answer for it.
    """
    return HostWatch() if device is None else DeviceWatch(device)


def since_boot_s() -> float:
    """Seconds since this machine started: one clock for all its processes."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _more(before: Any, after: Any) -> Any:
    return after - before if isinstance(before, int) and isinstance(after, int) else after


def _words(value: Any) -> list[str]:
    return value if isinstance(value, list) else [str(value)]


def _ranges(readings: list[dict[str, Any]]) -> dict[str, Any]:
    """Smallest and largest of every number."""
    names = ("sm_mhz", "memory_mhz", "temperature_c", "power_w")
    found = {n: [r[n] for r in readings if not isinstance(r[n], str)] for n in names}
    return {n: [min(values), max(values)] for n, values in found.items() if values}
