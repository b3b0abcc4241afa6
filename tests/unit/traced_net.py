"""A small net to trace."""

from __future__ import annotations

import torch
from torch import nn


class Net(nn.Module):
    """Two modules, one of them without arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4).bfloat16()
        self.silent = nn.Identity()
        self.constant = Constant()
        self.register_buffer("scale", torch.full((4,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.silent.forward(self.linear(x) * self.scale) + self.constant()


class Constant(nn.Module):
    """Nothing goes in."""

    def forward(self) -> torch.Tensor:
        return torch.ones(4)
