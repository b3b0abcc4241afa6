"""The racy control gives several outputs from one frozen input; its ordered twin gives one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fleet.replay.host_digest import host_digest
from fleet.replay.inject import OrderedLinear, RacyLinear

pytestmark = pytest.mark.torch

DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def frozen(dtype: torch.dtype) -> tuple[nn.Linear, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    linear = nn.Linear(64, 32, dtype=dtype)
    with torch.no_grad():
        linear.weight.copy_(torch.randn(32, 64, generator=generator))
        linear.bias.zero_()
    return linear, torch.randn(1, 4, 64, generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_fifty_racy_calls_on_one_input_give_several_outputs(dtype: torch.dtype) -> None:
    linear, x = frozen(dtype)
    racy = RacyLinear(linear)
    assert len({host_digest(racy(x)) for _ in range(50)}) >= 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_fifty_ordered_calls_on_one_input_give_one_output(dtype: torch.dtype) -> None:
    linear, x = frozen(dtype)
    ordered = OrderedLinear(linear)
    outputs = {host_digest(ordered(x)) for _ in range(50)}
    assert len(outputs) == 1
    assert ordered(x).dtype == dtype


def test_no_seed_reaches_the_racy_order() -> None:
    racy = RacyLinear(frozen(torch.bfloat16)[0])
    orders = set()
    for _ in range(20):
        torch.manual_seed(0)
        orders.add(tuple(racy.order(8)))
    assert len(orders) > 1
    assert all(sorted(order) == list(range(8)) for order in orders)
