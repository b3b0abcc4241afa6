"""Steps observed on a device against the host's; run in a process of its own.

python -m tests.gpu.logits_checks
"""

from __future__ import annotations

import math
import time

import torch

from fleet.replay.engines.logits import StepLog, steps_of
from fleet.replay.engines.protocol import Step
from fleet.replay.tensor_digests import where

BITS = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}


def rows_of(kind: torch.dtype, vocabulary: int) -> torch.Tensor:
    """Likely rows, rows with many ties, and rows of bits: NaN, infinities, subnormals, -0.0."""
    draw = torch.Generator().manual_seed(vocabulary)
    likely = (torch.randn(30, vocabulary, generator=draw) * 4).to(kind)
    tied = torch.randint(-3, 4, (30, vocabulary), generator=draw).to(kind)
    zeros = torch.where(torch.randn(10, vocabulary, generator=draw) > 0, 0.0, -0.0).to(kind)
    limit = 1 << (8 * kind.itemsize - 1)
    bits = torch.randint(-limit, limit, (30, vocabulary), generator=draw)
    tiny = torch.randint(0, 40, (10, vocabulary), generator=draw)
    odd = [each.to(BITS[kind]).view(kind) for each in (bits, tiny)]
    lone = torch.zeros(3, vocabulary, dtype=kind)
    lone[0, vocabulary // 2], lone[1, 1], lone[2, 0] = math.nan, math.inf, -math.inf
    return torch.cat([likely, tied, zeros, *odd, lone])


def same(one: list[Step], other: list[Step]) -> bool:
    """Their text: NaN equals NaN, and -0.0 does not equal 0.0."""
    return [repr(step) for step in one] == [repr(step) for step in other]


def main() -> None:
    """Every dtype, small and real vocabularies, one by one and held back."""
    for kind in BITS:
        for vocabulary in (5, 16, 17, 1000, 152064):
            rows = rows_of(kind, vocabulary)
            wanted = steps_of(rows)
            assert same(steps_of(rows.cuda()), wanted), (kind, vocabulary)
            log = StepLog()
            for row in rows:
                reused = row.cuda()[None]
                log.add(reused)
                reused.zero_()
            assert same(list(log.row(0, len(rows))), wanted), (kind, vocabulary)
    assert where() == "device", where()


def step_us(on_host: bool, num_steps: int = 220) -> float:
    """One row of a real vocabulary a step."""
    rows = (torch.randn(1, 152064, device="cuda") * 4).bfloat16()
    log = StepLog()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(num_steps):
        log.add(rows.cpu() if on_host else rows)
    log.row(0, num_steps)
    return (time.perf_counter() - begun) / num_steps * 1e6


if __name__ == "__main__":
    torch.use_deterministic_algorithms(True)
    main()
    for on_host in (False, True, True, False):
        print(f"{'host' if on_host else 'device'}: {step_us(on_host):.0f} us a step")
