"""Faults in what is stored: a bit of a weight, a buffer or a cache, before the run or during it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from fleet.replay.trace.digesting import is_cache
from tests.cases.tracing.harness import Fault, at_step

BIT = 1 << 6
"""The highest bit of a bfloat16's mantissa."""


def flip(tensor: torch.Tensor) -> None:
    """Turn one bit of each of the first eight numbers."""
    flat = tensor.detach().view(torch.int16).view(-1)
    flat[:8] ^= BIT


def flipped_weight(name: str) -> Fault:
    """A weight with turned bits once loading has ended."""
    return lambda model: flip(model.get_parameter(name))


def flipped_weight_at(name: str, step: int) -> Fault:
    """A weight whose bits turn before a step."""
    return lambda model: at_step(model, step, lambda _: flip(model.get_parameter(name)))


def permuted_weight(name: str) -> Fault:
    """A weight with two columns exchanged, as by a repack at load."""

    def fault(model: nn.Module) -> None:
        weight = model.get_parameter(name)
        weight[:, [0, 1]] = weight[:, [1, 0]].clone()

    return fault


def changed_buffer(name: str) -> Fault:
    """A buffer that is another once loading has ended."""

    def fault(model: nn.Module) -> None:
        model.get_buffer(name)[3] *= 1.5

    return fault


def changed_buffer_at(name: str, step: int) -> Fault:
    """A buffer that changes before a step."""
    return lambda model: at_step(model, step, lambda _: changed_buffer(name)(model))


def flipped_cache_at(layer: int, step: int) -> Fault:
    """Bits of a layer's keys that turn before a step."""

    def act(kwargs: Mapping[str, Any]) -> None:
        cache = next(value for value in kwargs.values() if is_cache(value))
        flip(cache.layers[layer].keys[0, 0, 2])

    return lambda model: at_step(model, step, act)
