"""Fill the device memory that torch's allocator will hand out next with a pattern, and look at it.

Blocks are taken, filled and given back to the allocator's cache, from where later tensors come
(torch docs, "CUDA semantics", "Memory management"). A block may still be served from what loading
left in the cache: how many of the fresh blocks hold the pattern is counted, not assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

SIZES = (512, 64 * 2**10, 2**20, 16 * 2**20, 128 * 2**20)
"""Bytes of a block: both of the allocator's pools, and more than one size of each."""

COPIES = 16
"""Blocks of each size that are held at once."""

SHARE = 0.5
"""Of the free memory that is filled at most; the model's own cache needs the rest."""

Empty = Callable[..., torch.Tensor]


def prefill(
    byte: int, device: torch.device, free_bytes: int, empty: Empty = torch.empty
) -> dict[str, int]:
    """Counters of fresh blocks after filling: how many were looked at, how many hold the pattern.

    Args:
        byte: the planned one; memory is filled with its complement, as on the host.
        device: whose memory.
        free_bytes: of it.
        empty: makes a tensor without writing into it.
    """
    pattern = byte ^ 0xFF
    with _nothing_filled_by_torch():
        held, left = [], int(free_bytes * SHARE)
        for size in sorted(SIZES * COPIES, reverse=True):
            if size <= left:
                held.append(empty(size, dtype=torch.uint8, device=device).fill_(pattern))
                left -= size
        held.clear()
        fresh = [empty(size, dtype=torch.uint8, device=device) for size in SIZES]
        filled = sum(bool((block == pattern).all().item()) for block in fresh)
    return {"device_blocks": len(fresh), "device_filled": filled}


@contextmanager
def _nothing_filled_by_torch() -> Iterator[None]:
    """torch fills empty tensors itself where it is asked to be deterministic."""
    memory: Any = torch.utils.deterministic
    before = memory.fill_uninitialized_memory
    memory.fill_uninitialized_memory = False
    try:
        yield
    finally:
        memory.fill_uninitialized_memory = before
