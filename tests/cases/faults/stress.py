"""Replays that are not varied as planned, or say so of themselves."""

from __future__ import annotations

import ctypes
from typing import Any

from fleet.contract import vary
from fleet.evidence.stress import Ran
from fleet.replay import neighbours, observe
from fleet.replay.probe import AtEntry
from fleet.replay.task import ReplayTask
from tests.cases.faults.patching import wrap

M_PERTURB = -6


def _planning(task: ReplayTask, varied: dict[str, Any]) -> Any:
    """The process runs this plan, whatever it was told."""
    own = task.contract["decoding"]["batch_size"]

    def make(original: Any) -> Any:
        return lambda ids, arm, _, __: original(ids, arm, own, varied)

    return make


def nothing_varied(task: ReplayTask, entry: AtEntry) -> None:
    """Dataset order, the contract's own batches."""
    wrap(observe, "batch_plan", _planning(task, {}))


def another_order(task: ReplayTask, entry: AtEntry) -> None:
    """An order that was not drawn for this replay."""
    wrap(observe, "batch_plan", _planning(task, task.varied | {"order": "0123456789abcdef"}))


def claimed_only(task: ReplayTask, entry: AtEntry) -> None:
    """Dataset order and own batches, with the counters of the plan."""

    def make(_: Any) -> Any:
        def counters(self: Ran, varied: vary.Varied) -> dict[str, Any]:
            told = Ran(self.own)
            for arm in task.arms:
                own = self.own.batch_size
                for batch in vary.batch_plan(task.sample_ids, arm, own, varied):
                    told.add(arm, batch.positions)
            return original(told, varied)

        return counters

    original = Ran.counters
    wrap(Ran, "counters", make)
    nothing_varied(task, entry)


def counted_more(task: ReplayTask, entry: AtEntry) -> None:
    """The plan is run, and the counters say more than that."""

    def make(original: Any) -> Any:
        def counters(self: Ran, varied: vary.Varied) -> dict[str, Any]:
            self.displaced, self.other_mates = self.displaced + 1, self.other_mates + 1
            found: dict[str, Any] = original(self, varied)
            return found

        return counters

    wrap(Ran, "counters", make)


def took_something_else(task: ReplayTask, entry: AtEntry) -> None:
    """Another seed than the ledger's, all through."""
    task.varied["order"] = "0123456789abcdef"


def said_nothing(task: ReplayTask, entry: AtEntry) -> None:
    """A replay that was told what to vary, and runs and lands as an exact repeat."""
    object.__setattr__(task, "vary", ())
    task.varied.clear()


def neighbours_asleep(task: ReplayTask, entry: AtEntry) -> None:
    """They are there, and leave the host to the replay."""
    neighbours.PROGRAM = "import os, time; os.write(1, b'.'); time.sleep(60)"


def one_neighbour_less(task: ReplayTask, entry: AtEntry) -> None:
    """One of those that were planned ends while samples run."""

    def make(original: Any) -> Any:
        def counters(self: neighbours.Neighbours) -> Any:
            self.children[0].kill()
            self.children[0].wait()
            return original(self)

        return counters

    wrap(neighbours.Neighbours, "counters", make)


def memory_left_alone(task: ReplayTask, entry: AtEntry) -> None:
    """glibc is told to fill nothing, after it was started with a pattern."""
    ctypes.CDLL(None).mallopt(M_PERTURB, 0)
