"""The streams that digests were asked for on, and the memory that launches on each of them work in.

Torch gives it out, on the stream that was current: what it frees goes to work that is enqueued
later on that stream, and so runs later (torch, "CUDA semantics", "Memory management"). Knows no
tensor to digest.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from fleet.replay.gpu.digests.driver import Driver, memory
from fleet.replay.gpu.digests.jobs import ALIGNMENT, DIGEST_BYTES, MAX_JOBS, Scratch
from fleet.replay.gpu.digests.staging import ARENA_BYTES

STAGED_NODES = 2048 * DIGEST_BYTES
"""More than a launch over a full arena takes, or a narrow one on any device."""


class Lane(NamedTuple):
    """One stream, which runs its launches one after the other: they share this memory."""

    stream: int
    arena: torch.Tensor
    begin: int
    nodes: torch.Tensor
    arrived: torch.Tensor


class Lanes:
    """One lane per stream, opened when the stream is first seen. ``here``: the one in use."""

    def __init__(self, ring: torch.Tensor, driver: Driver) -> None:
        self._ring, self._driver = ring, driver
        self._known: dict[int, Lane] = {}
        self.here = self._open(driver.stream())

    def turn(self, stream: int) -> None:
        """Use the current stream's, which has this number."""
        self.here = self._known.get(stream) or self._open(stream)

    def scratch(self, num_blocks: int) -> Scratch:
        """Counters are zero, for each launch leaves them so. More nodes than there are takes only
        a tensor that is read in place, whose launch stands on the current stream."""
        if self.here.nodes.numel() < num_blocks * DIGEST_BYTES:
            nodes = self._empty(2 * num_blocks * DIGEST_BYTES)
            self.here = self._keep(self.here._replace(nodes=nodes))
        _, _, _, nodes, arrived = self.here
        return Scratch(nodes.data_ptr(), arrived.data_ptr(), self._ring.data_ptr())

    def _open(self, stream: int) -> Lane:
        self._driver.outlives(self._ring)
        arena = self._empty(ARENA_BYTES + ALIGNMENT)
        begin = -(-arena.data_ptr() // ALIGNMENT) * ALIGNMENT
        arrived = self._empty(4 * MAX_JOBS).zero_()
        return self._keep(Lane(stream, arena, begin, self._empty(STAGED_NODES), arrived))

    def _keep(self, lane: Lane) -> Lane:
        self._known[lane.stream] = lane
        return lane

    def _empty(self, num_bytes: int) -> torch.Tensor:
        return memory(num_bytes, device=self._ring.device)
