"""A stand-in for pynvml: GPUs whose state a test sets, under the real library's names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    """As the library's own."""


class NVMLError_NotSupported(NVMLError):
    """A question that this GPU cannot answer."""


@dataclass
class FakeGpu:
    """What one device shows; a test changes it as time goes by."""

    uuid: str = "GPU-00000000-0000-0000-0000-000000000001"
    name: str = "NVIDIA H200"
    used: int = 1 << 20
    total: int = 140 << 30
    pids: list[int] = field(default_factory=list)
    uncorrected: int = 0
    ecc: tuple[int, int] | None = (1, 1)
    throttle: int = 0
    xids: list[int] = field(default_factory=list)
    instances: list[FakeGpu] = field(default_factory=list)
    parent: FakeGpu | None = None


class FakeNvml:
    """The functions that are asked for."""

    NVMLError = NVMLError
    NVMLError_NotSupported = NVMLError_NotSupported
    nvmlMemory_v2 = 2
    NVML_CLOCK_SM = NVML_CLOCK_MEM = NVML_TEMPERATURE_GPU = NVML_VOLATILE_ECC = 0
    nvmlEventTypeXidCriticalError = 8

    def __init__(self, *gpus: FakeGpu) -> None:
        self.gpus = list(gpus)
        for gpu in gpus:
            for instance in gpu.instances:
                instance.parent = gpu

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return getattr(self, "_" + name.removeprefix("nvml"))  # type: ignore[no-any-return]

    def _DeviceGetCount(self) -> int:
        return len(self.gpus)

    def _DeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        return self.gpus[index]

    def _DeviceGetHandleByUUID(self, uuid: str) -> FakeGpu:
        everything = [each for gpu in self.gpus for each in (gpu, *gpu.instances)]
        for each in everything:
            if each.uuid == uuid:
                return each
        raise NVMLError("Not Found")

    def _DeviceGetMigMode(self, gpu: FakeGpu) -> tuple[int, int]:
        return (1, 1) if gpu.instances else (0, 0)

    def _DeviceGetMaxMigDeviceCount(self, gpu: FakeGpu) -> int:
        return 7

    def _DeviceGetMigDeviceHandleByIndex(self, gpu: FakeGpu, index: int) -> FakeGpu:
        if index >= len(gpu.instances):
            raise NVMLError("Not Found")
        return gpu.instances[index]

    def _DeviceGetDeviceHandleFromMigDeviceHandle(self, gpu: FakeGpu) -> FakeGpu:
        assert gpu.parent is not None
        return gpu.parent

    def _DeviceGetUUID(self, gpu: FakeGpu) -> str:
        return gpu.uuid

    def _DeviceGetName(self, gpu: FakeGpu) -> str:
        return gpu.name

    def _DeviceGetCudaComputeCapability(self, gpu: FakeGpu) -> tuple[int, int]:
        return (9, 0)

    def _DeviceGetEccMode(self, gpu: FakeGpu) -> tuple[int, int]:
        if gpu.ecc is None:
            raise NVMLError_NotSupported("Not Supported")
        return gpu.ecc

    def _DeviceGetMemoryInfo(self, gpu: FakeGpu, version: int) -> SimpleNamespace:
        assert version == self.nvmlMemory_v2  # the first version counts what the driver reserves
        return SimpleNamespace(used=gpu.used, total=gpu.total)

    def _DeviceGetComputeRunningProcesses(self, gpu: FakeGpu) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid) for pid in gpu.pids]

    def _DeviceGetClockInfo(self, gpu: FakeGpu, clock: int) -> int:
        return 1980

    def _DeviceGetTemperature(self, gpu: FakeGpu, sensor: int) -> int:
        return 40

    def _DeviceGetPowerUsage(self, gpu: FakeGpu) -> int:
        raise NVMLError_NotSupported("Not Supported")

    def _DeviceGetCurrentClocksThrottleReasons(self, gpu: FakeGpu) -> int:
        return gpu.throttle

    def _DeviceGetTotalEccErrors(self, gpu: FakeGpu, kind: int, counter: int) -> int:
        if gpu.ecc is None:
            raise NVMLError_NotSupported("Not Supported")
        return gpu.uncorrected if kind == 1 else 0

    def _EventSetCreate(self) -> list[FakeGpu]:
        return []

    def _DeviceRegisterEvents(self, gpu: FakeGpu, kinds: int, events: list[FakeGpu]) -> None:
        events.append(gpu)

    def _EventSetWait(self, events: list[FakeGpu], timeout_ms: int) -> SimpleNamespace:
        if not events[0].xids:
            raise NVMLError("Timeout")
        return SimpleNamespace(eventData=events[0].xids.pop())

    def _SystemGetDriverVersion(self) -> str:
        return "580.159.04"

    def _SystemGetCudaDriverVersion(self) -> int:
        return 13000
