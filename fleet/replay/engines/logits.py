"""Rows of raw logits -> one ``Step`` each: digest, top-8, margin, non-finite count.

Knows neither the model nor the sampler. Nothing here is approximate: values are compared as the
integers their bits stand for, so an exact tie is an exact tie, and the order of the top-8 does not
depend on how a library breaks ties. So rows are observed where they lie: a device is asked for a
few numbers a row once in many steps, and waits for nothing at a step.
"""

from __future__ import annotations

import torch

from fleet.evidence.digests import tensor_digests
from fleet.replay.engines.protocol import Step
from fleet.replay.tensor_digests import digest_each, share_of

TOP = 8
HELD_BYTES = 16 << 20
"""Logits held back before they are observed."""

# Per dtype: the signed integer type of its width, its sign-free mask, the bits of infinity.
_LAYOUTS = {
    torch.bfloat16: (torch.int16, 0x7FFF, 0x7F80),
    torch.float16: (torch.int16, 0x7FFF, 0x7C00),
    torch.float32: (torch.int32, 0x7FFFFFFF, 0x7F800000),
}


class StepLog:
    """Steps of one ``generate``, observed many at a time: one small operation costs as much as one
    over a hundred rows. Rows are copied when they are made, on the device that made them; what is
    held back stays small.
    """

    def __init__(self) -> None:
        self._held: list[torch.Tensor] = []
        self._held_bytes = 0
        self._steps: list[list[Step]] = []

    def add(self, last_position: torch.Tensor) -> None:
        """Take in one step: raw logits (batch, vocabulary) in the model's own dtype."""
        copied = last_position.detach().clone(memory_format=torch.contiguous_format)
        self._held.append(copied)
        self._held_bytes += copied.nbytes
        if self._held_bytes >= HELD_BYTES:
            self._observe()

    def row(self, number: int, length: int) -> tuple[Step, ...]:
        """The first ``length`` steps of one row of the batch."""
        self._observe()
        return tuple(step[number] for step in self._steps[:length])

    def _observe(self) -> None:
        if not self._held:
            return
        batch = len(self._held[0])
        steps = steps_of(torch.cat(self._held))
        self._steps += [steps[i : i + batch] for i in range(0, len(steps), batch)]
        self._held, self._held_bytes = [], 0


def steps_of(last_position: torch.Tensor) -> list[Step]:
    """One ``Step`` per row; the same on a device as on the host.

    Args:
        last_position: raw logits (rows, vocabulary) in the model's own dtype.
    """
    rows = last_position.detach().contiguous()
    integer, magnitude, infinity = _LAYOUTS[rows.dtype]
    raw = rows.view(integer)
    values = rows.to(torch.float32)  # exact for all three dtypes
    # More places than needed: ties over the last one are then mostly among what was found.
    found = values.topk(min(2 * TOP, values.shape[1]))
    best = zip(
        found.values.tolist(),
        found.indices.tolist(),
        raw.gather(1, found.indices).tolist(),
        strict=True,
    )
    # All exponent bits set: infinity or NaN.
    nonfinite = torch.count_nonzero((raw & infinity) == infinity, dim=1).tolist()
    steps = []
    for number, (digested, top) in enumerate(zip(_row_digests(rows), best, strict=True)):
        places = _in_order(*top)
        if places is None:
            places = _places(values[number].cpu(), raw[number].cpu())
        bits = [b & (2 * magnitude + 1) for _, _, b in places]
        keys = [_ordered(b, magnitude, infinity) for b in bits[:2]]
        several = len(places) > 1
        steps.append(
            Step(
                logits_sha256=digested,
                top_ids=tuple(i for _, i, _ in places),
                top_bits=tuple(bits),
                margin_logits=places[0][0] - places[1][0] if several else 0.0,
                margin_ulps=keys[0] - keys[1] if several else 0,
                nonfinite=nonfinite[number],
            )
        )
    return steps


def step_of(row: torch.Tensor) -> Step:
    """The step of one row (vocabulary,)."""
    return steps_of(row[None])[0]


def _row_digests(rows: torch.Tensor) -> list[bytes]:
    """The tensor digest of every row of a contiguous matrix."""
    if share_of(rows.device) is not None:
        return digest_each(rows.unbind())
    name, flat = str(rows.dtype).removeprefix("torch."), rows.cpu().reshape(-1)
    return tensor_digests(name, rows.shape, flat.view(torch.uint8).numpy().data)


def _in_order(
    values: list[float], ids: list[int], bits: list[int]
) -> list[tuple[float, int, int]] | None:
    """The first :data:`TOP` of what ``topk`` found as (value, id, bits), ties by lower id.

    None when what it found does not decide it: the last place may be tied with one beyond all of
    them, or there is a NaN, which is neither smaller nor larger.
    """
    if len(ids) > TOP and not values[TOP - 1] > values[-1]:
        return None
    if any(value != value for value in values):
        return None
    return sorted(zip(values, ids, bits, strict=True), key=lambda p: (-p[0], p[1]))[:TOP]


def _places(values: torch.Tensor, raw: torch.Tensor) -> list[tuple[float, int, int]]:
    """(value, id, bits) of one row's largest, when what ``topk`` found does not decide it."""
    return [(values[i].item(), i, int(raw[i].item())) for i in _top_ids(values)]


def _top_ids(values: torch.Tensor) -> list[int]:
    """Ids of the largest values, largest first, ties by lower id, NaN above everything.

    ``topk`` finds the largest values but promises nothing about which of several equal ones it
    returns, so every id that reaches the last value is looked for and sorted by (value descending,
    id ascending).
    """
    num_top = min(TOP, values.numel())
    last = values.topk(num_top).values[-1]
    # A NaN as last value is reached by nothing but other NaNs.
    candidates = ((values >= last) | values.isnan()).nonzero().flatten()
    order = values[candidates].argsort(descending=True, stable=True)
    return [int(i) for i in candidates[order][:num_top].tolist()]


def _ordered(bits: int, magnitude: int, infinity: int) -> int:
    """An integer that grows with the value, one per unit in the last place; -0.0 equals 0.0."""
    size = bits & magnitude
    if size > infinity:
        return infinity + 1  # any NaN: one above infinity
    return size if bits == size else -size
