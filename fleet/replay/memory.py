"""Does fresh memory hold the pattern that this replay's set varies: asked of the allocator itself.

The pattern comes from the environment that the process was started with (see
``fleet.contract.vary.environment``); nothing is set here on the host. A block that an allocator
hands out is looked at before anything is written into it. Knows no engine.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

SIZES = (4096, 2**20, 64 * 2**20)
"""Bytes of a probed block: one of the heap, one at the edge of it and one that is always mapped
anew. Smaller ones may be served from a cache that fills nothing."""

ALIGNMENT = 64
"""What torch's CPU allocator asks posix_memalign for."""


def probe_host(byte: int) -> dict[str, int]:
    """Counters of fresh blocks: how many were looked at, how many hold the pattern in every byte.

    Args:
        byte: the planned one; memory is filled with its complement. mallopt(3),
            "MALLOC_PERTURB_".
    """
    pattern = bytes([byte ^ 0xFF])
    blocks = list(_fresh_blocks())
    filled = sum(block != b"" and block == pattern * len(block) for block in blocks)
    return {"byte": byte, "blocks": len(blocks), "filled": filled}


def _fresh_blocks() -> Iterator[bytes]:
    """The bytes of newly allocated blocks, by both ways that torch and others allocate.

    An allocator that was put in place of glibc's is asked just the same, and shows.
    """
    library = ctypes.CDLL(None)
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.restype, library.free.argtypes = None, [ctypes.c_void_p]
    library.posix_memalign.argtypes = [
        ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_size_t,
    ]  # fmt: skip
    for size in SIZES:
        yield _bytes_at(library, library.malloc(size), size)
        block = ctypes.c_void_p()
        failed = library.posix_memalign(ctypes.byref(block), ALIGNMENT, size)
        yield _bytes_at(library, None if failed else block.value, size)


def _bytes_at(library: ctypes.CDLL, address: int | None, size: int) -> bytes:
    """What the block holds, after which it is given back; nothing when there is no block."""
    if not address:
        return b""
    found = ctypes.string_at(address, size)
    library.free(address)
    return found
