"""Tensor digests where the tensors are: the same 32 bytes as the host's, and no tensor comes back.

``enqueue`` returns at once: its launch stands on the current stream after what made the tensors and
before whatever may overwrite them. ``collect`` waits, and brings back 32 bytes per tensor. Before
the first answer the kernels are held against the host on fixed tensors; what fails there is never
used. Not for several threads; not under a graph capture. Knows no module and no verdict.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import NamedTuple

import torch

from fleet.errors import DeviceDigestsUnavailable
from fleet.evidence.digests import tensor_header
from fleet.replay.gpu.digests.driver import CudaDriver, Driver
from fleet.replay.gpu.digests.fixed import fixed_tensors, host_digest
from fleet.replay.gpu.digests.jobs import (
    DIGEST_BYTES,
    MAX_JOBS,
    Content,
    Job,
    Scratch,
    Table,
    content,
    grid,
)

RING_SLOTS = 16384
"""Digests that wait on the device, 512 KiB; one more and those before it are fetched."""

_NOTHING = bytes(DIGEST_BYTES)
"""What a slot holds before a digest: an old one left in it would be taken for the new."""

_NOT_BYTES = re.compile(r"u?int[1-7]|bits\w+|qu?int\w+")
"""Packed integers, bits and quantised types."""

_CARRIERS = {
    1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128,
}  # fmt: skip
"""A type of each size that every copy kernel knows; copies of it move bits."""


class _Memory(NamedTuple):
    """What launches on one stream work in."""

    room: int
    nodes: torch.Tensor
    arrived: torch.Tensor
    scratch: Scratch


class DeviceDigests:
    """The digests of one device's tensors.

    Args:
        device: the CUDA device, the current one whenever this is used.
        driver: what stands in for CUDA; tests give their own.

    Raises:
        DeviceDigestsUnavailable: with the reason; the host's digests are there instead.
    """

    def __init__(self, device: torch.device, driver: Driver | None = None) -> None:
        if driver is None and not (device.type == "cuda" and torch.cuda.is_available()):
            raise DeviceDigestsUnavailable(f"{device} is no CUDA device that torch can use")
        self._driver = CudaDriver(device) if driver is None else driver
        self._sm_count = self._driver.sm_count
        self._ring = torch.zeros(RING_SLOTS * DIGEST_BYTES, dtype=torch.uint8, device=device)
        self._device = self._ring.device
        self._table = Table()
        self._filled = 0
        self._collected: list[bytes] = []
        self._used: set[int] = set()
        self._memory: dict[int, _Memory] = {}
        self._prove()

    def enqueue(self, tensors: Sequence[torch.Tensor]) -> range:
        """Digest these tensors as they will be at this point of the current stream, on which they
        must be safe to read; when this raises, none of them is among what is collected.

        Returns:
            Their places in what the next :meth:`collect` returns.

        Raises:
            ValueError: a tensor of another device, or without bytes of its own.
            DeviceDigestsUnavailable: the launch was refused, or see :meth:`collect`.
        """
        begin = len(self._collected) + self._filled
        try:
            self._enqueue(tensors)
        except (ValueError, DeviceDigestsUnavailable):
            self._drain()
            del self._collected[begin:]
            raise
        return range(begin, begin + len(tensors))

    def _enqueue(self, tensors: Sequence[torch.Tensor]) -> None:
        """Copies die when their launch is enqueued. Memory that torch gave out on a stream goes to
        work that is enqueued later on that stream, and so runs after the launch (torch, "CUDA
        semantics", "Memory management"); a stream runs in order."""
        stream = self._driver.stream()
        for first in range(0, len(tensors), MAX_JOBS):
            self._launch([self._plain(t) for t in tensors[first : first + MAX_JOBS]], stream)

    def collect(self) -> list[bytes]:
        """Wait for all that was enqueued since the last call; its digests, in that order.

        Raises:
            DeviceDigestsUnavailable: a digest is missing.
        """
        self._drain()
        found, self._collected = self._collected, []
        return found

    def digest(self, tensor: torch.Tensor) -> bytes:
        """One tensor, and wait for it. What was enqueued before stays to be collected."""
        (place,) = self.enqueue([tensor])
        self._drain()
        return self._collected.pop(place)

    def _launch(self, tensors: Sequence[torch.Tensor], stream: int) -> None:
        if self._filled + len(tensors) > RING_SLOTS:
            self._drain()
        contents = [_content(tensor.dtype, tensor.shape) for tensor in tensors]
        cut = grid([each.num_leaves for each in contents], self._sm_count)
        jobs = [
            Job(tensor.data_ptr(), each, self._filled + i)
            for i, (tensor, each) in enumerate(zip(tensors, contents, strict=True))
        ]
        self._table.fill(jobs, cut, self._scratch(cut.num_blocks, stream))
        self._used.add(stream)
        self._driver.launch(cut, self._table, stream)
        self._filled += len(tensors)

    def _scratch(self, num_blocks: int, stream: int) -> Scratch:
        """Every stream has its own: launches on one run one after the other, and each leaves the
        counters at zero."""
        known = self._memory.get(stream)
        if known is None or known.room < num_blocks:
            known = self._memory[stream] = self._more(num_blocks, known)
        return known.scratch

    def _more(self, num_blocks: int, known: _Memory | None) -> _Memory:
        """Room for twice as many; the old is given back as copies are."""
        room = max(2 * num_blocks, 2048)
        nodes = self._zeros(room * DIGEST_BYTES)
        arrived = self._zeros(4 * MAX_JOBS) if known is None else known.arrived
        if known is None:
            self._driver.outlives(self._ring)
        scratch = Scratch(nodes.data_ptr(), arrived.data_ptr(), self._ring.data_ptr())
        return _Memory(room, nodes, arrived, scratch)

    def _zeros(self, num_bytes: int) -> torch.Tensor:
        return torch.zeros(num_bytes, dtype=torch.uint8, device=self._device)

    def _drain(self) -> None:
        if not self._filled:
            return
        raw = self._driver.take(self._ring[: self._filled * DIGEST_BYTES], sorted(self._used))
        self._filled = 0
        self._used.clear()
        found = [raw[i : i + DIGEST_BYTES] for i in range(0, len(raw), DIGEST_BYTES)]
        if _NOTHING in found:
            raise DeviceDigestsUnavailable("the device wrote no digest where one was due")
        self._collected += found

    def _plain(self, tensor: torch.Tensor) -> torch.Tensor:
        """Its values in order on the device: itself, or a copy where they do not lie so. A lazy
        conjugate or negation has the address of its base and other values."""
        if tensor.device != self._device:
            raise ValueError(f"a tensor on {tensor.device}, expected one on {self._device}")
        if tensor.layout is not torch.strided:
            raise ValueError(f"a {tensor.layout} tensor has no bytes of its own")
        if tensor.is_conj() or tensor.is_neg():
            tensor = tensor.detach().resolve_conj().resolve_neg()
        if tensor.is_contiguous():
            return tensor
        carrier = _CARRIERS[tensor.element_size()]
        return tensor.detach().view(carrier).contiguous().view(tensor.dtype)

    def _prove(self) -> None:
        """Both kernels against the host, on tensors of every path through them."""
        fixed = fixed_tensors(self._device, self._driver.sm_count)
        wanted = [host_digest(tensor) for tensors in fixed for tensor in tensors]
        for sm_count in (0, self._driver.sm_count):  # 0: none but the wide kernel
            self._sm_count = sm_count
            for tensors in fixed:
                self.enqueue(tensors)
            pairs = zip(wanted, self.collect(), strict=True)
            if wrong := [i for i, (host, here) in enumerate(pairs) if host != here]:
                text = f"digests of fixed tensors {wrong} differ from the host's"
                raise DeviceDigestsUnavailable(text)


@functools.lru_cache(maxsize=4096)
def _content(dtype: torch.dtype, shape: torch.Size) -> Content:
    name = str(dtype).removeprefix("torch.")
    if _NOT_BYTES.fullmatch(name):
        raise ValueError(f"a tensor of {name} has no bytes of its own")
    num_bytes = shape.numel() * dtype.itemsize
    return content(tensor_header(name, shape, num_bytes), num_bytes)
