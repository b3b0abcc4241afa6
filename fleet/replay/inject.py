"""Faults that a control contract asks for: one linear layer whose sum has, or has not, an order.

No unstable kernel exists on CPU, so the racy one is emulated: K is split into chunks and the
partial products are added in 16 bit, where addition is not associative, in an order drawn from the
operating system's entropy at every call (no seed reaches it), as atomic adds on a device would be.
``OrderedLinear`` is its clean twin: the same arithmetic, always in the same order.
"""

from __future__ import annotations

import difflib
import os

import torch
from torch import nn

from fleet.contract.canonical import sha256
from fleet.contract.model import BY_NONCE, Contract
from fleet.errors import ContractError

NUM_CHUNKS = 8


class ChunkedLinear(nn.Module):
    """y = x W' + b with K in chunks; shares the weight and bias of the layer it replaces."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight = linear.weight
        self.bias = linear.bias

    def order(self, num_chunks: int) -> list[int]:
        """The order in which the partial products are added."""
        return list(range(num_chunks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (..., in_features) -> (..., out_features), in the dtype of ``x``."""
        num_chunks = min(NUM_CHUNKS, self.in_features)
        parts = zip(x.chunk(num_chunks, -1), self.weight.chunk(num_chunks, -1), strict=True)
        short = torch.bfloat16 if x.dtype == torch.float32 else x.dtype
        products = [nn.functional.linear(a, w).to(short) for a, w in parts]
        order = self.order(len(products))
        total = products[order[0]]
        for index in order[1:]:
            total = total + products[index]
        total = total.to(x.dtype)
        return total if self.bias is None else total + self.bias


class OrderedLinear(ChunkedLinear):
    """The clean twin: one order for ever."""


class RacyLinear(ChunkedLinear):
    """The fault: another order at every call."""

    def order(self, num_chunks: int) -> list[int]:
        """A permutation drawn from the operating system's entropy."""
        draws = os.urandom(8 * num_chunks)
        return sorted(range(num_chunks), key=lambda i: draws[8 * i : 8 * i + 8])


_KINDS: dict[str, type[ChunkedLinear]] = {
    "racy_linear": RacyLinear,
    "ordered_linear": OrderedLinear,
}


def inject(model: nn.Module, contract: Contract, nonce: str) -> str | None:
    """Replace the linear that ``[control] inject`` names; nothing without a ``[control]``.

    Args:
        model: the loaded model.
        contract: ``kind:path`` names a linear, ``kind:@nonce`` leaves the choice to ``nonce``.
        nonce: one nonce, one place; the campaign's, so that its replays agree on it.

    Returns:
        The path of the replaced linear.

    Raises:
        ContractError: the path names no ``nn.Linear`` of this model.
    """
    if contract.control is None:
        return None
    kind, _, path = contract.control.inject.partition(":")
    linears = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    if path == BY_NONCE and linears:
        path = sorted(linears)[int.from_bytes(sha256(nonce.encode())) % len(linears)]
    if path not in linears:
        raise _unknown_path(path, list(linears))
    parent, _, leaf = path.rpartition(".")
    replacement = _KINDS[kind](linears[path]).train(linears[path].training)
    setattr(model.get_submodule(parent), leaf, replacement)
    return path


def _unknown_path(path: str, known: list[str]) -> ContractError:
    near = difflib.get_close_matches(path, known, n=3, cutoff=0.0) or ["none: no linear at all"]
    return ContractError(
        "[control]",
        "inject",
        "the path of a linear layer of this model",
        path,
        f"use one of the model's {len(known)} linear layers, for example: {', '.join(near)}",
    )
