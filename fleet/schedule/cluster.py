"""Fresh processes on a Ray cluster: which nodes and devices there are, and starting actors there.

Ray is imported here, in ``actors`` and in ``ray_metrics``, nowhere else. ``max_restarts=0`` and
``max_task_retries=0`` are stated, because Ray would otherwise replace a dead actor without a word.
A unique ``env_vars`` entry (the nonce) keeps cached workers out.
"""

from __future__ import annotations

import copy
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fleet.errors import AttemptFailed, CannotRunError
from fleet.evidence.manifest import Process
from fleet.replay.backends import Backend
from fleet.replay.task import Device, ReplayTask, device_environment, fitting
from fleet.schedule.actors import (
    ANSWER_S,
    START_S,
    ReplayActor,
    RunningActor,
    Watcher,
    failure,
    first_lines,
)
from fleet.schedule.launcher import NodeThere, Place, Problem, UnitThere
from fleet.schedule.metrics import Meter
from fleet.schedule.ray_metrics import RaySink

NODE_LABEL = "fleet.dev/node"
"""Node label that names a unit; a node without it is named by its host name."""

PREFLIGHT_S = 1800.0
"""How long a preflight may take: asking some backends whether they run compiles their kernels."""


def _no_device(wanted: str, got: str) -> CannotRunError:
    fix = "fleet doctor shows the devices; FLEET_DEVICE=cpu runs on the CPU"
    return CannotRunError("FLEET_DEVICE", "", wanted, got, fix)


def _keep_own_signal_handlers() -> None:
    """Ray puts its own SIGTERM handler in place, which ends the driver before the ledger can say
    so. The driver's own handler is put back."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)


class RayCluster:
    """A local Ray, or the one at ``address``.

    Args:
        address: Ray address; None starts a local one that ends with this process.
        device: ``cpu``, or the UUID of an NVIDIA device; None for the first one, or the CPU.

    Raises:
        CannotRunError: when nothing answers at ``address``, or the node has no such device.
    """

    def __init__(self, address: str | None = None, device: str | None = None) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Ray starts workers at niceness 15: beside any other work a replay would take minutes more.
        os.environ.setdefault("RAY_worker_niceness", "0")
        try:
            ray.init(
                address=address or "local",
                include_dashboard=None if address else False,
                log_to_driver=False,
                logging_level="ERROR",
            )
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise CannotRunError(
                f"--address {address or 'local'}",
                "",
                "a Ray cluster that answers",
                str(error).splitlines()[0],
                "ray status --address ADDRESS, or leave --address out",
            ) from error
        _keep_own_signal_handlers()
        self._lock = threading.RLock()  # shared by all views, as are the tables
        self._sink = RaySink()
        self.meter = Meter(self._sink)
        self._nodes: dict[str, dict[str, Any]] = {}
        self._labelled: Counter[str] = Counter()
        self._watchers: dict[str, tuple[Any, dict[str, Any]]] = {}
        self._devices: dict[str, list[Device]] = {}
        self._look_again()
        self._reserved: set[str] = set()
        self._wanted = device
        self._place = self._first_place()
        self._places: list[Place] | None = None

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        try:
            self._sink.close(linger=failed is None)
        finally:
            ray.shutdown()

    def place(self) -> Place:
        """The first node's first device, or its CPU; chosen once."""
        return self._place

    def places(self) -> Sequence[Place]:
        """That one, then all others of its kind. Two nodes of one label are one unit."""
        if self._places is None:
            found = [place for label in self._nodes for place in self._places_on(label)]
            same = [place for place in found if place.kind == self._place.kind]
            self._places = [self._place, *(place for place in same if place != self._place)]
        return self._places

    def units(self) -> Sequence[Place]:
        """Every device of every node that answers, or its CPU."""
        with self._lock:
            self._look_again()
            labels = list(self._nodes)
        found: list[Place] = []
        for label in labels:
            with suppress(CannotRunError, RayError):  # a node that is going away
                found += self._places_on(label)
        return found

    def at(self, place: Place) -> RayCluster:
        """A view of the same cluster."""
        view = copy.copy(self)
        view._place, view._places = place, [place]
        return view

    def is_up(self) -> bool:
        """Is the node there, and does its watcher answer? A watcher that died is started again."""
        label = self._place.node_label
        for _ in range(2):
            with self._lock:
                self._look_again()
                if label not in self._nodes:
                    return False
            try:
                ray.get(self._watcher(label)[0].identity.remote(), timeout=ANSWER_S)
            except RayError:
                with self._lock:
                    self._watchers.pop(label, None)
            else:
                return True
        return False

    def wait_gone(self, node_label: str, process: Process, deadline_s: float) -> bool:
        """From the node's watcher."""
        if node_label not in self._nodes:
            return False
        watch, _ = self._watcher(node_label)
        answer = watch.wait_gone.remote(asdict(process), deadline_s)
        try:
            return bool(ray.get(answer, timeout=deadline_s + START_S))
        except RayError:
            return False

    def _look_again(self) -> None:
        """Nodes by label; one that came back has a new id, and its old watcher is gone with it."""
        alive = sorted(_usable(ray.nodes()), key=lambda n: str(n["NodeID"]))
        found: dict[str, dict[str, Any]] = {}
        for node in alive:
            found.setdefault(_label(node), node)
        self._labelled = Counter(map(_label, alive))
        for label, node in self._nodes.items():
            if found.get(label, {}).get("NodeID") != node["NodeID"]:
                self._watchers.pop(label, None)
        self._nodes.clear()
        self._nodes.update(found)

    def _first_place(self) -> Place:
        label = next(iter(self._nodes))
        found = self._places_on(label)
        if self._wanted not in (None, "cpu") and found[0].device is None:
            there = ", ".join(each.uuid for each in self._devices_on(label)) or "none"
            raise _no_device(str(self._wanted), there)
        return found[0]

    def _places_on(self, label: str) -> list[Place]:
        """Every device of a node that may be used, or its CPU."""
        cpus = int(self._nodes[label]["Resources"].get("CPU", 0))
        host = [Place(label, None, cpus)]
        if self._wanted == "cpu":
            return host
        devices = fitting(self._devices_on(label), self._wanted)
        return [Place(label, device, cpus) for device in devices] or host

    def _devices_on(self, label: str) -> list[Device]:
        """Asked once of each node that came."""
        node = str(self._nodes[label]["NodeID"])
        if node not in self._devices:
            try:
                raw = ray.get(self._watcher(label)[0].devices.remote(), timeout=START_S)
            except RayError as error:
                wanted = self._wanted or "a device that can be observed"
                raise _no_device(wanted, first_lines(error)) from error
            self._devices[node] = [Device(**each) for each in raw]
        return self._devices[node]

    def nodes(self) -> list[NodeThere]:
        """What every node is, by label: its devices, and the facts of each or of its CPU."""
        return [there() for there in [self._node(label) for label in sorted(self._nodes)]]

    def _node(self, label: str) -> Callable[[], NodeThere]:
        """Asks, and gives what waits for the answers: nodes are asked at a time."""
        head = label, int(self._nodes[label]["Resources"].get("CPU", 0)), self._labelled[label]
        try:
            devices: list[Device | None] = [*self._devices_on(label)] or [None]
        except CannotRunError as error:
            got = error.got
            return lambda: NodeThere(*head, (), got)
        asked = [
            (device, self._actor(Watcher, device_environment(device), 0, label))
            for device in devices
        ]
        answers = [actor.facts.remote(device.uuid if device else None) for device, actor in asked]
        return lambda: NodeThere(*head, tuple(map(_unit_there, asked, answers)))

    def _watcher(self, label: str) -> tuple[Any, dict[str, Any]]:
        """The watcher of a node and its identity."""
        with self._lock:
            found = self._watchers.get(label)
        if found is not None:
            return found
        actor = self._actor(Watcher, {}, 0, label)
        identity = ray.get(actor.identity.remote(), timeout=START_S)
        with self._lock:  # of two that were started at a time the first stays
            return self._watchers.setdefault(label, (actor, dict(identity)))

    def _actor(
        self,
        cls: type,
        environment: Mapping[str, str],
        num_cpus: int,
        label: str | None = None,
    ) -> Any:
        """On that node, or on that of the unit."""
        node = self._nodes[label or self._place.node_label]
        remote = ray.remote(cls).options(
            num_cpus=num_cpus,
            max_restarts=0,
            max_task_retries=0,
            runtime_env={"env_vars": dict(environment)} if environment else None,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
        )
        return remote.remote()

    def preflight(
        self, tasks: Sequence[ReplayTask], environment: Mapping[str, str]
    ) -> list[Problem]:
        """Ask the node in one fresh process."""
        raw = [task.to_json() for task in tasks]
        found = self._ask(environment, lambda actor: actor.check.remote(raw))
        return [Problem(**problem) for problem in found]

    def prompt_lengths(
        self, task: ReplayTask, environment: Mapping[str, str]
    ) -> dict[str, list[int]]:
        """Tokenise on the node, in one fresh process."""
        found = self._ask(environment, lambda actor: actor.lengths.remote(task.to_json()))
        return {arm: [int(n) for n in lengths] for arm, lengths in found.items()}

    def prewarm(
        self, task: ReplayTask, environment: Mapping[str, str], num_cpus: int, deadline_s: float
    ) -> dict[str, Any]:
        """In one process on the node."""
        actor = self._actor(ReplayActor, environment, num_cpus)  # several share the device
        try:
            found: dict[str, Any] = ray.get(actor.warm.remote(task.to_json()), timeout=deadline_s)
        except GetTimeoutError as error:
            raise AttemptFailed("hang", f"no end within {deadline_s:g} s") from error
        except RayError as error:
            raise failure(error) from error
        finally:
            ray.kill(actor, no_restart=True)
        return found

    def _reserve(self, task: ReplayTask, within_s: float) -> None:
        """A whole device of the node, where Ray counts them, until this cluster is left: between
        two replays nobody else is given it. Which one it is is said by UUID, not by Ray.

        Raises:
            AttemptFailed: unschedulable, while others have all of them.
        """
        node = self._nodes[task.node_label]
        if task.device is None or node["Resources"].get("GPU", 0) < 1:
            return
        with self._lock:
            if task.device.uuid in self._reserved:
                return
        on_it = [{"ray.io/node-id": node["NodeID"]}]
        group = placement_group([{"GPU": 1}], bundle_label_selector=on_it)
        if not group.wait(within_s):
            remove_placement_group(group)
            raise AttemptFailed("unschedulable", f"no free device within {within_s:g} s")
        with self._lock:
            self._reserved.add(task.device.uuid)

    def backends(
        self, task: ReplayTask, environment: Mapping[str, str], only: Sequence[str] | None
    ) -> list[Backend]:
        """Ask the node in one fresh process."""
        found = self._ask(environment, lambda actor: actor.backends.remote(task.to_json(), only))
        return [Backend(**raw) for raw in found]

    def _ask(self, environment: Mapping[str, str], question: Callable[[Any], Any]) -> Any:
        actor = self._actor(ReplayActor, environment, num_cpus=1)
        try:
            return ray.get(question(actor), timeout=PREFLIGHT_S)
        except RayError as error:
            raise CannotRunError(
                "preflight",
                "",
                "a process that can check the contracts",
                str(failure(error)),
                "fleet doctor",
            ) from error
        finally:
            ray.kill(actor, no_restart=True)

    def start(
        self,
        task: ReplayTask,
        environment: Mapping[str, str],
        num_cpus: int,
        deadline_s: float,
    ) -> RunningActor:
        """One new actor; its process answers with its identity, and the watcher must see it."""
        node = self._nodes.get(task.node_label)
        if node is None:
            raise AttemptFailed("unschedulable", f"no node {task.node_label} any more")
        has = node["Resources"].get("CPU", 0)
        if num_cpus > has:
            raise AttemptFailed("unschedulable", f"{num_cpus} CPUs asked, node has {has:g}")
        self._reserve(task, deadline_s)
        try:
            watch, identity = self._watcher(task.node_label)
        except RayError as error:
            raise AttemptFailed("start", first_lines(error)) from error
        actor = self._actor(ReplayActor, environment, num_cpus, task.node_label)
        try:
            raw = ray.get(actor.identity.remote(), timeout=deadline_s)
            seen = bool(ray.get(watch.sees.remote(raw), timeout=START_S))
        except GetTimeoutError as error:
            ray.kill(actor, no_restart=True)
            raise AttemptFailed("start", f"no answer within {deadline_s:g} s") from error
        except RayError as error:
            raise AttemptFailed("start", first_lines(error)) from error
        return RunningActor(actor, watch, Process(**raw), identity, task, seen)


def _unit_there(asked: tuple[Device | None, Any], answer: Any) -> UnitThere:
    """What a process that saw this device and no other, as a replay would, says of it."""
    device, actor = asked
    uuid, name = (device.uuid, device.name) if device else (None, None)
    try:
        return UnitThere(uuid, name, dict(ray.get(answer, timeout=START_S)))
    except RayError as error:
        return UnitThere(uuid, name, why=first_lines(error))
    finally:
        ray.kill(actor, no_restart=True)


def _usable(nodes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that run replays: a head that offers no CPU is there for the driver alone."""
    alive = [node for node in nodes if node["Alive"]]
    return [node for node in alive if node["Resources"].get("CPU", 0) >= 1] or alive


def _label(node: Mapping[str, Any]) -> str:
    """Its label, else its host name."""
    return str(node.get("Labels", {}).get(NODE_LABEL) or node["NodeManagerHostname"])
