"""A call that can be repeated: its arguments, what its modules keep, and the random state, frozen.

One copy is made of everything together, so that strides, offsets and what shares memory with what
stay as they were, and a kernel that chooses by layout chooses as it did. Of a module's attributes,
tensors, plain values and collections of these are frozen; state in other objects, in closures and
in globals is not, and a call that leans on it may differ from its repeats.
"""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy
import torch
from torch import nn

from fleet.replay.trace.digesting import is_cache
from fleet.replay.trace.modules import FRAMEWORK

_PLAIN = (
    torch.Tensor, bool, int, float, complex, str, bytes, numpy.ndarray, numpy.random.Generator,
    numpy.random.RandomState, random.Random,
)  # fmt: skip


class RandomState:
    """Every generator that a module could draw from, as it is now.

    Args:
        more: generators beside the global ones.
    """

    def __init__(self, more: list[torch.Generator] | None = None) -> None:
        self._python = random.getstate()
        self._numpy = numpy.random.get_state()
        self._torch = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        self._more = [(generator, generator.get_state()) for generator in more or ()]

    def restore(self) -> None:
        """Put it back."""
        random.setstate(self._python)
        numpy.random.set_state(self._numpy)
        torch.set_rng_state(self._torch)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)
        for generator, state in self._more:
            generator.set_state(state)


class FrozenCall:
    """One call of ``module``, taken just before it ran.

    Raises:
        TypeError, RuntimeError: something among the arguments cannot be copied.
    """

    def __init__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._modules = list(module.modules())
        kept = [_Kept.of(each) for each in self._modules]
        state = [(one.buffers, one.state) for one in kept]
        self._copied = copy.deepcopy((args, dict(kwargs), state))
        self._rest = [one.rest for one in kept]
        self._generators = [
            value
            for one in kept
            for value in one.rest.values()
            if isinstance(value, torch.Generator)
        ]
        self._random = RandomState(self._generators)

    @contextmanager
    def thawed(self) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Fresh arguments and module state; what was there before comes back afterwards."""
        after = [_Kept.of(each) for each in self._modules]
        random_after = RandomState(self._generators)
        args, kwargs, state = copy.deepcopy(self._copied)
        for module, (buffers, own), rest in zip(self._modules, state, self._rest, strict=True):
            _Kept(buffers, own, rest).put(module)
        self._random.restore()
        try:
            yield args, kwargs
        finally:
            for module, one in zip(self._modules, after, strict=True):
                one.put(module)
            random_after.restore()


class _Kept:
    """What one module keeps: buffers, ``state`` that is copied, and the ``rest`` by reference."""

    def __init__(
        self, buffers: Mapping[str, Any], state: Mapping[str, Any], rest: Mapping[str, Any]
    ) -> None:
        self.buffers, self.state, self.rest = buffers, state, rest

    @classmethod
    def of(cls, module: nn.Module) -> _Kept:
        own = {n: v for n, v in vars(module).items() if n not in FRAMEWORK}
        state = {n: v for n, v in own.items() if _is_state(v)}
        rest = {n: v for n, v in own.items() if n not in state}
        return cls(dict(module._buffers), state, rest)

    def put(self, module: nn.Module) -> None:
        """Make it what the module keeps, and nothing else."""
        module._buffers.clear()
        module._buffers.update(self.buffers)
        for name in [n for n in vars(module) if n not in FRAMEWORK]:
            del module.__dict__[name]
        module.__dict__.update(self.rest)
        module.__dict__.update(self.state)


def _is_state(value: Any) -> bool:
    """May it be copied without changing what the module is?"""
    if value is None or isinstance(value, _PLAIN) or is_cache(value):
        return True
    if isinstance(value, Mapping):
        return isinstance(value, dict) and all(_is_state(item) for item in value.values())
    if isinstance(value, list | tuple | set | frozenset | deque):
        return all(_is_state(item) for item in value)
    return False
