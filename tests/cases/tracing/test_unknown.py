"""Modules that are given what no digest covers: counted, and accused of nothing but a race."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from fleet.judge.tracing.localise import localise
from tests.cases.tracing.faults import noise, rewritten
from tests.cases.tracing.harness import Fault, Subject, at_step, put
from tests.cases.tracing.state_faults import flip

LAYER = "model.layers.0"
PATH = f"{LAYER}.added"

Call = Callable[[Any, torch.Tensor], torch.Tensor]


class Box:
    """Content that nobody looks into."""

    __slots__ = ("value",)

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value


class Added(nn.Module):
    """A module with this code."""

    def __init__(self, code: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self._code = code

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self._code(*args, **kwargs)


def added(code: Callable[..., torch.Tensor], call: Call) -> Fault:
    """A module beside the others of a layer; ``call`` is how the layer calls it."""

    def forward(self: Any, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        hidden_states = hidden_states + call(self, hidden_states)
        return type(self).forward(self, hidden_states, *args, **kwargs)

    def fault(model: nn.Module) -> None:
        put(model, PATH, Added(code))
        rewritten(LAYER, forward)(model)

    return fault


def test_a_module_with_nothing_going_in_is_unknown_and_never_accused(subject: Subject) -> None:
    """What it gives comes from elsewhere."""
    fault = added(lambda: noise(torch.ones(128)).bfloat16(), lambda layer, x: layer.added())
    found = subject.study(fault, fault).found
    assert found.differs and found.culprit is None and found.target is None
    assert found.counts["UNKNOWN"] > 0 and found.coverage[0]["unknown"] == found.counts["UNKNOWN"]
    assert any("nothing hashable went in: UNKNOWN" in words for words in found.not_localised)


def test_an_opaque_argument_alone_is_unknown_too(llama: Subject) -> None:
    fault = added(lambda box: noise(box.value), lambda layer, x: layer.added(Box(x)))
    found = llama.study(fault, fault).found
    assert found.culprit is None and found.counts["UNKNOWN"] > 0
    assert found.coverage[0]["partly_unhashed"] == found.counts["UNKNOWN"]


def test_a_number_alone_does_not_make_an_input_known(llama: Subject) -> None:
    """The module's tensor came past the tracer; its number is the same in both replays."""
    shared: list[torch.Tensor] = []

    def call(layer: Any, x: torch.Tensor) -> torch.Tensor:
        shared[:] = [noise(x)]
        return layer.added(scale=1)  # type: ignore[no-any-return]

    fault = added(lambda scale: shared[0] * scale, call)
    found = llama.study(fault, fault).found
    assert found.differs and found.culprit is None
    assert any("no tensor went in" in words for words in found.not_localised)


def test_an_opaque_argument_beside_a_tensor_hides_the_cause(llama: Subject) -> None:
    """The race is in the caller, in what the module is given in a box."""
    fault = added(lambda x, box: box.value, lambda layer, x: layer.added(x, Box(noise(x))))
    study = llama.study(fault, fault)
    assert study.found.differs and study.found.culprit is None
    assert any("something went in that is not hashed" in w for w in study.found.not_localised)
    assert study.found.target is not None and study.found.target.path == PATH
    assert study.found.coverage[0]["partly_unhashed"] > 0


def test_a_race_is_proven_whatever_else_went_in(llama: Subject) -> None:
    fault = added(lambda x, box: noise(box.value), lambda layer, x: layer.added(x, Box(x)))
    study = llama.study(fault, fault)
    assert study.first.culprit is None
    assert (study.culprit.kind, study.culprit.path) == ("race", PATH)


class Store:
    """A cache that does not call itself one."""

    def __init__(self) -> None:
        self.kept: list[torch.Tensor] = []

    def add(self, x: torch.Tensor) -> torch.Tensor:
        self.kept.append(x[:, -1:])
        return torch.cat(self.kept, 1).mean(1, keepdim=True)


class OwnCache:
    """A cache that transformers does not know."""

    __init__, add = Store.__init__, Store.add


def with_store(kind: Callable[[], Any], step: int | None = None) -> Fault:
    """A layer that keeps such a cache and hands it to a module; its bits may turn at a step."""

    def fault(model: nn.Module) -> None:
        store = kind()
        model.get_submodule(LAYER).store = store
        added(lambda x, cache: cache.add(x), lambda layer, x: layer.added(x, layer.store))(model)
        if step is not None:
            at_step(model, step, lambda _: flip(store.kept[0]))

    return fault


@pytest.mark.parametrize("kind", [OwnCache, Store])
def test_a_cache_of_unknown_make_is_covered(subject: Subject, kind: Callable[[], Any]) -> None:
    found = localise([subject.replay(with_store(kind)) for _ in range(2)])
    assert not found.differs and found.counts["SAME->SAME"] == sum(found.counts.values())
    empty_once = 0 if kind is OwnCache else 1
    assert found.coverage[0]["partly_unhashed"] == empty_once


@pytest.mark.parametrize("kind", [OwnCache, Store])
def test_a_flipped_bit_in_a_cache_of_unknown_make_accuses_no_module(
    subject: Subject, kind: Callable[[], Any]
) -> None:
    """Whether a fault or code wrote it is not known: every replay writes to it."""
    found = subject.study(with_store(kind), with_store(kind, step=3)).found
    assert found.differs and found.culprit is None
    assert found.departures[0].call.step == 3
    assert any("replays write to it" in words for words in found.not_localised)
