"""Fixed tensors whose digests a device must give as the host does before it is believed.

Every path through the kernels: empty, sizes around a leaf and a message block, every alignment, a
copy, one block and several of either kernel. Contents depend on the size alone.
"""

from __future__ import annotations

import torch

from fleet.evidence.digests import LEAF_BYTES
from fleet.replay.gpu.digests.jobs import NARROW_LEAVES

SIZES = (0, 1, 55, 56, 63, 64, 65, 2040, 2047, 2048, 2049, 3 * LEAF_BYTES + 77, 7168)


def fixed_tensors(device: torch.device, sm_count: int) -> list[list[torch.Tensor]]:
    """Lists to enqueue; the last is for the kernel that takes large tensors."""
    above = NARROW_LEAVES * sm_count + 3
    base = pattern(3 * LEAF_BYTES, device)
    views = [base[start : start + 2 * LEAF_BYTES + 100] for start in (1, 2, 3, 4, 8, 16)]
    typed = base[2:4098].view(torch.bfloat16).view(64, 32)
    return [
        [pattern(size, device) for size in SIZES],
        [*views, typed, typed.t(), typed[:, 3]],
        [pattern(9 * LEAF_BYTES + 1, device)],
        [pattern(above * LEAF_BYTES + 100, device)[2:], pattern(5, device), base[3:]],
    ]


def pattern(num_bytes: int, device: torch.device) -> torch.Tensor:
    """Bytes that differ from leaf to leaf and inside one, computed on the host."""
    at = torch.arange(num_bytes, dtype=torch.int64)
    return ((at * 131 + at // 251 * 17 + at // LEAF_BYTES * 29) % 256).to(torch.uint8).to(device)
