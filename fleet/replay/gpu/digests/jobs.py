"""The arguments of the kernels: what a launch digests or copies, and how many blocks it takes.

The layout is that of the structures of ``sha256.cu``. Addresses are numbers here: knows no torch
and no driver.
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

GATHER_THREADS = 256
CHUNK_BYTES = 16 * GATHER_THREADS
"""What one block copies."""

ALIGNMENT = 256
"""Of what is copied; the digest kernels have a path of their own for addresses of 16 bytes."""

_LAUNCH = struct.Struct("<QQQII")
_JOB = struct.Struct(f"<QQ12xI{HEADER_CAPACITY}s")
_PLACE = struct.Struct("<III")
_PLACE_AT = 16
"""A job's blocks and slot, which are known when its launch is."""

_COPIES = struct.Struct("<Q")
_COPY = struct.Struct("<QQII")

_JOB_AT = [_LAUNCH.size + i * _JOB.size for i in range(MAX_JOBS)]
_COPY_AT = [_COPIES.size + i * _COPY.size for i in range(MAX_JOBS)]


class Content(NamedTuple):
    """What is known of a tensor but its address: the digest's header and the bytes that follow.
    ``room``: what its copy takes, with what aligns the next one."""

    header: bytes
    num_bytes: int
    num_leaves: int
    room: int


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
    room = -(-num_bytes // ALIGNMENT) * ALIGNMENT
    return Content(header, num_bytes, max(1, -(-num_bytes // LEAF_BYTES)), room)


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
    """The argument of one digest launch, which copies it before it returns. A job is written when
    its tensor is seen, once; what depends on the whole launch is added by :meth:`finish`."""

    def __init__(self) -> None:
        self._buffer = ctypes.create_string_buffer(_LAUNCH.size + MAX_JOBS * _JOB.size)
        self.address = ctypes.addressof(self._buffer)
        self.parameters = (ctypes.c_void_p * 1)(self.address)

    def put(self, index: int, address: int, content: Content) -> None:
        """Job ``index``: where its bytes will lie."""
        header, num_bytes, _, _ = content
        _JOB.pack_into(self._buffer, _JOB_AT[index], address, num_bytes, len(header), header)

    def finish(self, cut: Grid, first_slot: int, scratch: Scratch) -> None:
        """The first jobs, as many as ``cut`` has, with their digests in slots that follow."""
        _LAUNCH.pack_into(self._buffer, 0, *scratch, len(cut.blocks), 1)
        first_block = 0
        for i, blocks in enumerate(cut.blocks):
            _PLACE.pack_into(
                self._buffer, _JOB_AT[i] + _PLACE_AT, first_block, blocks, first_slot + i
            )
            first_block += blocks


class Copies:
    """The argument of one gather launch: at most :data:`MAX_JOBS` copies, none of them empty."""

    def __init__(self) -> None:
        self._buffer = ctypes.create_string_buffer(_COPIES.size + MAX_JOBS * _COPY.size)
        self.address = ctypes.addressof(self._buffer)
        self.parameters = (ctypes.c_void_p * 1)(self.address)
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self.count = self.num_blocks = 0

    def put(self, source: int, target: int, num_bytes: int) -> None:
        """One more; the target is aligned and has room for a multiple of 16 bytes."""
        _COPY.pack_into(
            self._buffer, _COPY_AT[self.count], source, target, num_bytes, self.num_blocks
        )
        self.count += 1
        self.num_blocks += -(-num_bytes // CHUNK_BYTES)

    def finish(self) -> None:
        """Ready to be launched."""
        _COPIES.pack_into(self._buffer, 0, self.count)
