"""The seam between the driver and whatever runs fresh processes.

The driver is tested against any launcher that keeps these promises; in the product it is the Ray
cluster of ``fleet.schedule.cluster``. Nothing here imports ray.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fleet.evidence.manifest import Process
from fleet.replay.backends import Backend
from fleet.replay.task import Device, ReplayTask


@dataclass(frozen=True)
class Gone:
    """What the watcher, in a place that had seen the process alive, saw of its end."""

    seen_alive: bool
    gone: bool
    watcher: Mapping[str, Any]


@dataclass(frozen=True)
class Problem:
    """Why a contract cannot run on this machine: the fields of a usage error."""

    contract: str
    key: str
    expected: str
    got: str
    fix: str


@dataclass(frozen=True)
class Place:
    """Where one attempt at a time may run: a node with so many CPUs and, unless it is the CPU, one
    device of it."""

    node_label: str
    device: Device | None
    cpus: int = 1

    @property
    def name(self) -> str:
        """Of the unit: the device's UUID, or the node's label."""
        return self.device.uuid if self.device else self.node_label

    @property
    def kind(self) -> str:
        """Units of another kind are of another platform, whatever else is the same."""
        return self.device.name if self.device else "CPU"


@dataclass(frozen=True)
class Surroundings:
    """The software environment of replays: nothing for the driver's own, else a Python executable,
    a container image, or the labels of nodes that were prepared. ``variables``: what makes fleet
    importable there."""

    python: str | None = None
    image: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class UnitThere:
    """One unit: ``uuid`` and ``name`` of its device, None on a CPU. ``why``: it could not be read.

    ``facts``: of the platform, as a process on that unit sees them, its variables left out.
    """

    uuid: str | None
    name: str | None
    facts: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""


@dataclass(frozen=True)
class NodeThere:
    """One label of a cluster, and how many live nodes carry it: two of one label are one unit."""

    label: str
    cpus: int
    nodes: int
    units: tuple[UnitThere, ...]
    why: str = ""

    @property
    def devices(self) -> int:
        """How many devices a replay could be given."""
        return sum(unit.uuid is not None for unit in self.units)


class Running(Protocol):
    """One live attempt."""

    process: Process
    watcher: Mapping[str, Any]

    def prepare(self) -> None:
        """Let it prepare, which touches no device, and return at once."""

    def go(self, token: str) -> None:
        """Let it load and run, once it is prepared, and return at once; several may run at a time.

        Args:
            token: says once that its unit is its own; a part of its evidence.
        """

    def result(self, deadline_s: float) -> str:
        """Wait for the manifest of one that was let go; its digest as ``sha256:<hex>``.

        Raises:
            AttemptFailed: with its cause, when the process died, raised, or took too long.
        """

    def kill(self) -> None:
        """Tell the process to end, and return at once: whoever waits for its result is told."""

    def end(self, deadline_s: float) -> Gone:
        """End the process, whatever it does, and watch it disappear."""


class Launcher(Protocol):
    """Starts fresh processes, one per attempt, never twice."""

    def place(self) -> Place:
        """The unit of all claims about one."""

    def places(self) -> Sequence[Place]:
        """The units of claims about several: that one and others of its kind."""

    def units(self) -> Sequence[Place]:
        """Every unit there is now, of whatever kind; looks again at each call."""

    def at(self, place: Place) -> Launcher:
        """The same, with that unit as the one of all claims."""

    def within(self, around: Surroundings) -> Launcher:
        """The same, with replays in that software environment.

        Raises:
            CannotRunError: no node was prepared with it.
        """

    def is_up(self) -> bool:
        """Does the unit's node still answer? Bounded."""

    def wait_gone(self, node_label: str, process: Process, deadline_s: float) -> bool | None:
        """Watch a process of an earlier driver disappear; False when it was still there at the end,
        None when nobody could look."""

    def stop(self) -> None:
        """Interrupted: nothing starts any more, on whichever unit, and whoever waits for a process
        to start, or for its answer to a question, is told at once. Running attempts go on."""

    def prewarm(
        self, task: ReplayTask, environment: Mapping[str, str], num_cpus: int, deadline_s: float
    ) -> Mapping[str, Any]:
        """Compile a contract's kernels in one process that is no attempt; what
        :func:`fleet.replay.prewarm.prewarm` gives.

        Raises:
            AttemptFailed: with its cause.
        """

    def prompt_lengths(
        self, task: ReplayTask, environment: Mapping[str, str]
    ) -> Mapping[str, Sequence[int]]:
        """Arm -> prompt length in tokens of every planned sample, worked out on the node.

        Raises:
            CannotRunError: no process could tell.
        """

    def preflight(
        self, tasks: Sequence[ReplayTask], environment: Mapping[str, str]
    ) -> list[Problem]:
        """Ask that node, in one fresh process, which of these it cannot run and why."""

    def backends(
        self, task: ReplayTask, environment: Mapping[str, str], only: Sequence[str] | None
    ) -> Sequence[Backend]:
        """Ask that node, in one fresh process, which backends can run the task's checkpoint.

        Raises:
            CannotRunError: no process could tell.
        """

    def start(
        self,
        task: ReplayTask,
        environment: Mapping[str, str],
        num_cpus: int,
        deadline_s: float,
    ) -> Running:
        """Start the one process of an attempt and learn its identity.

        Raises:
            AttemptFailed: unschedulable or start, when no process answered in time.
        """
