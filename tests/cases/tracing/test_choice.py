"""Replays that compute otherwise, each always in its own way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fleet.judge.bounds import record_bound
from fleet.judge.tracing.proof import is_one_operation
from fleet.replay.inject import ChunkedLinear, OrderedLinear
from tests.cases.tracing.faults import changed, changed_sometimes, noise
from tests.cases.tracing.harness import REPEATS, Fault, Subject, nothing, put

PATH = "model.layers.0.self_attn.o_proj"


class Backwards(OrderedLinear):
    """Another class: the same sum from its other end."""

    def order(self, num_chunks: int) -> list[int]:
        return list(range(num_chunks))[::-1]


class Moded(ChunkedLinear):
    """Of one class, and two orders of one sum."""

    def __init__(self, linear: Any, mode: str) -> None:
        super().__init__(linear)
        self.mode = mode

    def order(self, num_chunks: int) -> list[int]:
        places = list(range(num_chunks))
        return places if self.mode == "up" else places[::-1]


class Chooses(Moded):
    """Picks its mode when it is first called, and counts its calls."""

    def __init__(self, linear: Any, choice: str) -> None:
        super().__init__(linear, "")
        self._choose, self.calls = lambda: choice, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mode = self.mode or self._choose()
        self.calls += 1
        return super().forward(x)


def made(kind: Callable[..., nn.Module], *args: Any) -> Fault:
    return lambda model: put(model, PATH, kind(model.get_submodule(PATH), *args))


def shares_then_sum(x: torch.Tensor) -> torch.Tensor:
    return (x * 0.3 + x * 0.3) + x * 0.4


def sum_in_one_operation(x: torch.Tensor) -> torch.Tensor:
    return torch.add(torch.add(x * 0.3, x, alpha=0.3), x, alpha=0.4)


def other_order_of_shares(x: torch.Tensor) -> torch.Tensor:
    return (x * 0.3 + x * 0.4) + x * 0.3


def test_another_class_is_heterogeneity(subject: Subject) -> None:
    culprit = subject.study(made(OrderedLinear), made(Backwards)).culprit
    assert (culprit.kind, culprit.path) == ("heterogeneity", PATH)
    assert "OrderedLinear in one replay, Backwards in another" in culprit.words


def test_another_class_with_the_same_bits_does_not_survive(llama: Subject) -> None:
    class Twin(OrderedLinear):
        """Another name alone."""

    culprit = llama.study(made(OrderedLinear), made(Twin)).culprit
    assert (culprit.kind, culprit.survives_to_logits) == ("heterogeneity", False)


def test_another_mode_of_one_class_is_heterogeneity(subject: Subject) -> None:
    culprit = subject.study(made(Moded, "up"), made(Moded, "down")).culprit
    assert (culprit.kind, culprit.path) == ("heterogeneity", PATH)
    assert "other settings: mode" in culprit.words
    assert (culprit.unique, culprit.repeats) == (1, 2 * REPEATS)


def test_a_mode_chosen_in_the_first_call_is_heterogeneity(llama: Subject) -> None:
    culprit = llama.study(made(Chooses, "up"), made(Chooses, "down")).culprit
    assert (culprit.kind, culprit.path) == ("heterogeneity", PATH)
    assert "other settings: mode" in culprit.words


def test_a_number_that_ends_otherwise_is_no_cause(llama: Subject) -> None:
    """It follows from what was computed."""

    def remembers(shares: Callable[[torch.Tensor], torch.Tensor]) -> Fault:
        def fault(model: nn.Module) -> None:
            module = model.get_submodule(PATH)

            def change(x: torch.Tensor) -> torch.Tensor:
                module.largest = float(shares(x).max())
                return shares(x)

            changed(PATH, change)(model)

        return fault

    culprit = llama.study(remembers(shares_then_sum), remembers(other_order_of_shares)).culprit
    assert (culprit.kind, culprit.path) == ("undecided", PATH)


def test_other_operations_in_steady_processes_are_a_kernel_choice(subject: Subject) -> None:
    pair = changed(PATH, shares_then_sum), changed(PATH, sum_in_one_operation)
    culprit = subject.study(*pair).culprit
    assert (culprit.kind, culprit.path) == ("kernel_choice", PATH)
    assert (culprit.unique, culprit.repeats) == (1, 2 * REPEATS)


def test_the_same_operations_in_steady_processes_stay_undecided(llama: Subject) -> None:
    pair = changed(PATH, shares_then_sum), changed(PATH, other_order_of_shares)
    culprit = llama.study(*pair).culprit
    assert (culprit.kind, culprit.path) == ("undecided", PATH)
    assert culprit.bound == record_bound(2 * REPEATS)
    assert "a rare race" in culprit.words and "or a kernel choice" in culprit.words


def test_a_zoom_names_the_line_between_operations_that_gives_other_inputs(llama: Subject) -> None:
    pair = changed(PATH, shares_then_sum), changed(PATH, other_order_of_shares)
    culprit = llama.study(*pair, zoom=True).culprit
    assert culprit.kind == "undecided" and not is_one_operation(culprit)
    assert "the code before aten.mul.Tensor differs (" in culprit.words
    assert "tracing/test_choice.py" in culprit.words


@torch.library.custom_op("fleet_cases::rounded", mutates_args=())
def rounded(x: torch.Tensor) -> torch.Tensor:
    """One operation, of which each build of a library has its own."""
    return x * BUILD[0]


BUILD = [1.0]


def of_build(scale: float) -> Fault:
    def fault(model: nn.Module) -> None:
        BUILD[0] = scale
        changed(PATH, lambda x: rounded(x))(model)

    return fault


def test_a_zoom_names_the_operation_that_two_builds_compute_otherwise(llama: Subject) -> None:
    culprit = llama.study(of_build(1.0), of_build(1.125), zoom=True).culprit
    assert (culprit.kind, culprit.path) == ("undecided", PATH) and is_one_operation(culprit)
    assert culprit.zoom is not None and culprit.zoom["name"].startswith("fleet_cases.rounded")
    assert (culprit.unique, culprit.repeats) == (1, 2 * REPEATS)


def unlike_when_recorded(x: torch.Tensor) -> torch.Tensor:
    """A library that takes another path where somebody looks at its operations."""
    looked_at = torch.utils._python_dispatch._get_current_dispatch_mode() is not None
    return x * (1.5 if looked_at else BUILD[0])


def test_operations_that_gave_another_output_explain_nothing(llama: Subject) -> None:
    def of(scale: float) -> Fault:
        def fault(model: nn.Module) -> None:
            BUILD[0] = scale
            changed(PATH, unlike_when_recorded)(model)

        return fault

    culprit = llama.study(of(1.0), of(1.125), zoom=True).culprit
    assert (culprit.kind, culprit.path, culprit.zoom) == ("undecided", PATH, None)


def test_an_operation_that_is_sometimes_added_is_never_a_kernel_choice(llama: Subject) -> None:
    """Every second call is perturbed by further operations. None of 24 is with probability 6e-8;
    60 repeats agree with 2e-18, so do five recordings of operations with 0.06."""
    fault = changed_sometimes(PATH, 2, noise)
    culprit = llama.study(nothing, fault, steps=24).culprit
    assert (culprit.kind, culprit.path) == ("race", PATH)
