"""Tensor digests where the tensors are: the same 32 bytes as the host's, and no tensor comes back.

``enqueue`` returns at once: it copies the tensors on the current stream, after what made them and
before whatever may overwrite them, and lets the copies wait to be digested by one launch for many.
``collect`` waits, and brings back 32 bytes per tensor. Before the first answer the kernels are held
against the host on fixed tensors; what fails there is never used. Not for several threads; not
under a graph capture. Knows no module and no verdict.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

import torch

from fleet.errors import DeviceDigestsUnavailable
from fleet.evidence.digests import tensor_header
from fleet.replay.gpu.digests.driver import CudaDriver, Driver, memory
from fleet.replay.gpu.digests.fixed import fixed_tensors
from fleet.replay.gpu.digests.jobs import DIGEST_BYTES, Content, content, grid
from fleet.replay.gpu.digests.lanes import Lanes
from fleet.replay.gpu.digests.staging import STAGED_BYTES, Staging
from fleet.replay.host_digest import host_digest

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


class DeviceDigests:
    """The digests of one device's tensors.

    Args:
        device: the CUDA device, the current one whenever this is used.
        driver: what stands in for CUDA; tests give their own.
        staged_bytes: larger tensors are read where they are, by a launch of their call's own.

    Raises:
        DeviceDigestsUnavailable: with the reason; the host's digests are there instead.
    """

    def __init__(
        self,
        device: torch.device,
        driver: Driver | None = None,
        staged_bytes: int = STAGED_BYTES,
    ) -> None:
        if driver is None and not (device.type == "cuda" and torch.cuda.is_available()):
            raise DeviceDigestsUnavailable(f"{device} is no CUDA device that torch can use")
        self._driver = CudaDriver(device) if driver is None else driver
        self._sm_count = self._driver.sm_count
        self._ring = memory(RING_SLOTS * DIGEST_BYTES, device=device).zero_()
        self._device = self._ring.device
        self._staged_bytes = 0
        self._staging = Staging()
        self._launched = 0
        self._used: set[int] = set()
        self._collected: list[bytes] = []
        self._lanes = Lanes(self._ring, self._driver)
        self._prove()
        self._staged_bytes = staged_bytes

    def enqueue(self, tensors: Sequence[torch.Tensor]) -> range:
        """Digest these tensors as they will be at this point of the current stream, on which they
        must be safe to read; when this raises, none of them is among what is collected.

        Returns:
            Their places in what the next :meth:`collect` returns.

        Raises:
            ValueError: a tensor of another device, or without bytes of its own.
            DeviceDigestsUnavailable: a launch was refused. If it was for tensors enqueued before,
                :meth:`collect` says so too.
        """
        begin = self._count()
        try:
            self._enqueue(tensors)
        except (ValueError, RuntimeError, DeviceDigestsUnavailable):
            self._forget(begin)
            raise
        return range(begin, begin + len(tensors))

    def _enqueue(self, tensors: Sequence[torch.Tensor]) -> None:
        """Copies that torch makes die here, after what reads them is enqueued. Memory that torch
        gave out on a stream goes to work that is enqueued later on that stream, and so runs later
        (torch, "CUDA semantics", "Memory management"); a stream runs in order."""
        stream = self._driver.stream()
        if stream != self._lanes.here.stream:
            self._launch()
            self._lanes.turn(stream)
        staging, limit, in_place = self._staging, self._staged_bytes, False
        staging.open(self._lanes.here.begin)
        held = []
        for tensor in tensors:
            known = _content(tensor.dtype, tensor.shape)
            if not self._lies_in_order(tensor):
                tensor = self._plain(tensor)
                held.append(tensor)
            room = known.room if known.num_bytes <= limit else 0
            if not staging.fits(room, RING_SLOTS - self._launched):
                self._make_room()
            staging.add(tensor.data_ptr(), known, room)
            in_place |= known.num_bytes > limit
        self._gather()
        if in_place:
            self._launch()

    def collect(self) -> list[bytes]:
        """Wait for all that was enqueued since the last call; its digests, in that order.

        Raises:
            DeviceDigestsUnavailable: a digest is missing; none is left to be collected.
        """
        try:
            self._drain()
        finally:
            found, self._collected = self._collected, []
        return _written(found)

    def digest(self, tensor: torch.Tensor) -> bytes:
        """One tensor, and wait for it. What was enqueued before stays to be collected."""
        (place,) = self.enqueue([tensor])
        try:
            self._drain()
            return _written(self._collected[place:])[0]
        finally:
            del self._collected[place:]

    def _count(self) -> int:
        """What the next :meth:`collect` would return, and so the next place."""
        return len(self._collected) + self._launched + self._staging.kept

    def _forget(self, begin: int) -> None:
        """What stands from ``begin`` on was enqueued by a call that fails."""
        if self._count() > begin:
            try:
                self._drain()
            finally:
                del self._collected[begin:]

    def _make_room(self) -> None:
        self._gather()
        self._launch()
        if self._launched == RING_SLOTS:
            self._drain()

    def _gather(self) -> None:
        """Copy what this call has added; its jobs have all that they need once this is enqueued."""
        copies = self._staging.copies
        if copies.count:
            copies.finish()
            self._driver.gather(copies, self._lanes.here.stream)
        self._staging.keep()

    def _launch(self) -> None:
        """Digest all that waits, on its own stream. When that is refused their slots stay empty,
        which is seen when they are read."""
        leaves = self._staging.take()
        if not leaves:
            return
        table, stream = self._staging.table, self._lanes.here.stream
        first_slot = self._launched
        self._launched += len(leaves)
        self._used.add(stream)
        cut = grid(leaves, self._sm_count)
        table.finish(cut, first_slot, self._lanes.scratch(cut.num_blocks))
        self._driver.launch(cut, table, stream)

    def _drain(self) -> None:
        """Everything to its end; a digest that is missing keeps its place."""
        try:
            self._launch()
        finally:
            self._read_back()

    def _read_back(self) -> None:
        if not self._launched:
            return
        raw = self._driver.take(self._ring[: self._launched * DIGEST_BYTES], sorted(self._used))
        self._launched = 0
        self._used.clear()
        self._collected += [raw[i : i + DIGEST_BYTES] for i in range(0, len(raw), DIGEST_BYTES)]

    def _lies_in_order(self, tensor: torch.Tensor) -> bool:
        """Its memory is its values, on this device."""
        return (
            tensor.layout is torch.strided
            and tensor.device == self._device
            and tensor.is_contiguous()
            and not tensor.is_neg()
            and not tensor.is_conj()
        )

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
        """The kernels against the host, on tensors of every path through them: wide and narrow in
        place, and the copies."""
        fixed = fixed_tensors(self._device, self._driver.sm_count)
        wanted = [host_digest(tensor) for tensors in fixed for tensor in tensors]
        sm_count = self._driver.sm_count  # 0: none but the wide kernel
        for self._sm_count, self._staged_bytes in ((0, 0), (sm_count, 0), (sm_count, STAGED_BYTES)):
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


def _written(digests: list[bytes]) -> list[bytes]:
    if _NOTHING in digests:
        raise DeviceDigestsUnavailable("the device wrote no digest where one was due")
    return digests
