"""A device without kernels: reads arguments as ``sha256.cu`` declares them; the host hashes."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from fleet.errors import DeviceDigestsUnavailable
from fleet.evidence.digests import merkle_root
from fleet.replay.gpu.digests.device import DeviceDigests
from fleet.replay.gpu.digests.jobs import Copies, Grid, Table

CPU = torch.device("cpu")


class CJob(ctypes.Structure):
    """``struct Job``, with C's own rules for where fields lie."""

    _fields_ = (
        ("data", ctypes.c_ulonglong),
        ("num_bytes", ctypes.c_ulonglong),
        ("first_block", ctypes.c_uint),
        ("num_blocks", ctypes.c_uint),
        ("slot", ctypes.c_uint),
        ("header_bytes", ctypes.c_uint),
        ("header", ctypes.c_ubyte * 208),
    )


class CLaunch(ctypes.Structure):
    """``struct Launch``."""

    _fields_ = (
        ("nodes", ctypes.c_ulonglong),
        ("arrived", ctypes.c_ulonglong),
        ("ring", ctypes.c_ulonglong),
        ("num_jobs", ctypes.c_uint),
        ("one", ctypes.c_uint),
        ("jobs", CJob * 64),
    )


class CCopy(ctypes.Structure):
    """``struct Copy``."""

    _fields_ = (
        ("source", ctypes.c_ulonglong),
        ("target", ctypes.c_ulonglong),
        ("num_bytes", ctypes.c_uint),
        ("first_block", ctypes.c_uint),
    )


class CGather(ctypes.Structure):
    """``struct Gather``."""

    _fields_ = (("num_copies", ctypes.c_ulonglong), ("copies", CCopy * 64))


@dataclass
class FakeDriver:
    """Copies and hashes when it is told to. ``current``: the stream; ``wrong``: a digest changes;
    ``silent``: none is written; ``refuses``: the names of what is refused."""

    sm_count: int = 132
    current: int = 5
    wrong: bool = False
    silent: bool = False
    refuses: set[str] = field(default_factory=set)
    gathers: list[tuple[int, list[CCopy]]] = field(default_factory=list)
    launches: list[tuple[int, list[CJob]]] = field(default_factory=list)
    cuts: list[Grid] = field(default_factory=list)
    scratch: list[tuple[int, int]] = field(default_factory=list)
    waited: list[list[int]] = field(default_factory=list)
    told: int = 0

    def stream(self) -> int:
        return self.current

    def outlives(self, ring: torch.Tensor) -> None:
        self.told += 1

    def gather(self, copies: Copies, stream: int) -> None:
        if "gather" in self.refuses:
            raise DeviceDigestsUnavailable("cuLaunchKernel: CUDA error 700")
        given = CGather.from_buffer_copy(ctypes.string_at(copies.address, ctypes.sizeof(CGather)))
        jobs = list(given.copies[: given.num_copies])
        first = 0
        for job in jobs:
            assert job.first_block == first
            assert job.target % 256 == 0
            assert job.num_bytes > 0
            first += -(-job.num_bytes // 4096)
            ctypes.memmove(job.target, job.source, job.num_bytes)
        assert first == copies.num_blocks
        self.gathers.append((stream, jobs))

    def launch(self, cut: Grid, table: Table, stream: int) -> None:
        if "launch" in self.refuses:
            raise DeviceDigestsUnavailable("cuLaunchKernel: CUDA error 719")
        given = CLaunch.from_buffer_copy(ctypes.string_at(table.address, ctypes.sizeof(CLaunch)))
        assert given.one == 1
        jobs = list(given.jobs[: given.num_jobs])
        first = 0
        for job in jobs:
            assert job.first_block == first
            first += job.num_blocks
            if not self.silent:
                ctypes.memmove(given.ring + 32 * job.slot, self._digest(job), 32)
        assert first == cut.num_blocks
        self.cuts.append(cut)
        self.scratch.append((given.nodes, given.arrived))
        self.launches.append((stream, jobs))

    def _digest(self, job: CJob) -> bytes:
        root = merkle_root(ctypes.string_at(job.data, job.num_bytes))
        header = bytes(job.header[: job.header_bytes])
        return hashlib.sha256(header + root + b"!" * self.wrong).digest()

    def take(self, ring: torch.Tensor, streams: Iterable[int]) -> bytes:
        self.waited.append(list(streams))
        found = ring.numpy().tobytes()
        ring.zero_()
        return found


def opened(fake: FakeDriver) -> DeviceDigests:
    """Proven, and the proof forgotten."""
    found = DeviceDigests(CPU, fake)
    for record in (fake.gathers, fake.launches, fake.cuts, fake.scratch, fake.waited):
        record.clear()  # type: ignore[attr-defined]
    return found


def numbered(count: int, size: int = 40) -> list[torch.Tensor]:
    return [torch.full((size,), i, dtype=torch.int32) for i in range(count)]
