"""Fresh processes on a Ray cluster. The only module that imports ray, with ``ray_metrics``.

One actor is one process for one attempt: ``max_restarts=0`` and ``max_task_retries=0`` are
stated, because Ray would otherwise replace a dead actor without a word. A unique ``env_vars``
entry (the nonce) keeps cached workers out. Ray frees resources before a process is gone and
nothing in it waits for death, so a watcher actor on the same node watches (pid, start tick)
disappear.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    GetTimeoutError,
    NodeDiedError,
    OutOfMemoryError,
    RayError,
    RayTaskError,
    RuntimeEnvSetupError,
)
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fleet.errors import AttemptFailed, CannotRunError, EvidenceError
from fleet.evidence.manifest import Process
from fleet.replay.backends import Backend
from fleet.replay.probe import at_entry
from fleet.replay.task import Device, ReplayTask, fitting
from fleet.replay.worker import (
    backends_in_this_process,
    check_in_this_process,
    devices_of_this_node,
    lengths_in_this_process,
    prepare_in_this_process,
    run_in_this_process,
    warm_in_this_process,
)
from fleet.schedule.launcher import Gone, Place, Problem
from fleet.schedule.metrics import Meter
from fleet.schedule.ray_metrics import RaySink

NODE_LABEL = "fleet.dev/node"
"""Node label that names a unit; a node without it is named by its host name."""

PREFLIGHT_S = 1800.0
"""How long a preflight may take: asking some backends whether they run compiles their kernels."""

START_S = 120.0
"""How long a helper actor (watcher, preflight) may take to answer for the first time."""


class _Replay:
    """Lives in the fresh process. Entry facts are taken before anything else."""

    def __init__(self) -> None:
        self._entry = at_entry()

    def identity(self) -> dict[str, Any]:
        return asdict(self._entry.process)

    def prepare(self, raw: dict[str, Any]) -> None:
        context = ray.get_runtime_context()
        ids = {
            "node": context.get_node_id(),
            "worker": context.get_worker_id(),
            "actor": context.get_actor_id() or "",
        }
        self._replay = prepare_in_this_process(ReplayTask.from_json(raw), self._entry, ids)

    def run(self, token: str) -> str:
        return run_in_this_process(self._replay, token)

    def check(self, raw_tasks: list[dict[str, Any]]) -> list[dict[str, str]]:
        return check_in_this_process(raw_tasks)

    def warm(self, raw_task: dict[str, Any]) -> dict[str, Any]:
        return warm_in_this_process(raw_task)

    def backends(
        self, raw_task: dict[str, Any], only: Sequence[str] | None
    ) -> list[dict[str, Any]]:
        return backends_in_this_process(raw_task, only)

    def lengths(self, raw_task: dict[str, Any]) -> dict[str, list[int]]:
        return lengths_in_this_process(raw_task)


class _Watcher:
    """Lives on the node of the attempts, in the same PID namespace, and outlives them."""

    def identity(self) -> dict[str, Any]:
        from fleet.evidence.process import identity

        return asdict(identity())

    def devices(self) -> list[dict[str, Any]]:
        return devices_of_this_node()

    def sees(self, raw: dict[str, Any]) -> bool:
        from fleet.evidence.process import is_alive

        try:
            return is_alive(Process(**raw))
        except EvidenceError:
            return False

    def wait_gone(self, raw: dict[str, Any], deadline_s: float) -> bool:
        import time

        from fleet.evidence.process import is_alive

        process, until = Process(**raw), time.monotonic() + deadline_s
        while is_alive(process):
            if time.monotonic() > until:
                return False
            time.sleep(0.01)
        return True


@dataclass
class _RunningActor:
    """One attempt's actor, seen from the driver."""

    actor: Any
    watch: Any
    process: Process
    watcher: Mapping[str, Any]
    task: ReplayTask
    _seen_alive: bool = field(default=False)
    _prepared: Any = None
    _answer: Any = None

    def prepare(self) -> None:
        self._prepared = self.actor.prepare.remote(self.task.to_json())

    def go(self, token: str) -> None:
        self._answer = self.actor.run.remote(token)

    def result(self, deadline_s: float) -> str:
        try:
            _, digest = ray.get([self._prepared, self._answer], timeout=deadline_s)
        except GetTimeoutError as error:
            raise AttemptFailed("hang", f"no end within {deadline_s:g} s") from error
        except RayError as error:
            raise failure(error) from error
        return str(digest)

    def end(self, deadline_s: float) -> Gone:
        ray.kill(self.actor, no_restart=True)
        raw = asdict(self.process)
        try:
            gone = ray.get(
                self.watch.wait_gone.remote(raw, deadline_s), timeout=deadline_s + START_S
            )
        except RayError:
            gone = False
        return Gone(self._seen_alive, bool(gone), self.watcher)


def _no_device(wanted: str, got: str) -> CannotRunError:
    fix = "fleet doctor shows the devices; FLEET_DEVICE=cpu runs on the CPU"
    return CannotRunError("FLEET_DEVICE", "", wanted, got, fix)


def failure(error: RayError) -> AttemptFailed:
    """The cause that a Ray error stands for, by type."""
    text = _first_lines(error)
    if isinstance(error, RayTaskError):
        cause = error.cause
        if isinstance(cause, MemoryError):
            return AttemptFailed("out-of-memory", text)
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            return AttemptFailed("disk-full", text)
        return AttemptFailed("engine-error", text)
    if isinstance(error, OutOfMemoryError):
        return AttemptFailed("out-of-memory", text)
    if isinstance(error, ActorUnavailableError | NodeDiedError):
        return AttemptFailed("node-unreachable", text)
    if isinstance(error, RuntimeEnvSetupError):
        return AttemptFailed("start", text)
    if isinstance(error, ActorDiedError):
        return AttemptFailed("killed", text)
    return AttemptFailed("engine-error", text)


def _first_lines(error: BaseException) -> str:
    """The last line of a remote traceback says what happened; the rest is in the attempt's log."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    chosen = lines[-1] if isinstance(error, RayTaskError) else " ".join(lines[:2])
    return f"{type(error).__name__}: {chosen.strip()}"[:500]


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
        self._sink = RaySink()
        self.meter = Meter(self._sink)
        self._nodes: dict[str, dict[str, Any]] = {}
        for node in sorted(_usable(ray.nodes()), key=lambda n: str(n["NodeID"])):
            self._nodes.setdefault(_label(node), node)
        self._watchers: dict[str, tuple[Any, dict[str, Any]]] = {}
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
            same = [place for place in found if _kind(place) == _kind(self._place)]
            self._places = [self._place, *(place for place in same if place != self._place)]
        return self._places

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
        try:
            raw = ray.get(self._watcher(label)[0].devices.remote(), timeout=START_S)
        except RayError as error:
            wanted = self._wanted or "a device that can be observed"
            raise _no_device(wanted, _first_lines(error)) from error
        return [Device(**each) for each in raw]

    def _watcher(self, label: str) -> tuple[Any, dict[str, Any]]:
        """The watcher of a node and its identity."""
        if label not in self._watchers:
            actor = self._actor(_Watcher, {}, 0, label)
            identity = ray.get(actor.identity.remote(), timeout=START_S)
            self._watchers[label] = (actor, dict(identity))
        return self._watchers[label]

    def _actor(
        self,
        cls: type,
        environment: Mapping[str, str],
        num_cpus: int,
        label: str | None = None,
    ) -> Any:
        """On that node, or on the first."""
        node = self._nodes[label or next(iter(self._nodes))]
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
        actor = self._actor(_Replay, environment, num_cpus)  # several share the device
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
        if task.device.uuid in self._reserved:
            return
        on_it = [{"ray.io/node-id": node["NodeID"]}]
        group = placement_group([{"GPU": 1}], bundle_label_selector=on_it)
        if not group.wait(within_s):
            remove_placement_group(group)
            raise AttemptFailed("unschedulable", f"no free device within {within_s:g} s")
        self._reserved.add(task.device.uuid)

    def backends(
        self, task: ReplayTask, environment: Mapping[str, str], only: Sequence[str] | None
    ) -> list[Backend]:
        """Ask the node in one fresh process."""
        found = self._ask(environment, lambda actor: actor.backends.remote(task.to_json(), only))
        return [Backend(**raw) for raw in found]

    def _ask(self, environment: Mapping[str, str], question: Callable[[Any], Any]) -> Any:
        actor = self._actor(_Replay, environment, num_cpus=1)
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
    ) -> _RunningActor:
        """One new actor; its process answers with its identity, and the watcher must see it."""
        has = self._nodes[task.node_label]["Resources"].get("CPU", 0)
        if num_cpus > has:
            raise AttemptFailed("unschedulable", f"{num_cpus} CPUs asked, node has {has:g}")
        self._reserve(task, deadline_s)
        actor = self._actor(_Replay, environment, num_cpus, task.node_label)
        watch, identity = self._watcher(task.node_label)
        try:
            raw = ray.get(actor.identity.remote(), timeout=deadline_s)
            seen = bool(ray.get(watch.sees.remote(raw), timeout=START_S))
        except GetTimeoutError as error:
            ray.kill(actor, no_restart=True)
            raise AttemptFailed("start", f"no answer within {deadline_s:g} s") from error
        except RayError as error:
            raise AttemptFailed("start", _first_lines(error)) from error
        return _RunningActor(actor, watch, Process(**raw), identity, task, seen)


def _usable(nodes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that run replays: a head that offers no CPU is there for the driver alone."""
    alive = [node for node in nodes if node["Alive"]]
    return [node for node in alive if node["Resources"].get("CPU", 0) >= 1] or alive


def _label(node: Mapping[str, Any]) -> str:
    """Its label, else its host name."""
    return str(node.get("Labels", {}).get(NODE_LABEL) or node["NodeManagerHostname"])


def _kind(place: Place) -> str:
    """Units of another kind are of another platform, whatever else is the same."""
    return place.device.name if place.device else ""
