"""A call that can be repeated: its arguments, what its modules own, and the random state, frozen.

A copy keeps strides, offsets and what shares memory with what, so that a kernel that chooses by
layout chooses as it did. Python attributes of modules are not frozen: a fault that counts its own
calls does not come back, and a clean repeat says so honestly.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy
import torch
from torch import nn

from fleet.replay.trace.modules import buffers, plain_tensors


class RandomState:
    """Every generator that a module could draw from, as it is now."""

    def __init__(self) -> None:
        self._python = random.getstate()
        self._numpy = numpy.random.get_state()
        self._torch = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []

    def restore(self) -> None:
        """Put it back."""
        random.setstate(self._python)
        numpy.random.set_state(self._numpy)
        torch.set_rng_state(self._torch)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)


class FrozenCall:
    """One call of ``module``, taken just before it ran.

    Raises:
        TypeError, RuntimeError: something among the arguments cannot be copied.
    """

    def __init__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._module = module
        self._arguments = copy.deepcopy((args, dict(kwargs)))
        self._owned = [(m, n, copy.deepcopy(t)) for m, n, t in _changeable(module)]
        self._random = RandomState()

    @contextmanager
    def thawed(self) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Fresh arguments and owned tensors; what was there before comes back afterwards."""
        after = [(m, n, t) for m, n, t in _changeable(self._module)]
        random_after = RandomState()
        for module, name, tensor in self._owned:
            _put(module, name, copy.deepcopy(tensor))
        self._random.restore()
        try:
            args, kwargs = copy.deepcopy(self._arguments)
            yield args, kwargs
        finally:
            for module, name, tensor in after:
                _put(module, name, tensor)
            random_after.restore()


def _changeable(module: nn.Module) -> Iterator[tuple[nn.Module, str, torch.Tensor]]:
    for each in module.modules():
        for name, tensor in (*buffers(each), *plain_tensors(each)):
            yield each, name, tensor


def _put(module: nn.Module, name: str, tensor: torch.Tensor) -> None:
    if name in module._buffers:
        module._buffers[name] = tensor
    else:
        module.__dict__[name] = tensor
