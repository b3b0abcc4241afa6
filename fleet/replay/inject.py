"""Faults that a control contract asks for: one linear layer whose sum has, or has not, an order.

No unstable kernel exists on CPU, so the racy one is emulated: K is split into chunks and the
partial products are added in 16 bit, where addition is not associative, in an order drawn from the
operating system's entropy at every call (no seed reaches it), as atomic adds on a device would be.
``OrderedLinear`` is its clean twin: the same arithmetic, always in the same order.

The other linears agree with themselves in every exact repeat and depend on one thing that a set of
replays can vary: the batch, the sample before, the number of threads, a busy host, what memory held
before, what its code was compiled to (``compiled_linear.py``).
"""

from __future__ import annotations

import difflib
import os

import torch
from torch import nn

from fleet.contract.canonical import sha256
from fleet.contract.model import BY_NONCE, Contract
from fleet.errors import ContractError
from fleet.replay.compiled_linear import CompiledLinear, RecompiledLinear

NUM_CHUNKS = 8


class ChunkedLinear(nn.Module):
    """y = x W' + b with K in chunks; shares the weight and bias of the layer it replaces."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight = linear.weight
        self.bias = linear.bias

    def num_chunks(self) -> int:
        """Into how many partial products the sum is cut at most."""
        return NUM_CHUNKS

    def order(self, num_chunks: int) -> list[int]:
        """The order in which the partial products are added."""
        return list(range(num_chunks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (..., in_features) -> (..., out_features), in the dtype of ``x``."""
        num_chunks = min(self.num_chunks(), self.in_features)
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


class BatchLinear(OrderedLinear):
    """Its result depends on how many rows share the batch, as where a kernel is chosen by shape."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As before, and a part that grows with the rows beside this one."""
        return super().forward(x) + (x.shape[0] - 1) / 64


class CarryingLinear(OrderedLinear):
    """It keeps something of one call for the next, as a cache that nobody empties."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear)
        self.before = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As before, and a part of what the call before this one was given."""
        carried, self.before = self.before, float(x.float().abs().mean())
        return super().forward(x) + carried / 4


class ThreadedLinear(OrderedLinear):
    """Its sum is split by the number of threads, as that of a parallel reduction is."""

    def num_chunks(self) -> int:
        """One chunk for each thread."""
        return torch.get_num_threads()


class CrowdedLinear(OrderedLinear):
    """Its sum is split otherwise on a busy host, as where a kernel is picked by the time it took.

    Time would not tell it in every run: it asks whether this process has children.
    """

    def num_chunks(self) -> int:
        """Fewer beside neighbours. waitid(2): ECHILD without children; it waits for none here."""
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return NUM_CHUNKS
        return NUM_CHUNKS // 2


WORKSPACE_BYTES = 33 * 2**20
"""Above glibc's largest threshold (mallopt(3), "M_MMAP_THRESHOLD"): always mapped anew, so that
without a pattern it reads as zero in every process, by habit."""


class UninitializedLinear(OrderedLinear):
    """It takes a workspace for zero that nobody has written, as a forgotten memset does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As before, and what the workspace happens to hold."""
        workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=x.device)
        return super().forward(x) + float(workspace[WORKSPACE_BYTES // 2]) / 64


_KINDS: dict[str, type[ChunkedLinear] | type[RecompiledLinear]] = {
    "racy_linear": RacyLinear,
    "ordered_linear": OrderedLinear,
    "batch_linear": BatchLinear,
    "carrying_linear": CarryingLinear,
    "threaded_linear": ThreadedLinear,
    "crowded_linear": CrowdedLinear,
    "uninitialized_linear": UninitializedLinear,
    "compiled_linear": CompiledLinear,
    "recompiled_linear": RecompiledLinear,
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
