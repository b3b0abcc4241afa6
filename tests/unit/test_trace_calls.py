"""What the tracer notes of calls: places in time, steps, arguments, and what a module keeps."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fleet.evidence.trace import Call, root_of
from fleet.replay.trace.tracer import Tracer
from tests.unit.traced_net import Net


class Catches(nn.Module):
    """Calls a module that fails, and goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.fails, self.works = Fails(), nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            self.fails(x)
        except ArithmeticError:
            x = x + 1
        result: torch.Tensor = self.works(x)
        return result


class Fails(nn.Module):
    """Never returns."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError


def traced(model: nn.Module, batches: int = 1, steps: str = "all", forwards: int = 1) -> list[Call]:
    calls: list[Call] = []
    tracer = Tracer(model, (), calls.append, steps)
    for batch in range(batches):
        tracer.start_batch("arm", batch, ["s"])
        tracer.attach()
        for _ in range(forwards):
            model(torch.ones(1, 4).bfloat16())
        tracer.detach()
    return calls


def test_a_call_that_never_returned_has_no_end() -> None:
    calls = {c.path: c for c in traced(Catches())}
    assert (calls["fails"].end, calls["fails"].out_sha256) == (-1, None)
    assert calls["works"].end > 0 and calls[""].out_sha256 is not None


def test_every_batch_begins_anew() -> None:
    places = [
        (c.step, c.begin, c.end, c.path, c.occurrence) for c in traced(Net(), batches=2, forwards=2)
    ]
    assert places[:6] == places[6:]


def test_calls_from_outside_the_model_begin_anew_with_each_batch() -> None:
    net, calls = Net(), list[Call]()
    tracer = Tracer(net, (), calls.append)
    for batch in range(2):
        tracer.start_batch("arm", batch, ["s"])
        tracer.attach()
        net.linear(torch.ones(1, 4).bfloat16())
        tracer.detach()
    assert [(c.step, c.begin, c.occurrence, c.parent) for c in calls] == [(-1, 0, 0, -1)] * 2


@pytest.mark.parametrize(("steps", "seen"), [("all", {0, 1, 2}), ("prefill", {0}), ("2", {2})])
def test_only_the_steps_asked_for_are_traced(steps: str, seen: set[int]) -> None:
    assert {c.step for c in traced(Net(), steps=steps, forwards=3)} == seen


def test_keywords_in_another_order_are_the_same_arguments() -> None:
    class Takes(nn.Module):
        def forward(self, **given: torch.Tensor) -> torch.Tensor:
            return given["a"] - given["b"]

    tracer = Tracer(Takes(), (), lambda _: None)
    a, b = torch.ones(2), torch.zeros(2)
    roots = {
        root_of(tracer.observe_input("", (), given))
        for given in ({"a": a, "b": b}, {"b": b, "a": a}, {"a": b, "b": a})
    }
    assert len(roots) == 2


def test_what_a_module_keeps_is_part_of_what_it_owns() -> None:
    net = Net()
    tracer = Tracer(net, (), lambda _: None)
    seen = [tracer.owned.digest("linear")]
    for kept in (torch.ones(2), [torch.ones(2)], {"k": torch.ones(2)}, [torch.zeros(2)]):
        net.linear.kept = kept  # type: ignore[assignment]
        seen.append(tracer.owned.digest("linear"))
    assert len(set(seen)) == len(seen)
    net.linear.kept = 3  # type: ignore[assignment]
    assert tracer.owned.digest("linear") == seen[0]
