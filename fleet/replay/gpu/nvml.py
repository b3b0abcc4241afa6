"""NVIDIA's management library, asked by UUID and never by index. The only importer of pynvml.

Judges nothing. Creates no CUDA context, so it may be asked before a device is known to be free.
Under MIG the device is the instance; what only the whole GPU knows is asked of its parent.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.errors import EvidenceError
from fleet.replay.task import Device

THROTTLE: Mapping[int, str] = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""Reasons for a lower clock that are neither idleness nor somebody's setting (NVML API reference,
"nvmlClocksEventReasons")."""

NOT_SUPPORTED = "not supported"
DRIVER = Path("/dev/nvidiactl")


def driver_is_loaded() -> bool:
    """Is NVIDIA's kernel driver here? Then its devices must be readable, or nothing is certified on
    them."""
    return DRIVER.exists()


@functools.cache
def _nvml() -> Any:
    """The library, initialised once per process.

    Raises:
        EvidenceError: cannot-observe, when it is not there or does not answer.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise EvidenceError("cannot-observe", f"NVML: {error}") from error
    return pynvml


def _ask(what: str, question: Callable[[Any], Any]) -> Any:
    nvml = _nvml()
    try:
        return question(nvml)
    except nvml.NVMLError as error:
        raise EvidenceError("cannot-observe", f"NVML, {what}: {error}") from error


def devices() -> list[Device]:
    """Every device that a process can be given, in NVML's order: GPUs, or their MIG instances.

    Raises:
        EvidenceError: cannot-observe.
    """
    return [
        Device(g.uuid(), g.name(), g.used_bytes(), g.total_bytes()) for g in _ask("devices", _all)
    ]


def _all(nvml: Any) -> list[Gpu]:
    found = []
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        found += [Gpu(h, handle) for h in _instances(nvml, handle) or [handle]]
    return found


def _instances(nvml: Any, handle: Any) -> list[Any]:
    if not _mig_is_on(nvml, handle):
        return []
    found = []
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        with contextlib.suppress(nvml.NVMLError):  # an empty place
            found.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))
    return found


def _mig_is_on(nvml: Any, handle: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    except nvml.NVMLError:  # a GPU that knows no MIG
        return False


def gpu(uuid: str) -> Gpu:
    """The device of that UUID.

    Raises:
        EvidenceError: cannot-observe, when NVML knows none.
    """
    handle = _ask(uuid, lambda nvml: nvml.nvmlDeviceGetHandleByUUID(uuid))
    if not uuid.startswith("MIG-"):
        return Gpu(handle, handle)
    parent = _ask(uuid, lambda nvml: nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle))
    return Gpu(handle, parent)


@dataclass(frozen=True)
class Gpu:
    """One device. ``whole``: the GPU that it is, or is an instance of. Every method raises
    EvidenceError(cannot-observe) when NVML does not tell, but for what says "not supported"."""

    handle: Any
    whole: Any

    def uuid(self) -> str:
        """``GPU-...`` or ``MIG-...``."""
        return str(_ask("uuid", lambda nvml: nvml.nvmlDeviceGetUUID(self.handle)))

    def name(self) -> str:
        """The product's name; an instance's carries its profile."""
        return str(_ask("name", lambda nvml: nvml.nvmlDeviceGetName(self.handle)))

    def model(self) -> str:
        """The name of the whole GPU."""
        return str(_ask("name", lambda nvml: nvml.nvmlDeviceGetName(self.whole)))

    def mig_profile(self) -> str:
        """``none`` for a whole GPU."""
        return "none" if self.handle == self.whole else self.name().rpartition(" ")[2]

    def compute_capability(self) -> str:
        """``major.minor``."""
        pair = _ask("capability", lambda n: n.nvmlDeviceGetCudaComputeCapability(self.whole))
        return f"{pair[0]}.{pair[1]}"

    def ecc_mode(self) -> str:
        """``on``, ``off``, or that the GPU has none."""
        mode = self._or_not_supported(lambda nvml: nvml.nvmlDeviceGetEccMode(self.whole))
        return NOT_SUPPORTED if mode == NOT_SUPPORTED else ("on" if mode[0] else "off")

    def used_bytes(self) -> int:
        """Memory that processes of any container hold; what the driver reserves is left out."""
        return int(_ask("memory", self._memory).used)

    def total_bytes(self) -> int:
        """All of it, what the driver reserves included."""
        return int(_ask("memory", self._memory).total)

    def _memory(self, nvml: Any) -> Any:
        return nvml.nvmlDeviceGetMemoryInfo(self.handle, version=nvml.nvmlMemory_v2)

    def processes(self) -> list[int]:
        """Pids that compute on it, as far as this PID namespace sees them."""
        found = _ask("processes", lambda n: n.nvmlDeviceGetComputeRunningProcesses(self.handle))
        return sorted(int(process.pid) for process in found)

    def reading(self) -> dict[str, Any]:
        """Clocks (MHz), temperature (C), power (W) and why the clocks are low. Moves no bit."""
        read = self._or_not_supported
        power = read(lambda n: n.nvmlDeviceGetPowerUsage(self.whole))
        return {
            "sm_mhz": read(lambda n: n.nvmlDeviceGetClockInfo(self.whole, n.NVML_CLOCK_SM)),
            "memory_mhz": read(lambda n: n.nvmlDeviceGetClockInfo(self.whole, n.NVML_CLOCK_MEM)),
            "temperature_c": read(
                lambda n: n.nvmlDeviceGetTemperature(self.whole, n.NVML_TEMPERATURE_GPU)
            ),
            "power_w": power if power == NOT_SUPPORTED else power / 1000,
            "throttle": self._throttle(),
        }

    def _throttle(self) -> Any:
        bits = self._or_not_supported(
            lambda n: n.nvmlDeviceGetCurrentClocksThrottleReasons(self.whole)
        )
        if bits == NOT_SUPPORTED:
            return bits
        return sorted(word for bit, word in THROTTLE.items() if bits & bit)

    def ecc_errors(self) -> dict[str, Any]:
        """Errors since the driver was loaded: ``corrected`` and ``uncorrected``."""
        kinds = {"corrected": 0, "uncorrected": 1}  # nvmlMemoryErrorType_t
        return {word: self._ecc_errors(kind) for word, kind in kinds.items()}

    def _ecc_errors(self, kind: int) -> Any:
        return self._or_not_supported(
            lambda n: n.nvmlDeviceGetTotalEccErrors(self.whole, kind, n.NVML_VOLATILE_ECC)
        )

    def _or_not_supported(self, question: Callable[[Any], Any]) -> Any:
        nvml = _nvml()
        try:
            return question(nvml)
        except nvml.NVMLError_NotSupported:
            return NOT_SUPPORTED
        except nvml.NVMLError as error:
            raise EvidenceError("cannot-observe", f"NVML: {error}") from error


class Xids:
    """Critical errors that the driver reports while this object lives (NVIDIA, "XID Errors")."""

    def __init__(self, device: Gpu) -> None:
        self._set: Any = None
        nvml = _nvml()
        try:
            wanted = nvml.nvmlEventTypeXidCriticalError
            events = nvml.nvmlEventSetCreate()
            nvml.nvmlDeviceRegisterEvents(device.whole, wanted, events)
            self._set = events
        except nvml.NVMLError:  # no events here: said so by ``seen``
            return

    def seen(self) -> list[int] | str:
        """Numbers of those that came since the last call."""
        if self._set is None:
            return NOT_SUPPORTED
        nvml, found = _nvml(), []
        with contextlib.suppress(nvml.NVMLError):  # a timeout ends the list
            while True:
                found.append(int(nvml.nvmlEventSetWait(self._set, 0).eventData))
        return found


def driver() -> str:
    """Version of the kernel driver."""
    return str(_ask("driver", lambda nvml: nvml.nvmlSystemGetDriverVersion()))


def cuda_of_driver() -> str:
    """The newest CUDA that the driver speaks."""
    number = int(_ask("CUDA", lambda nvml: nvml.nvmlSystemGetCudaDriverVersion()))
    return f"{number // 1000}.{number % 1000 // 10}"
