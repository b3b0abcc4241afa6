"""A frozen call comes back with its layout and aliases, and leaves everything as it found it."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from fleet.evidence.trace import Call
from fleet.replay.task import Target
from fleet.replay.trace.frozen import FrozenCall
from fleet.replay.trace.repeat import Repeater
from fleet.replay.trace.tracer import Tracer


class Keeps(nn.Module):
    """Keeps everything that a module can keep, and changes it when called."""

    def __init__(self) -> None:
        super().__init__()
        base = torch.arange(6.0)
        self.register_buffer("base", base)
        self.register_buffer("view", base[2:4])
        self.register_buffer("absent", None)
        self.plain = torch.zeros(2)
        self.calls, self.history, self.table = 0, [torch.zeros(1)], {"sum": 0.0}
        self.own = torch.Generator().manual_seed(3)
        self.dice, self.shapes = random.Random(3), numpy.random.default_rng(3)
        self.opaque = object()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.base += 1
        self.history.append(x.clone())
        self.table["sum"] += float(x.sum())
        self.late = x * 2
        self.absent = x.clone()
        drawn = torch.rand(1, generator=self.own) + torch.rand(1) + self.dice.random()
        drawn = drawn + random.random() + numpy.random.rand() + self.shapes.random()
        x.add_(1)
        return x + self.view.sum() + drawn + self.calls + len(self.history)


def kept(module: Keeps) -> dict[str, Any]:
    found = {n: v for n, v in vars(module).items() if n in ("calls", "history", "table", "plain")}
    return copy.deepcopy({**found, **dict(module._buffers), "late": hasattr(module, "late")})


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return repr(a) == repr(b)


def test_a_thawed_call_gives_one_output_however_much_its_module_keeps() -> None:
    module, x = Keeps(), torch.ones(2)
    frozen = FrozenCall(module, (x,), {})
    outputs = []
    for _ in range(4):
        with frozen.thawed() as (args, kwargs):
            outputs.append(module(*args, **kwargs))
    assert all(torch.equal(outputs[0], other) for other in outputs)
    assert torch.equal(module(x), outputs[0]), "the call itself gives what its repeats gave"


def test_thawing_leaves_module_and_generators_as_they_were() -> None:
    module = Keeps()
    frozen = FrozenCall(module, (torch.ones(2),), {})
    module(torch.ones(2))
    before, opaque, view = kept(module), module.opaque, module.view
    states = (torch.get_rng_state(), random.getstate(), module.own.get_state())
    with frozen.thawed() as (args, _):
        assert not hasattr(module, "late") and module.calls == 0 and module.absent is None
        module(*args)
    assert same(kept(module), before) and module.opaque is opaque and module.view is view
    assert torch.equal(states[0], torch.get_rng_state()) and states[1] == random.getstate()
    assert torch.equal(states[2], module.own.get_state())


def test_thawing_puts_everything_back_after_an_error() -> None:
    module = Keeps()
    frozen, before = FrozenCall(module, (torch.ones(2),), {}), kept(module)
    with pytest.raises(ZeroDivisionError), frozen.thawed() as (args, _):
        module(*args)
        raise ZeroDivisionError
    assert same(kept(module), before)


def test_what_shares_memory_still_does() -> None:
    module, base = Keeps(), torch.arange(12.0)
    frozen = FrozenCall(module, (base, base[3:6]), {"again": base, "module": module.base[1:]})
    with frozen.thawed() as (args, kwargs):
        args[0][4] = 99
        assert args[1][1] == 99 and kwargs["again"] is args[0]
        module.base[3] = 77
        assert module.view[1] == 77 and kwargs["module"][2] == 77
        assert args[0].data_ptr() != base.data_ptr()
    assert base[4] == 4 and module.base[3] == 3


STRIDED = {
    "transposed": torch.arange(12.0).view(3, 4).t(),
    "every other": torch.arange(12.0)[1::2],
    "expanded": torch.arange(3.0).expand(4, 3),
    "odd stride": torch.arange(12.0).as_strided((1, 6), (97, 1)),
    "offset": torch.arange(12.0)[5:],
}


@pytest.mark.parametrize("name", STRIDED)
def test_strides_and_offsets_stay(name: str) -> None:
    tensor = STRIDED[name]
    with FrozenCall(nn.Identity(), (tensor,), {}).thawed() as ((copied,), _):
        assert (copied.stride(), copied.storage_offset()) == (
            tensor.stride(),
            tensor.storage_offset(),
        )
        assert torch.equal(copied, tensor)


def repeated(module: nn.Module, *args: Any) -> dict[str, Any]:
    """The result of repeating the module, which is ``inner`` of a model."""
    model = nn.Sequential()
    model.add_module("inner", module)
    calls: list[Call] = []
    tracer = Tracer(model, (), calls.append)
    repeater = Repeater(tracer, [Target("a", 0, 0, "inner", 0)], 20)
    tracer.start_batch("a", 0, ["s"])
    tracer.attach()
    repeater.attach()
    model(*args)
    (result,) = repeater.results
    return result


def test_a_module_that_counts_keeps_and_draws_is_no_race() -> None:
    """Were its state not restored, every repeat would give another output."""
    result = repeated(Keeps(), torch.ones(2))
    assert (result["unique"], result["repeats"], result["trouble"]) == (1, 20, "")


def test_what_cannot_be_copied_is_said_and_not_counted() -> None:
    class Takes(nn.Module):
        def forward(self, pair: Any) -> Any:
            return pair[0] * 2

    result = repeated(Takes(), (torch.ones(2), (i for i in range(3))))
    assert (result["unique"], result["repeats"]) == (0, 0)
    assert "cannot freeze the call" in result["trouble"]


def test_a_target_with_hooks_of_its_own_is_not_repeated() -> None:
    module = nn.Linear(2, 2)
    module.register_forward_hook(lambda *_: None)
    result = repeated(module, torch.ones(1, 2))
    assert result["repeats"] == 0 and "forward hooks" in result["trouble"]


def test_weights_that_change_while_repeating_are_trouble() -> None:
    class Learns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2), requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.weight += 1
            return x + self.weight

    assert "weights changed" in repeated(Learns(), torch.ones(2))["trouble"]
