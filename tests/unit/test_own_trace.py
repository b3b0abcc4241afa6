"""Where replays that were traced throughout part: one batch of their calls is read, or none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fleet.report import traces
from tests.unit.trace_builders import layer, trace

CALLS = {("a", 0): b"same", ("a", 1): b"x"}


@pytest.mark.parametrize(
    ("other", "batch"),
    [
        ({("a", 0): b"same", ("a", 1): b"y"}, ("a", 1)),
        ({("a", 1): b"x"}, ("a", 0)),
        ({("a", 0): b"same"}, ("a", 1)),
        (CALLS | {("a", 2): b"z"}, ("a", 2)),
        (CALLS, None),
    ],
)
def test_the_first_batch_that_differs_is_read_and_no_other(
    other: dict[Any, bytes], batch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Roots differ through a lower grade too; without a differing call there is none to read."""
    read: list[Any] = []

    def read_trace(landing: Any, attempt: str, only: Any) -> Any:
        read.append(only)
        return trace(layer()) if attempt == "one" else trace(layer(inner="i>w", second="w>k"))

    digests = {"one": CALLS, "two": other}
    monkeypatch.setattr(traces, "_batches", lambda landing, attempt: digests[attempt].items())
    monkeypatch.setattr(traces, "read_trace", read_trace)
    summaries: Any = [
        SimpleNamespace(attempt=name, trace={"calls": 2}, roots={"modules": name})
        for name in digests
    ]
    landing: Any = None
    found = traces.own_trace(landing, summaries)
    assert read == ([batch] * 2 if batch else [])
    assert (found is None) == (batch is None)
    if found is not None:
        assert found.culprit is not None
        assert found.culprit.source == "failing"


def test_equal_calls_have_nowhere_to_part() -> None:
    summaries: Any = [
        SimpleNamespace(attempt=name, trace={"calls": 2}, roots={"modules": "same"})
        for name in ("one", "two")
    ]
    landing: Any = None
    assert traces.own_trace(landing, summaries) is None
