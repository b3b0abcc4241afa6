"""One row of raw logits -> one ``Step``: digest, top-8, margin, non-finite count.

Knows neither the model nor the sampler. Nothing here is approximate: values are compared as the
integers their bits stand for, so an exact tie is an exact tie, and the order of the top-8 does not
depend on how a library breaks ties.
"""

from __future__ import annotations

import torch

from fleet.evidence.digests import tensor_digest
from fleet.replay.engines.protocol import Step

TOP = 8

# Per dtype: the signed integer type of its width, its sign-free mask, the bits of infinity.
_LAYOUTS = {
    torch.bfloat16: (torch.int16, 0x7FFF, 0x7F80),
    torch.float16: (torch.int16, 0x7FFF, 0x7C00),
    torch.float32: (torch.int32, 0x7FFFFFFF, 0x7F800000),
}


def digest(tensor: torch.Tensor) -> bytes:
    """The tensor digest of any tensor of any device; 32 bytes.

    ``contiguous()`` is not enough: a size-1 dimension may keep an odd stride, which
    ``view(uint8)`` refuses, so the copy is made with ``contiguous_format``.
    """
    plain = tensor.detach()
    if plain.device.type != "cpu":
        plain = plain.cpu()
    flat = plain.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)
    name = str(tensor.dtype).removeprefix("torch.")
    return tensor_digest(name, tensor.shape, memoryview(flat.numpy().data))


def steps_of(last_position: torch.Tensor) -> list[Step]:
    """One ``Step`` per row.

    Args:
        last_position: raw logits (batch, vocabulary) in the model's own dtype.
    """
    rows = last_position.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
    return [step_of(row) for row in rows]


def step_of(row: torch.Tensor) -> Step:
    """The step of one contiguous CPU row (vocabulary,)."""
    integer, magnitude, infinity = _LAYOUTS[row.dtype]
    values = row.to(torch.float32)  # exact for all three dtypes
    ids = _top_ids(values)
    raw = row.view(integer)
    bits = [int(b) & (2 * magnitude + 1) for b in raw[ids].tolist()]
    keys = [_ordered(b, magnitude, infinity) for b in bits[:2]]
    tops = values[ids[:2]].tolist()
    several = len(ids) > 1
    return Step(
        logits_sha256=digest(row),
        top_ids=tuple(ids),
        top_bits=tuple(bits),
        margin_logits=tops[0] - tops[1] if several else 0.0,
        margin_ulps=keys[0] - keys[1] if several else 0,
        # All exponent bits set: infinity or NaN.
        nonfinite=int(torch.count_nonzero((raw & infinity) == infinity).item()),
    )


def _top_ids(values: torch.Tensor) -> list[int]:
    """Ids of the largest values, largest first, ties by lower id, NaN above everything.

    ``topk`` finds the largest values but promises nothing about which of several equal ones it
    returns. One place more than needed shows whether the last place is tied; only then is every id
    that reaches its value looked for. What is left is sorted by (value descending, id ascending).
    """
    num_top = min(TOP, values.numel())
    found = values.topk(min(num_top + 1, values.numel()))
    last, beyond = found.values[num_top - 1], found.values[-1]
    if num_top == values.numel() or beyond < last:
        candidates = found.indices[:num_top].sort().values
    else:  # tied over the border, or NaN, which is neither smaller nor larger
        candidates = ((values >= last) | values.isnan()).nonzero().flatten()
    order = values[candidates].argsort(descending=True, stable=True)
    return [int(i) for i in candidates[order][:num_top].tolist()]


def _ordered(bits: int, magnitude: int, infinity: int) -> int:
    """An integer that grows with the value, one per unit in the last place; -0.0 equals 0.0."""
    size = bits & magnitude
    if size > infinity:
        return infinity + 1  # any NaN: one above infinity
    return size if bits == size else -size
