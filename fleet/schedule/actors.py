"""What runs in Ray's processes, and an attempt's actor as the driver sees it.

One actor is one process for one attempt. Ray frees resources before a process is gone and nothing
in it waits for death, so a watcher actor on the same node watches (pid, start tick) disappear.
Knows no cluster: where an actor runs is ``fleet.schedule.cluster``'s to say.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from contextlib import suppress
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

from fleet.errors import AttemptFailed, EvidenceError
from fleet.evidence.manifest import Process
from fleet.evidence.process import die_with_parent
from fleet.replay.probe import at_entry, read_platform
from fleet.replay.ship import ship_left
from fleet.replay.task import Device, ReplayTask
from fleet.replay.worker import (
    backends_in_this_process,
    check_in_this_process,
    devices_of_this_node,
    lengths_in_this_process,
    prepare_in_this_process,
    run_in_this_process,
    warm_in_this_process,
)
from fleet.schedule.containers import container
from fleet.schedule.launcher import Gone, Surroundings, UnitThere

ANSWER_S = 20.0
"""How long a watcher that runs may take to answer."""

START_S = 120.0
"""How long a helper actor (watcher, preflight) may take to answer for the first time."""


class ReplayActor:
    """Lives in the fresh process. Entry facts are taken before anything else."""

    def __init__(self) -> None:
        self._entry = at_entry()
        # It would go on without its raylet for many seconds, on a unit that counts as free.
        die_with_parent()

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


class Watcher:
    """Lives on the node of the attempts, in the same PID namespace, and outlives them."""

    def identity(self) -> dict[str, Any]:
        from fleet.evidence.process import identity

        return asdict(identity())

    def devices(self) -> list[dict[str, Any]]:
        return devices_of_this_node()

    def facts(self, uuid: str | None) -> dict[str, Any]:
        """Of the platform, as this process sees them; those of its own variables left out."""
        found = read_platform("doctor", {}, (), uuid).facts
        return {name: value for name, value in found.items() if name != "environment"}

    def ship(self, raw_task: dict[str, Any]) -> None:
        ship_left(ReplayTask.from_json(raw_task))

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
class RunningActor:
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

    def kill(self) -> None:
        ray.kill(self.actor, no_restart=True)

    def end(self, deadline_s: float) -> Gone:
        self.kill()
        raw = asdict(self.process)
        try:
            gone = ray.get(
                self.watch.wait_gone.remote(raw, deadline_s), timeout=deadline_s + ANSWER_S
            )
        except RayError:
            gone = False
        if self.task.remote is not None:
            with suppress(RayError):  # on the node of the process, which may be another
                ray.get(self.watch.ship.remote(self.task.to_json()), timeout=START_S)
        return Gone(self._seen_alive, bool(gone), self.watcher)


def runtime_env(
    environment: Mapping[str, str],
    around: Surroundings | None = None,
    tasks: Sequence[ReplayTask] = (),
) -> dict[str, Any] | None:
    """Of an actor: its variables, and the software environment where that is not the driver's.

    ``tasks``: what it will be asked about.
    """
    variables = dict(environment) | (dict(around.variables) if around else {})
    found: dict[str, Any] = {"env_vars": variables} if variables else {}
    if around and around.python is not None:
        found["py_executable"] = around.python
    if around and around.image is not None:
        found["container"] = container(around.image, tasks)
    return found or None


def unit_there(asked: tuple[Device | None, Any], answer: Any) -> UnitThere:
    """What a process that saw this device and no other, as a replay would, says of it."""
    device, actor = asked
    uuid, name = (device.uuid, device.name) if device else (None, None)
    try:
        return UnitThere(uuid, name, dict(ray.get(answer, timeout=START_S)))
    except RayError as error:
        return UnitThere(uuid, name, why=first_lines(error))
    finally:
        ray.kill(actor, no_restart=True)


def failure(error: RayError) -> AttemptFailed:
    """The cause that a Ray error stands for, by type."""
    text = first_lines(error)
    if isinstance(error, RayTaskError):
        cause = error.cause
        if isinstance(cause, AttemptFailed):
            return AttemptFailed(cause.code, cause.text, cause.details)
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


def first_lines(error: BaseException) -> str:
    """What happened, then why. The last line of a remote traceback says both; the rest is in the
    attempt's log."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    chosen = (
        lines[-1:] if isinstance(error, RayTaskError) else dict.fromkeys(lines[:1] + lines[-1:])
    )
    return f"{type(error).__name__}: {' '.join(chosen)}"[:500]
