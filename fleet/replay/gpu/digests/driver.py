"""What the digests ask of CUDA: kernels, launches, and one read-back.

The driver's library is called through ctypes: a launch is one call with arguments that lie ready.
Streams, memory and the context are torch's. Knows no digest.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any, Protocol

import torch

from fleet.errors import DeviceDigestsUnavailable
from fleet.replay.gpu.digests.compiled import cubin
from fleet.replay.gpu.digests.jobs import GATHER_THREADS, Copies, Grid, Table

GATHER = "fleet_gather"
KERNELS = ("fleet_digest_wide", "fleet_digest_narrow", GATHER)

CAPTURED = "the stream is being captured into a graph"


class Driver(Protocol):
    """One device. ``sm_count``: its multiprocessors. Streams are numbered by their handles."""

    sm_count: int

    def stream(self) -> int:
        """The current stream, which work may be put on."""

    def outlives(self, ring: torch.Tensor) -> None:
        """The current stream will write to the ring, which must live until it has."""

    def gather(self, copies: Copies, stream: int) -> None:
        """Enqueue these copies and return; ``stream`` is the current one."""

    def launch(self, cut: Grid, table: Table, stream: int) -> None:
        """Enqueue these digests and return; ``stream`` may be one that was current before."""

    def take(self, ring: torch.Tensor, streams: Iterable[int]) -> bytes:
        """The ring's bytes after all work enqueued on these streams; zeros are left in it."""


class CudaDriver:
    """The device through torch's context.

    Args:
        device: a CUDA device, the current one whenever this is used.

    Raises:
        DeviceDigestsUnavailable: no NVRTC, a compile error, or a driver that refuses.
    """

    def __init__(self, device: torch.device) -> None:
        self._index = torch.cuda.current_device() if device.index is None else device.index
        facts = torch.cuda.get_device_properties(self._index)
        self.sm_count = int(facts.multi_processor_count)
        torch.empty(1, device=device)  # the first allocation makes the context current here
        self._streams: dict[int, torch.cuda.Stream] = {}
        self._host = memory(0)
        self._library = _library()
        self._functions = self._load(cubin(f"sm_{facts.major}{facts.minor}"))

    def _load(self, image: bytes) -> dict[str, ctypes.c_void_p]:
        module = ctypes.c_void_p()
        _require(self._library.cuModuleLoadData(ctypes.byref(module), image), "cuModuleLoadData")
        return {name: self._function(module, name) for name in KERNELS}

    def _function(self, module: ctypes.c_void_p, name: str) -> ctypes.c_void_p:
        found = ctypes.c_void_p()
        code = self._library.cuModuleGetFunction(ctypes.byref(found), module, name.encode())
        _require(code, f"cuModuleGetFunction {name}")
        return found

    def stream(self) -> int:
        """The current stream, asked for every few microseconds: torch's public calls make objects.

        Raises:
            DeviceDigestsUnavailable: another device is current, or the stream is being captured: a
                graph would replay the launch into slots that were read long ago.
        """
        if torch._C._cuda_getDevice() != self._index:
            raise DeviceDigestsUnavailable(f"the current device is not cuda:{self._index}")
        if torch._C._cuda_isCurrentStreamCapturing():
            raise DeviceDigestsUnavailable(CAPTURED)
        handle = torch._C._cuda_getCurrentRawStream(self._index)
        if handle not in self._streams:
            self._streams[handle] = torch.cuda.current_stream(self._index)
        return handle

    def outlives(self, ring: torch.Tensor) -> None:
        """The ring's memory is given to nobody else before the current stream is through with it,
        whenever the ring is dropped."""
        ring.record_stream(torch.cuda.current_stream(self._index))

    def gather(self, copies: Copies, stream: int) -> None:
        """Enqueue one launch; the driver has copied its argument when this returns.

        Raises:
            DeviceDigestsUnavailable: the driver refused it.
        """
        code = self._library.cuLaunchKernel(
            self._functions[GATHER], copies.num_blocks, 1, 1, GATHER_THREADS, 1, 1,
            0, stream, copies.parameters, None,
        )  # fmt: skip
        _require(code, "cuLaunchKernel")

    def launch(self, cut: Grid, table: Table, stream: int) -> None:
        """The same for digests. Those that waited may come to a stream that is captured by now.

        Raises:
            DeviceDigestsUnavailable: the driver refused it, or the stream is being captured.
        """
        captured = ctypes.c_int()
        code = self._library.cuStreamIsCapturing(stream, ctypes.byref(captured))
        _require(code, "cuStreamIsCapturing")
        if captured.value:
            raise DeviceDigestsUnavailable(CAPTURED)
        code = self._library.cuLaunchKernel(
            self._functions[cut.kernel], cut.num_blocks, 1, 1, cut.num_threads, 1, 1,
            0, stream, table.parameters, None,
        )  # fmt: skip
        _require(code, "cuLaunchKernel")

    def take(self, ring: torch.Tensor, streams: Iterable[int]) -> bytes:
        """One copy into pinned memory, on the current stream after all others, and one wait."""
        current = torch.cuda.current_stream(self._index)
        for handle in streams:
            if handle != current.cuda_stream:
                current.wait_stream(self._streams[handle])
        if self._host.numel() < ring.numel():
            self._host = memory(ring.numel(), pin_memory=True)
        copied = self._host[: ring.numel()]
        copied.copy_(ring, non_blocking=True)
        ring.zero_()  # before the wait: a later launch may stand on a stream that knows of neither
        current.synchronize()
        return copied.numpy().tobytes()


@torch.inference_mode(False)
def memory(num_bytes: int, **options: Any) -> torch.Tensor:
    """Bytes that may be written in inference mode and outside of it, whichever they were first
    asked for in: torch forbids the latter for a tensor that was made in it."""
    return torch.empty(num_bytes, dtype=torch.uint8, **options)


def _library() -> ctypes.CDLL:
    """The driver's library.

    Raises:
        DeviceDigestsUnavailable: it is not there.
    """
    try:
        return declared(ctypes.CDLL("libcuda.so.1"))
    except OSError as error:
        raise DeviceDigestsUnavailable(f"the CUDA driver library: {error}") from error


def declared(library: ctypes.CDLL) -> ctypes.CDLL:
    """The same, with the arguments of the calls made here: a pointer has 64 bits, a number that
    ctypes is not told about has 32 (CUDA driver API, "Module Management", "Stream
    Management", "Execution Control")."""
    number, pointer, text = ctypes.c_uint, ctypes.c_void_p, ctypes.c_char_p
    library.cuModuleLoadData.argtypes = [pointer, text]
    library.cuModuleGetFunction.argtypes = [pointer, pointer, text]
    library.cuStreamIsCapturing.argtypes = [pointer, pointer]
    library.cuLaunchKernel.argtypes = [pointer, *[number] * 7, pointer, pointer, pointer]
    return library


def _require(code: int, call: str) -> None:
    if code != 0:
        raise DeviceDigestsUnavailable(f"{call}: CUDA error {code}")
