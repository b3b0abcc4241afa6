"""Inside a call: the operation at which runs of one frozen input part, and its line."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch

from fleet.evidence.operations import Operation, first_difference
from fleet.replay.trace.digesting import TensorDigests
from fleet.replay.trace.zoom import Recorder

Code = Callable[[torch.Tensor], torch.Tensor]


def recorded(code: Code, runs: int = 3) -> list[list[Operation]]:
    found = []
    for _ in range(runs):
        recorder, x = Recorder(TensorDigests()), torch.ones(4)
        with recorder:
            code(x)
        found.append(recorder.operations)
    return found


def counter() -> Callable[[], int]:
    return itertools.count().__next__


def test_runs_that_agree_have_no_difference() -> None:
    assert first_difference(recorded(lambda x: (x * 2 + 1).sum())) is None


def test_the_line_that_gives_other_inputs_is_named() -> None:
    number = counter()

    def code(x: torch.Tensor) -> torch.Tensor:
        doubled = x * 2
        return doubled + number()  # the line in question

    found = first_difference(recorded(code))
    assert found is not None
    assert (found["name"], found["how"], found["index"]) == ("aten.add.Tensor", "input", 1)
    assert found["unique"] == found["runs"] == 3
    assert found["where"].endswith("in code: return doubled + number()  # the line in question")
    assert "unit/test_trace_zoom.py:" in found["where"]


def test_the_operation_that_gives_other_outputs_is_named() -> None:
    def code(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x).random_(1 << 20) * 1

    found = first_difference(recorded(code))
    assert found is not None and found["how"] == "output"
    assert found["name"].startswith(("aten.empty_like", "aten.random_"))
    assert "random_(1 << 20)" in found["where"]


def test_another_operation_is_named() -> None:
    number = counter()
    found = first_difference(recorded(lambda x: (x + 1).exp() if number() % 2 else (x + 1).log()))
    assert found is not None
    assert (found["how"], found["index"]) == ("operation", 1)


def test_an_operation_more_is_named() -> None:
    number = counter()
    found = first_difference(recorded(lambda x: (x + 1).exp() if number() else x + 1))
    assert found is not None
    assert (found["name"], found["how"], found["index"]) == ("aten.exp.default", "operation", 1)


def test_what_is_written_into_an_argument_counts_as_output() -> None:
    number = counter()

    def code(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        torch.manual_seed(number())
        x.normal_()
        return x

    state = torch.get_rng_state()
    found = first_difference(recorded(code))
    torch.set_rng_state(state)
    assert found is not None
    assert (found["name"], found["how"]) == ("aten.normal_.default", "output")


def test_without_digests_only_names_are_recorded() -> None:
    recorder = Recorder(None)
    with recorder:
        torch.ones(2).mul(3)
    assert recorder.operations[-1] == Operation("aten.mul.Tensor", None, None, "")
