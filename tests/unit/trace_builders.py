"""Hand-made traces: the calls of a step from a few words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fleet.evidence.trace import Call, ModuleRow, Trace
from tests.unit.evidence_builders import sha

Script = Sequence[tuple[str, str, Sequence[Any]]]
"""(path, ``in>out`` in words, children in the same form)."""


def step_of(script: Script, step: int = 0, **changes: Any) -> list[Call]:
    """Calls of one step; ``x>y`` says what goes in and comes out, ``?`` that nothing is known."""
    calls: list[Call] = []
    place, counted = 0, dict[str, int]()

    def make(path: str, values: str, children: Sequence[Any], parent: int) -> None:
        nonlocal place
        went_in, came_out = (None if v == "?" else sha(v) for v in values.split(">"))
        begin, place = place, place + 1
        occurrence = counted[path] = counted.get(path, -1) + 1
        for child in children:
            make(*child, begin)
        call = Call(
            arm="a", batch=0, sample_ids=("s",), step=step, begin=begin, end=place, parent=parent,
            path=path, occurrence=occurrence, class_name="M", args_sha256=went_in, own_sha256=None,
            cache_sha256=None, in_sha256=went_in, out_sha256=came_out, dtype="float32", shape="1,2",
            unhashed=0,
        )  # fmt: skip
        calls.append(replace(call, **changes))
        place += 1

    for path, values, children in script:
        make(path, values, children, -1)
    return calls


def layer(inner: str = "i>j", out: str = "k", second: str = "j>k") -> Script:
    """A model of one layer with two modules."""
    return [("", f"x>{out}", [("l", f"x>{out}", [("l.a", inner, []), ("l.b", second, [])])])]


def trace(*steps: Script, logits: str = "", **more: Any) -> Trace:
    calls = [call for i, script in enumerate(steps) for call in step_of(script, i)]
    paths = dict.fromkeys(call.path for call in calls)
    modules = {p: ModuleRow(p, "M", "{}", "{}", True, 1) for p in paths}
    words = logits.split() or ["same"] * len(steps)
    row: dict[str, Any] = {"logits": {("a", "s"): tuple(sha(word) for word in words)}}
    return Trace("x", **{"calls": tuple(calls), "modules": modules, "weights": {}} | row | more)
