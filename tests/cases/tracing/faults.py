"""Faults in arithmetic: racy modules, racy code between modules, and outputs changed on purpose.

A race is emulated by adding bfloat16 numbers in an order drawn from the operating system; two
orders are alike once in 20000 times. Where one call alone must differ, noise is used instead.
"""

from __future__ import annotations

import inspect
import os
import types
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from fleet.replay.inject import RacyLinear
from tests.cases.tracing.harness import Clock, Fault, put

Change = Callable[[torch.Tensor], torch.Tensor]

WEIGHTS = (0.3, 0.21, 0.17, 0.11, 0.09, 0.07, 0.03, 0.02)


def racy_sum(x: torch.Tensor) -> torch.Tensor:
    """About ``x``: its eight shares added up in an order of chance."""
    draws = os.urandom(8 * len(WEIGHTS))
    order = sorted(range(len(WEIGHTS)), key=lambda i: draws[8 * i : 8 * i + 8])
    total = x * WEIGHTS[order[0]]
    for i in order[1:]:
        total = total + x * WEIGHTS[i]
    return total


def noise(x: torch.Tensor) -> torch.Tensor:
    """Every number with a high bit of its mantissa drawn by chance: no two calls are alike, to one
    in 2 to the number of elements."""
    whole, bit = (torch.int16, 1 << 4) if x.element_size() == 2 else (torch.int32, 1 << 20)
    drawn = torch.frombuffer(bytearray(os.urandom(x.numel())), dtype=torch.uint8).view(x.shape)
    return (x.contiguous().view(whole) ^ (drawn.to(whole) & 1) * bit).view(x.dtype)


def same(x: torch.Tensor) -> torch.Tensor:
    """No change."""
    return x


def racy_linear(path: str) -> Fault:
    """A leaf whose sum has no order."""
    return lambda model: put(model, path, RacyLinear(model.get_submodule(path)))


def changed(path: str, change: Callable[[Any], Any]) -> Fault:
    """A module whose output is changed, as if by its own code."""

    def fault(model: nn.Module) -> None:
        module = model.get_submodule(path)
        plain = module.forward
        module.forward = lambda *args, **kwargs: change(plain(*args, **kwargs))

    return fault


def changed_at(path: str, step: int, change: Change) -> Fault:
    """A module whose output is changed in one step alone."""

    def fault(model: nn.Module) -> None:
        clock = Clock(model)
        changed(path, lambda x: change(x) if clock.step == step else x)(model)

    return fault


def changed_sometimes(path: str, one_in: int, change: Change) -> Fault:
    """A module whose output is changed once in so many calls, on average."""

    def perhaps(x: torch.Tensor) -> torch.Tensor:
        hit = int.from_bytes(os.urandom(8)) % one_in == 0
        return change(x) if hit else x

    return changed(path, perhaps)


def rewritten(path: str, forward: Callable[..., Any]) -> Fault:
    """A module whose code is another; ``forward`` takes it as its first argument."""

    def fault(model: nn.Module) -> None:
        module = model.get_submodule(path)
        module.forward = types.MethodType(forward, module)

    return fault


def with_globals(path: str, **names: Any) -> Fault:
    """A module whose code sees other functions under these global names."""

    def fault(model: nn.Module) -> None:
        module = model.get_submodule(path)
        plain = inspect.unwrap(type(module).forward)
        code = types.FunctionType(
            plain.__code__,
            {**plain.__globals__, **names},
            plain.__name__,
            plain.__defaults__,
            plain.__closure__,
        )
        code.__kwdefaults__ = plain.__kwdefaults__
        module.forward = types.MethodType(code, module)

    return fault


class Attention:
    """Looks like transformers' table of attention functions; changes what they give."""

    def __init__(self, change: Change) -> None:
        self._change = change

    def get_interface(self, name: str, default: Any) -> Callable[..., Any]:
        """The function of that name, changed."""
        plain = ALL_ATTENTION_FUNCTIONS.get_interface(name, default)

        def attend(*args: Any, **kwargs: Any) -> Any:
            output, weights = plain(*args, **kwargs)
            return self._change(output), weights

        return attend


def racy_attention(path: str) -> Fault:
    """A race in the attention function, which is no module."""
    return with_globals(path, ALL_ATTENTION_FUNCTIONS=Attention(racy_sum))


def racy_rotary(path: str) -> Fault:
    """A race where rotary embeddings are applied, which is no module either."""

    def fault(model: nn.Module) -> None:
        forward = type(model.get_submodule(path)).forward
        apply = inspect.unwrap(forward).__globals__["apply_rotary_pos_emb"]

        def racy(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
            return tuple(racy_sum(x) for x in apply(*args, **kwargs))

        with_globals(path, apply_rotary_pos_emb=racy)(model)

    return fault


def decoder_layer(
    first: Change = same,
    second: Change = same,
    normed: Callable[[Any, torch.Tensor], torch.Tensor] | None = None,
) -> Callable[..., Any]:
    """The code of a decoder layer of these families.

    Args:
        first: changes the sum after attention.
        second: changes the sum after the MLP.
        normed: how the layer, its first argument, calls its second norm.
    """

    def forward(self: Any, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        ready = self.input_layernorm(hidden_states)
        attended, _ = self.self_attn(*args, hidden_states=ready, **kwargs)
        hidden_states = first(hidden_states + attended)
        norm = self.post_attention_layernorm if normed is None else partial(normed, self)
        return second(hidden_states + self.mlp(norm(hidden_states)))

    return forward


def faults(parts: Sequence[Fault]) -> Fault:
    """Several at once."""

    def fault(model: nn.Module) -> None:
        for part in parts:
            part(model)

    return fault
