"""A launcher for tests: one plain subprocess per attempt, watched from the test's own process.

It keeps every promise of ``fleet.schedule.launcher.Launcher`` without Ray, so that the driver and
everything behind it can be tested in fractions of a second, and so that a *fault* can be put into
exactly one process: the name of a function of ``tests.cases.faults`` that the child calls first.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from fleet.errors import AttemptFailed
from fleet.evidence.manifest import Process
from fleet.evidence.process import identity, is_alive
from fleet.replay.ship import ship_left
from fleet.replay.task import ReplayTask
from fleet.schedule.launcher import Gone, Place, Problem

ROOT = Path(__file__).parent.parent

WITHOUT_NUMPY = """
import sys
class Absent:  # pyarrow imports these where they are installed: half a second, and unused here
    def find_spec(name, path=None, target=None):
        if name in ("pandas", "numpy"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent)
"""
CHILD = """
import json, os, sys
channel = os.fdopen(int(sys.argv[1]), "w")
fault = sys.argv[2]
from dataclasses import asdict
from fleet.replay.probe import at_entry
entry = at_entry()
print(json.dumps(asdict(entry.process)), file=channel, flush=True)
from fleet.replay.ship import ship_left
from fleet.replay.task import ReplayTask
from fleet.replay.worker import prepare_in_this_process, run_in_this_process
task = ReplayTask.from_json(json.loads(sys.stdin.readline()))
if fault:
    from tests.cases import faults
    entry = getattr(faults, fault)(task, entry) or entry
try:
    replay = prepare_in_this_process(task, entry, {})
    token = sys.stdin.readline().strip()
    answer = {"digest": run_in_this_process(replay, token)}
except BaseException as error:
    number = getattr(error, "errno", 0)
    answer = {"error": type(error).__name__, "text": str(error), "errno": number}
print(json.dumps(answer), file=channel, flush=True)
sys.stdin.read()  # it lives until it is ended, as an actor does
"""

WARM = """
import json, sys
from fleet.replay.worker import warm_in_this_process
found = warm_in_this_process(json.loads(sys.stdin.readline()))
print(json.dumps(found), flush=True)
"""


@dataclass
class RunningChild:
    """One child process."""

    child: subprocess.Popen[str]
    channel: int
    process: Process
    task: ReplayTask
    watcher: Mapping[str, Any]
    seen_alive: bool
    observe_death: bool = True

    def prepare(self) -> None:
        self._tell(json.dumps(self.task.to_json()))

    def go(self, token: str) -> None:
        self._tell(token)

    def _tell(self, line: str) -> None:
        """One that died meanwhile is found when its result is asked for."""
        assert self.child.stdin is not None
        with suppress(BrokenPipeError):
            self.child.stdin.write(line + "\n")
            self.child.stdin.flush()

    def result(self, deadline_s: float) -> str:
        line = read_line(self.channel, deadline_s)
        if line is None:
            raise AttemptFailed("hang", f"no end within {deadline_s:g} s")
        if not line:
            code = self.child.wait(timeout=10)
            name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            raise AttemptFailed("killed", f"the process ended by {name}")
        answer = json.loads(line)
        if "digest" in answer:
            return str(answer["digest"])
        if answer["error"] == "AttemptFailed":
            raise AttemptFailed(*answer["text"].split(": ", 1))
        code = {28: "disk-full"}.get(answer["errno"], "engine-error")
        raise AttemptFailed(code, f"{answer['error']}: {answer['text']}")

    def kill(self) -> None:
        self.child.kill()

    def end(self, deadline_s: float) -> Gone:
        self.kill()
        self.child.wait(timeout=deadline_s)
        os.close(self.channel)
        if self.child.stdin is not None:
            with suppress(BrokenPipeError):
                self.child.stdin.close()
        ship_left(self.task)
        gone = self.observe_death and not is_alive(self.process)
        return Gone(self.seen_alive, gone, self.watcher)


def read_line(channel: int, deadline_s: float) -> str | None:
    """A line from the child, "" at its end, None when the deadline passes."""
    data, until = b"", time.monotonic() + deadline_s
    while not data.endswith(b"\n"):
        ready, _, _ = select.select([channel], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            return None
        chunk = os.read(channel, 65536)
        if not chunk:
            break
        data += chunk
    return data.decode()


@dataclass
class ProcessLauncher:
    """Starts children; ``faults[n]`` is the fault of the n-th attempt that is started. ``torch``:
    the engine needs it, and numpy with it."""

    faults: Mapping[int, str] = field(default_factory=dict)
    label: str = "test-node"
    cpus: int = 1
    extra_environment: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    before_start: Callable[[int, ReplayTask], None] | None = None
    observe_death: bool = True
    torch: bool = False
    started: int = 0

    def __enter__(self) -> ProcessLauncher:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    def place(self) -> Place:
        return Place(self.label, None, self.cpus)

    def places(self) -> Sequence[Place]:
        return [self.place()]

    def units(self) -> Sequence[Place]:
        return self.places()

    def at(self, place: Place) -> ProcessLauncher:
        return self

    def is_up(self) -> bool:
        return True

    def wait_gone(self, node_label: str, process: Process, deadline_s: float) -> bool:
        until = time.monotonic() + deadline_s
        while is_alive(process) and time.monotonic() < until:
            time.sleep(0.01)
        return not is_alive(process)

    def stop(self) -> None:
        """Nothing is waited for here."""

    def preflight(
        self, tasks: Sequence[ReplayTask], environment: Mapping[str, str]
    ) -> list[Problem]:
        return []

    def prewarm(
        self, task: ReplayTask, environment: Mapping[str, str], num_cpus: int, deadline_s: float
    ) -> dict[str, Any]:
        given = {k: v for k, v in os.environ.items() if not k.startswith("FLEET_")}
        run = subprocess.run(
            [sys.executable, "-c", WARM],
            env=given | {**environment, "PYTHONPATH": str(ROOT)},
            input=json.dumps(task.to_json()) + "\n",
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            timeout=deadline_s,
            check=True,
        )
        found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
        return found

    def start(
        self,
        task: ReplayTask,
        environment: Mapping[str, str],
        num_cpus: int,
        deadline_s: float,
    ) -> RunningChild:
        index, self.started = self.started, self.started + 1
        if self.before_start is not None:
            self.before_start(index, task)
        given = {k: v for k, v in os.environ.items() if not k.startswith("FLEET_")}
        given |= {**environment, "PYTHONPATH": str(ROOT), **self.extra_environment.get(index, {})}
        ours, theirs = os.pipe()
        code = CHILD if self.torch else WITHOUT_NUMPY + CHILD
        child = subprocess.Popen(
            [sys.executable, "-c", code, str(theirs), self.faults.get(index, "")],
            env=given,
            stdin=subprocess.PIPE,
            pass_fds=(theirs,),
            text=True,
            cwd=ROOT,
        )
        os.close(theirs)
        line = read_line(ours, deadline_s)
        if not line:
            raise AttemptFailed("start", "the child did not answer")
        process = Process(**json.loads(line))
        watcher = {"process": vars(identity())}
        return RunningChild(
            child, ours, process, task, watcher, is_alive(process), self.observe_death
        )
