"""Which replays a campaign runs, in which order. Pure: contracts in, slots out.

Replays of one contract stand next to each other on one unit, one after the other; every campaign
carries its controls, and they run through the same unit and store as what they control. Knows no
cluster, no clock and no store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fleet.contract.model import Contract
from fleet.contract.vary import in_words
from fleet.evidence.states import Purpose
from fleet.replay.task import ReplayTask, TraceOrder

Role = Literal["named", "control"]

CONTROLS: dict[str, tuple[str, str]] = {
    "torch": ("control-racy", "control-clean"),
    "synthetic": ("control-racy-synthetic", "control-clean-synthetic"),
}
"""Control contracts by what executes them: one that must FAIL, one that must PASS."""

TRACED: dict[str, str] = {"torch": "control-traced"}
"""A fault put at a place that nobody chose, which the tracer must name. The synthetic engine has no
modules to trace."""

MUST: dict[str, str] = {
    name: must
    for pair in CONTROLS.values()
    for name, must in zip(pair, ("FAIL", "PASS"), strict=True)
} | {name: "FAIL" for name in TRACED.values()}
"""Control -> the verdict that its contract must expect."""


@dataclass(frozen=True)
class Work:
    """What a replay is for. ``samples`` and ``arms`` narrow it, None means all; ``trace``: how."""

    purpose: Purpose = "certify"
    samples: tuple[str, ...] | None = None
    arms: tuple[str, ...] | None = None
    trace: TraceOrder | None = None

    @property
    def repeats_a_call(self) -> bool:
        """Is it about one frozen call, which an earlier replay named?"""
        return self.trace is not None and bool(self.trace.targets)


@dataclass(frozen=True)
class Slot:
    """One planned replay: the ``replay``-th of its contract and claim, in campaign order.

    ``work``: None for the campaign's own. ``vary``: the claim; replay 0 of it is the reference.
    ``unit``: the name of the unit it is pinned to (a device's UUID, or a node's label), if any.
    """

    index: int
    contract: str
    replay: int
    role: Role
    work: Work | None = None
    vary: tuple[str, ...] = ()
    unit: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As a dry run shows it; ``work`` is null for what the campaign is for."""
        work = None
        if self.work is not None:
            work = {
                "purpose": self.work.purpose,
                "samples": list(self.work.samples) if self.work.samples else None,
                "arms": list(self.work.arms) if self.work.arms else None,
            }
        head = {"slot": self.index, "contract": self.contract, "replay": self.replay}
        return head | {"role": self.role, "work": work, "vary": list(self.vary), "unit": self.unit}


def controls_for(contracts: Sequence[Contract]) -> list[str]:
    """Names of the controls that a campaign over these contracts must carry.

    The two torch controls run under the engine ``transformers`` and stand for both torch engines.
    """
    kinds = {"synthetic" if c.model.engine == "synthetic" else "torch" for c in contracts}
    return [
        name
        for kind in sorted(kinds, reverse=True)
        for name in (*CONTROLS[kind], *([TRACED[kind]] if kind in TRACED else []))
    ]


def plan(
    named: Sequence[tuple[str, int]],
    controls: Sequence[tuple[str, int]],
    work: Mapping[str, Work] | None = None,
    claims: Mapping[str, Sequence[tuple[str, ...]]] | None = None,
) -> list[Slot]:
    """Slots in the order they run: controls first, so that a broken instrument shows early.

    Args:
        named: (contract name, replays) as the user gave them, each once.
        controls: the same for controls that were not named.
        work: what the replays of some contracts are for; others are for what the campaign is for.
        claims: what sets of replays of a contract vary, a set each; one exact repeat if left out.
    """
    everything: list[tuple[Role, str, int]] = [("control", *c) for c in controls]
    everything += [("named", *c) for c in named]
    sets = claims or {}
    runs = [
        (role, name, i, vary)
        for role, name, replays in everything
        for vary in sets.get(name, ((),))
        for i in range(replays)
    ]
    works = work or {}
    return [
        Slot(index, name, i, role, works.get(name), vary)
        for index, (role, name, i, vary) in enumerate(runs)
    ]


def told(slot: Slot, task: ReplayTask) -> str:
    """What a replay does, for whoever watches."""
    if task.vary:
        return f"replay {slot.replay}, {in_words(task.vary)}{'' if task.varied else ', reference'}"
    if task.trace is None:
        return f"replay {slot.replay}"
    if task.trace.targets:
        return f"replay {slot.replay}, repeating {task.trace.targets[0].path or 'the model'}"
    return f"replay {slot.replay}, traced"
