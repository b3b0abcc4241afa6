"""Weights from a counter, the same bits on every CPU.

A seeded ``randn`` is not a weight file: its values differ with the CPU capability in force. Here
byte i of a tensor is byte i of SHA-256 in counter mode, and a byte maps to a weight without
rounding: an odd integer of at most 8 bits times a power of two is exact in bfloat16, float16 and
float32 alike.

Knows nothing of models: a label, a shape and an exponent in, a tensor out.
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

HEADER = b"fleet-demo-weights-1\n"


def stream(label: str, num_bytes: int) -> bytes:
    """The first ``num_bytes`` of SHA-256(header, label, block number as little-endian u64)."""
    prefix = hashlib.sha256(HEADER + label.encode("utf-8") + b"\n")
    blocks = []
    for number in range((num_bytes + 31) // 32):
        block = prefix.copy()
        block.update(number.to_bytes(8, "little"))
        blocks.append(block.digest())
    return b"".join(blocks)[:num_bytes]


def weights(label: str, shape: tuple[int, ...], exponent: int) -> torch.Tensor:
    """A bfloat16 tensor of uniform values (2 k - 255) / 256 * 2**exponent, k one byte.

    Args:
        label: names the stream; two labels give unrelated tensors.
        shape: sizes of the result.
        exponent: scale; the standard deviation is 0.577 * 2**exponent.
    """
    import torch

    odd = _draw(label, math.prod(shape)) * 2 - 255
    return (odd * 2.0 ** (exponent - 8)).to(torch.bfloat16).reshape(shape)


def gains(label: str, size: int) -> torch.Tensor:
    """A bfloat16 vector of norm weights between 0.5 and 1.5, in steps of 1/128.

    Not ones: a norm that was lost and initialised afresh must show.
    """
    import torch

    half = torch.floor(_draw(label, size) / 2)
    return ((half + 64) / 128).to(torch.bfloat16)


def _draw(label: str, size: int) -> torch.Tensor:
    """Integers 0 to 255 as float32."""
    import torch

    raw = torch.frombuffer(bytearray(stream(label, size)), dtype=torch.uint8)
    return raw.to(torch.float32)
