"""Traces made by hand: one call of one module per step."""

from __future__ import annotations

from typing import Any

from fleet.evidence.trace import Call, ModuleRow, Trace

MODULES = {"layer": ModuleRow("layer", "Linear", "{}", "{}", True, 1)}


def call_of(step: int, out: bytes) -> Call:
    """The call of ``layer`` in a step, with the same input whatever it gives."""
    return Call(
        arm="current", batch=0, sample_ids=("s0",), step=step, begin=0, end=1, parent=-1,
        path="layer", occurrence=0, class_name="Linear", args_sha256=b"a" * 32, own_sha256=None,
        cache_sha256=None, in_sha256=b"i" * 32, out_sha256=out * 32, dtype="bfloat16",
        shape="1,4", unhashed=0,
    )  # fmt: skip


def repeat_of(unique: int, repeats: int = 9) -> dict[str, Any]:
    """What repeating the call of step 0 gave."""
    first = {"phase": "out", "path": "layer", "occurrence": 0, "unique": unique}
    return {
        "arm": "current", "batch": 0, "step": 0, "path": "layer", "occurrence": 0,
        "repeats": repeats, "unique": unique, "outputs": {}, "in_sha256": "sha256:" + "69" * 32,
        "trouble": "", "executed": 1, "executed_sha256": "x", "zoom": None,
        "first": first if unique > 1 else None,
    }  # fmt: skip


def trace_of(attempt: str, *outs: bytes, unique: int = 0, logits: bytes = b"l") -> Trace:
    """One call a step; with ``unique`` also what repeating the first one gave."""
    return Trace(
        attempt,
        tuple(call_of(step, out) for step, out in enumerate(outs)),
        MODULES,
        {},
        (repeat_of(unique),) if unique else (),
        {("current", "s0"): tuple(logits * 32 for _ in outs)},
        "no bit changed",
    )
