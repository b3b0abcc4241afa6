"""The one argument of the kernels: which tensors a launch digests, and how many blocks it takes.

The layout is that of ``Launch`` and ``Job`` in ``sha256.cu``. Addresses are numbers here: knows no
torch and no driver.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import NamedTuple

from fleet.evidence.digests import LEAF_BYTES

MAX_JOBS = 64
HEADER_CAPACITY = 208
"""Enough for every shape of 64 sizes, torch's limit, whose elements have addresses."""

DIGEST_BYTES = 32
NARROW_THREADS = 128
NARROW_LEAVES = NARROW_THREADS // 32
"""Leaves of a block of the narrow kernel, which gives each a warp."""

_LAUNCH = struct.Struct("<QQQII")
_JOB = struct.Struct(f"<QQIIII{HEADER_CAPACITY}s")


class Content(NamedTuple):
    """What is known of a tensor but its address: the digest's header and the bytes that follow."""

    header: bytes
    num_bytes: int
    num_leaves: int


class Job(NamedTuple):
    """One tensor of a launch: where its bytes lie and where in the ring its digest goes."""

    address: int
    content: Content
    slot: int


class Scratch(NamedTuple):
    """Addresses that a launch works in: a node per block, a counter per job, the ring."""

    nodes: int
    arrived: int
    ring: int


class Grid(NamedTuple):
    """How a launch is cut: the kernel, its threads per block, every job's blocks, and their sum."""

    kernel: str
    num_threads: int
    blocks: list[int]
    num_blocks: int


def content(header: bytes, num_bytes: int) -> Content:
    """An empty tensor has one leaf of no bytes.

    Raises:
        ValueError: a header that the kernels have no room for.
    """
    if len(header) > HEADER_CAPACITY:
        raise ValueError(f"a header of {len(header)} bytes, at most {HEADER_CAPACITY} fit")
    return Content(header, num_bytes, max(1, -(-num_bytes // LEAF_BYTES)))


def grid(leaves: Sequence[int], sm_count: int) -> Grid:
    """Cut a launch over tensors of so many leaves each.

    A leaf takes a thread about 33 message blocks of time and a warp two thirds of that, so warps
    take leaves as long as every multiprocessor has one block at most. Above that 128 threads a
    block spread over more multiprocessors, and 256 spend less on a block's own levels of the tree.
    """
    blocks = [-(-count // NARROW_LEAVES) for count in leaves]
    if (num_blocks := sum(blocks)) <= sm_count:
        return Grid("fleet_digest_narrow", NARROW_THREADS, blocks, num_blocks)
    num_threads = 128 if sum(leaves) <= 256 * sm_count else 256
    blocks = [-(-count // num_threads) for count in leaves]
    return Grid("fleet_digest_wide", num_threads, blocks, sum(blocks))


class Table:
    """The argument's memory, filled anew for every launch: a launch copies it before it returns."""

    def __init__(self) -> None:
        self._buffer = ctypes.create_string_buffer(_LAUNCH.size + MAX_JOBS * _JOB.size)
        self.address = ctypes.addressof(self._buffer)

    def fill(self, jobs: Sequence[Job], cut: Grid, scratch: Scratch) -> None:
        """Describe one launch; as many jobs as ``cut`` has, at most :data:`MAX_JOBS`."""
        _LAUNCH.pack_into(self._buffer, 0, *scratch, len(jobs), 1)
        offset, first = _LAUNCH.size, 0
        for (address, (header, num_bytes, _), slot), blocks in zip(jobs, cut.blocks, strict=True):
            _JOB.pack_into(
                self._buffer, offset, address, num_bytes, first, blocks, slot, len(header), header
            )
            offset, first = offset + _JOB.size, first + blocks
