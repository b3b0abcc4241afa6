"""Fresh processes on a Ray cluster: which nodes and devices there are, and starting actors there.

Ray is imported here, in ``actors`` and in ``ray_metrics``, nowhere else. ``max_restarts=0`` and
``max_task_retries=0`` are stated, because Ray would otherwise replace a dead actor without a word.
A unique ``env_vars`` entry (the nonce) keeps cached workers out.
"""

from __future__ import annotations

import copy
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import asdict
from typing import Any, NamedTuple

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
    runtime_env,
    unit_there,
)
from fleet.schedule.launcher import NodeThere, Place, Problem, Surroundings
from fleet.schedule.metrics import Meter
from fleet.schedule.nodes import has_labels, label_of, no_device, no_node, usable
from fleet.schedule.ray_metrics import RaySink

PREFLIGHT_S = 1800.0
"""How long a preflight may take: asking some backends whether they run compiles their kernels."""

LOOK_S = 30.0
"""How long a look at the units waits for nodes that are new, in all and once: one that answers
later is there at a later look."""


class _Asked(NamedTuple):
    """A new node's watcher, and what it was asked."""

    since_s: float
    watcher: Any
    devices: Any


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
        # what a replay raised is its attempt's end; Ray prints whatever nobody waited for as well
        os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
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
        self._asked: dict[str, _Asked] = {}
        self._answering: dict[int, Any] = {}
        self._stopped = threading.Event()
        self._look_again()
        self._reserved: set[tuple[str, str]] = set()
        self._wanted = device
        self._around = Surroundings()
        self._place = self._first_place()
        self._places: list[Place] | None = None

    def __enter__(self) -> RayCluster:
        # Ray prints that a worker or a node died wherever standard output goes, log_to_driver or
        # not: before the one document that a verb has promised.
        self._told = redirect_stdout(sys.stderr)
        self._told.__enter__()
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        try:
            self._sink.close(linger=failed is None)
        finally:
            ray.shutdown()
            self._told.__exit__(None, None, None)

    def place(self) -> Place:
        """The first node's first device, or its CPU; chosen once."""
        return self._place

    def places(self) -> Sequence[Place]:
        """That one, then all others of its kind. Two nodes of one label are one unit."""
        if self._places is None:
            pool = [k for k, n in self._nodes.items() if has_labels(n, self._around.labels)]
            found = [place for label in pool for place in self._places_on(label)]
            same = [place for place in found if place.kind == self._place.kind]
            self._places = [self._place, *(place for place in same if place != self._place)]
        return self._places

    def units(self) -> Sequence[Place]:
        """Every device of every node that answers, or its CPU."""
        with self._lock:
            self._look_again()
            nodes = dict(self._nodes)
        if self._wanted != "cpu":
            self._ask_the_new(nodes)
            nodes = {k: node for k, node in nodes.items() if node["NodeID"] in self._devices}
        found: list[Place] = []
        for label in nodes:
            with suppress(CannotRunError):  # it went away meanwhile
                found += self._places_on(label)
        return found

    def _ask_the_new(self, nodes: Mapping[str, Mapping[str, Any]]) -> None:
        """All at a time, so that one that is dying holds up nobody."""
        now = time.monotonic()
        ids = {str(node["NodeID"]): label for label, node in nodes.items()}
        for node_id, label in ids.items():
            asked = self._asked.get(node_id)
            if node_id not in self._devices and (asked is None or now - asked.since_s > START_S):
                with suppress(CannotRunError):
                    watcher = self._actor(Watcher, {}, 0, label)
                    self._asked[node_id] = _Asked(now, watcher, watcher.devices.remote())
        asked_of = {i: asked for i in ids if (asked := self._asked.get(i))}
        young = [a.devices for a in asked_of.values() if now - a.since_s < LOOK_S]
        if young:
            ray.wait(young, num_returns=len(young), timeout=LOOK_S)
        for node_id, asked in asked_of.items():
            if ray.wait([asked.devices], timeout=0)[0]:
                with suppress(RayError):  # asked again, once enough time went by
                    self._answered(node_id, ids[node_id], asked)

    def _answered(self, node_id: str, label: str, asked: _Asked) -> None:
        raw = ray.get(asked.devices, timeout=ANSWER_S)
        identity = ray.get(asked.watcher.identity.remote(), timeout=ANSWER_S)
        with self._lock:
            if self._nodes.get(label, {}).get("NodeID") == node_id:
                self._watchers.setdefault(label, (asked.watcher, dict(identity)))
        self._devices[node_id] = [Device(**each) for each in raw]
        self._asked.pop(node_id, None)

    def at(self, place: Place) -> RayCluster:
        """A view of the same cluster."""
        view = copy.copy(self)
        view._place, view._places = place, [place]
        return view

    def within(self, around: Surroundings) -> RayCluster:
        """A view whose replays run in that environment, on a node that was prepared for it."""
        view = copy.copy(self)
        view._around = around
        if around.labels:
            view._place = self._prepared(around.labels)
            view._places = None
        return view

    def _prepared(self, labels: Mapping[str, str]) -> Place:
        """The first unit of a node with these labels.

        Raises:
            CannotRunError: no node has them.
        """
        for label, node in self._nodes.items():
            if has_labels(node, labels):
                return self._places_on(label)[0]
        raise no_node(f"a node labelled {dict(labels)}", self._nodes)

    def is_up(self) -> bool:
        """Is the node there, and does its watcher answer? A watcher that died is started again.
        Within four times ANSWER_S: Ray itself takes a minute to see that a node hangs."""
        label = self._place.node_label
        for _ in range(2):
            with self._lock:
                self._look_again()
            if label not in self._nodes:
                return False
            try:
                watch, _ = self._watcher(label, ANSWER_S)
                ray.get(watch.identity.remote(), timeout=ANSWER_S)
            except (RayError, CannotRunError, AttemptFailed):
                with self._lock:
                    self._watchers.pop(label, None)
            else:
                return True
        return False

    def wait_gone(self, node_label: str, process: Process, deadline_s: float) -> bool | None:
        """From the node's watcher; one in another boot or PID namespace cannot see it."""
        try:
            watch, _ = self._watcher(node_label)
            answer = watch.wait_gone.remote(asdict(process), deadline_s)
            return bool(ray.get(answer, timeout=deadline_s + ANSWER_S))
        except (RayError, CannotRunError, AttemptFailed):
            return None

    def stop(self) -> None:
        """Actors that have not answered are killed, which those who wait for them are told."""
        self._stopped.set()
        for actor in list(self._answering.values()):
            ray.kill(actor, no_restart=True)

    @contextmanager
    def _answers(self, actor: Any) -> Iterator[None]:
        """What is asked in the block ends with :meth:`stop`, and the actor with an error."""
        self._answering[id(actor)] = actor
        answered = False
        try:
            if self._stopped.is_set():
                raise AttemptFailed("start", "the driver was interrupted")
            yield
            answered = True
        finally:
            del self._answering[id(actor)]
            if not answered:
                ray.kill(actor, no_restart=True)

    def _node_of(self, label: str) -> dict[str, Any]:
        """One that was there, and may have gone since.

        Raises:
            CannotRunError: it is not there.
        """
        try:
            return self._nodes[label]
        except KeyError:
            raise no_node(f"a node {label}", self._nodes) from None

    def _look_again(self) -> None:
        """Nodes by label; one that came back has a new id, and its old watcher is gone with it.

        Other threads read the table without the lock: what stays is never out of it.
        """
        alive = sorted(usable(ray.nodes()), key=lambda n: str(n["NodeID"]))
        found: dict[str, dict[str, Any]] = {}
        for node in alive:
            found.setdefault(label_of(node), node)
        self._labelled = Counter(map(label_of, alive))
        for label, node in list(self._nodes.items()):
            if found.get(label, {}).get("NodeID") != node["NodeID"]:
                self._watchers.pop(label, None)
                self._asked.pop(str(node["NodeID"]), None)
        self._nodes.update(found)
        for label in set(self._nodes) - set(found):
            del self._nodes[label]

    def _first_place(self) -> Place:
        """On the first node that answers and has what is wanted."""
        failed: list[CannotRunError] = []
        for label in list(self._nodes):
            try:
                found = self._places_on(label)
            except CannotRunError as error:
                failed.append(error)
                continue
            if self._wanted in (None, "cpu") or found[0].device is not None:
                return found[0]
            there = ", ".join(each.uuid for each in self._devices_on(label)) or "none"
            failed.append(no_device(str(self._wanted), there))
        raise failed[0]

    def _places_on(self, label: str) -> list[Place]:
        """Every device of a node that may be used, or its CPU."""
        cpus = int(self._node_of(label)["Resources"].get("CPU", 0))
        host = [Place(label, None, cpus)]
        if self._wanted == "cpu":
            return host
        devices = fitting(self._devices_on(label), self._wanted)
        return [Place(label, device, cpus) for device in devices] or host

    def _devices_on(self, label: str) -> list[Device]:
        """Asked once of each node that came."""
        node = str(self._node_of(label)["NodeID"])
        if node not in self._devices:
            try:
                raw = ray.get(self._watcher(label)[0].devices.remote(), timeout=START_S)
            except RayError as error:
                wanted = self._wanted or "a device that can be observed"
                raise no_device(wanted, first_lines(error)) from error
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
        return lambda: NodeThere(*head, tuple(map(unit_there, asked, answers)))

    def _watcher(self, label: str, within_s: float = START_S) -> tuple[Any, dict[str, Any]]:
        """The watcher of a node and its identity."""
        with self._lock:
            found = self._watchers.get(label)
        if found is not None:
            return found
        actor = self._actor(Watcher, {}, 0, label)
        with self._answers(actor):
            identity = ray.get(actor.identity.remote(), timeout=within_s)
        with self._lock:  # of two that were started at a time the first stays
            return self._watchers.setdefault(label, (actor, dict(identity)))

    def _actor(
        self,
        cls: type,
        environment: Mapping[str, str],
        num_cpus: int,
        label: str | None = None,
        tasks: Sequence[ReplayTask] = (),
    ) -> Any:
        """On that node, or on that of the unit; ``tasks``: what it will be asked about."""
        node = self._node_of(label or self._place.node_label)
        remote = ray.remote(cls).options(
            num_cpus=num_cpus,
            max_restarts=0,
            max_task_retries=0,
            runtime_env=runtime_env(
                environment, self._around if cls is ReplayActor else None, tasks
            ),
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
        )
        return remote.remote()

    def preflight(
        self, tasks: Sequence[ReplayTask], environment: Mapping[str, str]
    ) -> list[Problem]:
        """Ask the node in one fresh process."""
        raw = [task.to_json() for task in tasks]
        found = self._ask(environment, tasks, lambda actor: actor.check.remote(raw))
        return [Problem(**problem) for problem in found]

    def prompt_lengths(
        self, task: ReplayTask, environment: Mapping[str, str]
    ) -> dict[str, list[int]]:
        """Tokenise on the node, in one fresh process."""
        found = self._ask(environment, [task], lambda actor: actor.lengths.remote(task.to_json()))
        return {arm: [int(n) for n in lengths] for arm, lengths in found.items()}

    def prewarm(
        self, task: ReplayTask, environment: Mapping[str, str], num_cpus: int, deadline_s: float
    ) -> dict[str, Any]:
        """In one process on the node."""
        # several share the device
        actor = self._actor(ReplayActor, environment, num_cpus, tasks=[task])
        try:
            with self._answers(actor):
                asked = actor.warm.remote(task.to_json())
                found: dict[str, Any] = ray.get(asked, timeout=deadline_s)
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
        node = self._node_of(task.node_label)
        if task.device is None or node["Resources"].get("GPU", 0) < 1:
            return
        mine = str(node["NodeID"]), task.device.uuid
        with self._lock:
            if mine in self._reserved:
                return
        on_it = [{"ray.io/node-id": node["NodeID"]}]
        group = placement_group([{"GPU": 1}], bundle_label_selector=on_it)
        if not group.wait(within_s):
            remove_placement_group(group)
            raise AttemptFailed("unschedulable", f"no free device within {within_s:g} s")
        with self._lock:
            self._reserved.add(mine)

    def backends(
        self, task: ReplayTask, environment: Mapping[str, str], only: Sequence[str] | None
    ) -> list[Backend]:
        """Ask the node in one fresh process."""
        raw = task.to_json()
        found = self._ask(environment, [task], lambda actor: actor.backends.remote(raw, only))
        return [Backend(**raw) for raw in found]

    def _ask(
        self,
        environment: Mapping[str, str],
        tasks: Sequence[ReplayTask],
        question: Callable[[Any], Any],
    ) -> Any:
        actor = self._actor(ReplayActor, environment, num_cpus=1, tasks=tasks)
        try:
            with self._answers(actor):
                return ray.get(question(actor), timeout=PREFLIGHT_S)
        except (RayError, AttemptFailed) as error:
            why = failure(error) if isinstance(error, RayError) else error
            raise CannotRunError(
                "preflight", "", "a process that can check the contracts", str(why), "fleet doctor"
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
        """One new actor; its process answers with its identity, and the watcher must see it. One
        that does not is ended."""
        try:
            has = self._node_of(task.node_label)["Resources"].get("CPU", 0)
            if num_cpus > has:
                raise AttemptFailed("unschedulable", f"{num_cpus} CPUs asked, node has {has:g}")
            self._reserve(task, deadline_s)
            watch, identity = self._watcher(task.node_label)
            actor = self._actor(ReplayActor, environment, num_cpus, task.node_label, [task])
            with self._answers(actor):
                raw = _within(deadline_s, actor.identity.remote())
                seen = bool(_within(ANSWER_S, watch.sees.remote(raw)))
        except CannotRunError as error:
            raise AttemptFailed("unschedulable", f"no node {task.node_label} any more") from error
        except RayError as error:
            raise AttemptFailed("start", first_lines(error)) from error
        return RunningActor(actor, watch, Process(**raw), identity, task, seen)


def _within(deadline_s: float, answer: Any) -> Any:
    try:
        return ray.get(answer, timeout=deadline_s)
    except GetTimeoutError as error:
        raise AttemptFailed("start", f"no answer within {deadline_s:g} s") from error
