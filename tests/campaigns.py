"""Whole campaigns for tests, fast: small synthetic contracts, replayed inside the test's process.

The launcher is a fake that keeps the promises of ``fleet.schedule.launcher``: each attempt has a
process identity of its own (of a process that never was, so it is always gone) and the environment
it was given; the replay itself is the product's. ``script`` says what goes wrong with an attempt.
"""

from __future__ import annotations

import copy
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from fleet.contract.canonical import sha256, to_text
from fleet.contract.load import BUILTIN
from fleet.evidence.manifest import Process
from fleet.evidence.process import boot_id, pid_namespace
from fleet.replay import probe
from fleet.replay.backends import Backend
from fleet.replay.preflight import prompt_lengths
from fleet.replay.probe import AtEntry
from fleet.replay.run import Replay
from fleet.replay.ship import ship_left
from fleet.replay.task import ReplayTask
from fleet.report.answers import CampaignAnswer
from fleet.schedule.certify import Planned, Request, certify, plan_request
from fleet.schedule.driver import Limits
from fleet.schedule.launcher import Gone, Place, Problem
from fleet.schedule.places import Places
from tests.contract_text import contract_text

NO_SUCH_PID = 10**8
SAMPLES = 5
CONTROLS = ("control-racy-synthetic", "control-clean-synthetic")
QUICK = Limits(start_s=5, replay_s=5, end_s=5, retries=0)

CONTRACT = contract_text("five", extra="replays = 2\n")

PARSER = """def parse(text, record):
    return text


def is_correct(answer, record):
    return False
"""

RACY = '[control]\ninject = "racy_linear:layers.0"\n'
ORDERED = '[control]\ninject = "ordered_linear:layers.0"\n'


def questions(count: int = SAMPLES) -> bytes:
    """A dataset's JSONL."""
    rows = [{"id": f"s{i}", "question": f"What costs {i}?", "answer": "A"} for i in range(count)]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def write_dataset(configs: Path, name: str, data: bytes, digest: str | None = None) -> Path:
    """``datasets/NAME.jsonl`` and the TOML that pins it; returns the JSONL."""
    folder = configs / "datasets"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.jsonl").write_bytes(data)
    pinned = digest or to_text(sha256(data))
    (folder / f"{name}.toml").write_text(f'file = "{name}.jsonl"\nsha256 = "{pinned}"\n')
    return folder / f"{name}.jsonl"


def write_contract(configs: Path, name: str, text: str = CONTRACT) -> Path:
    """``contracts/NAME.toml``."""
    path = configs / "contracts" / f"{name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def write_configs(configs: Path) -> Path:
    """A config folder: the contract ``toy`` and its dataset. Controls come with the product."""
    write_dataset(configs, "five", questions())
    write_contract(configs, "toy")
    return configs


Script = Mapping[int, Callable[[ReplayTask], None]]
"""Number of the attempt, in the order started -> what happens just before its replay."""


ONE_AT_A_TIME = threading.Lock()
"""The environment is the process's: replays here take turns, whatever unit they are of."""


@dataclass
class FakeRunning:
    """One attempt, run when its result is asked for."""

    task: ReplayTask
    environment: Mapping[str, str]
    process: Process
    launcher: FakeLauncher
    number: int
    watcher: Mapping[str, Any] = field(default_factory=lambda: {"pid_namespace": pid_namespace()})

    token: str = ""

    def prepare(self) -> None:
        self.launcher.did.append(("prepare", self.task.attempt))

    def go(self, token: str) -> None:
        self.token = token
        self.launcher.did.append(("go", self.task.attempt))

    def result(self, deadline_s: float) -> str:
        before = self.launcher.script.get(self.number)
        if before is not None:
            before(self.task)
        entry = AtEntry(self.process, dict(self.environment), (), (1,))
        with ONE_AT_A_TIME, given(self.environment), packages_read_once():
            replay = Replay(self.task, entry)
            replay.prepare()
            return to_text(replay.run(self.token).digest)

    def kill(self) -> None:
        self.launcher.did.append(("kill", self.task.attempt))

    def end(self, deadline_s: float) -> Gone:
        self.launcher.did.append(("end", self.task.attempt))
        ship_left(self.task)
        seen, gone = self.launcher.observed.get(self.number, (True, True))
        return Gone(seen, gone, self.watcher)


@dataclass
class FakeLauncher:
    """``observed``: number of the attempt -> (seen alive, seen gone). ``did``: (what was asked of a
    process, its attempt), in order. ``down``: labels of nodes that went away; ``lives_on``: pids of
    an earlier driver's processes that do not go."""

    script: Script = field(default_factory=dict)
    at_start: Script = field(default_factory=dict)
    observed: Mapping[int, tuple[bool, bool]] = field(default_factory=dict)
    problems: Sequence[Problem] = ()
    answers: Sequence[Backend] = ()
    labels: Sequence[str] = ("test-node",)
    tasks: list[ReplayTask] = field(default_factory=list)
    environments: list[dict[str, str]] = field(default_factory=list)
    did: list[tuple[str, str]] = field(default_factory=list)
    down: set[str] = field(default_factory=set)
    lives_on: set[int] = field(default_factory=set)
    counting: Any = field(default_factory=threading.Lock)

    def place(self) -> Place:
        return self.places()[0]

    def places(self) -> Sequence[Place]:
        return [Place(label, None) for label in self.labels]

    def units(self) -> Sequence[Place]:
        return self.places()

    def at(self, place: Place) -> FakeLauncher:
        view = copy.copy(self)  # the lists of what was asked are shared
        view.labels = (place.node_label,)
        return view

    def is_up(self) -> bool:
        return self.place().node_label not in self.down

    def wait_gone(self, node_label: str, process: Process, deadline_s: float) -> bool:
        return process.pid not in self.lives_on

    def stop(self) -> None:
        self.did.append(("stop", ""))

    def preflight(
        self, tasks: Sequence[ReplayTask], environment: Mapping[str, str]
    ) -> list[Problem]:
        return list(self.problems)

    def backends(
        self, task: ReplayTask, environment: Mapping[str, str], only: Sequence[str] | None
    ) -> Sequence[Backend]:
        return self.answers

    def prompt_lengths(
        self, task: ReplayTask, environment: Mapping[str, str]
    ) -> dict[str, list[int]]:
        return prompt_lengths(task)

    def start(
        self,
        task: ReplayTask,
        environment: Mapping[str, str],
        num_cpus: int,
        deadline_s: float,
    ) -> FakeRunning:
        with self.counting:
            number = len(self.tasks)
            self.tasks.append(task)
            self.environments.append(dict(environment))
        before = self.at_start.get(number)
        if before is not None:
            before(task)
        process = Process(boot_id(), pid_namespace(), NO_SUCH_PID + number, int(task.attempt, 16))
        return FakeRunning(task, environment, process, self, number)


@contextmanager
def given(environment: Mapping[str, str]) -> Iterator[None]:
    """The variables in this process, as a child would have been given them."""
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


_packages = cache(probe.packages)


@contextmanager
def packages_read_once() -> Iterator[None]:
    """Reading every installed package takes longer than such a replay, and one process has one."""
    before, probe.packages = probe.packages, _packages
    try:
        yield
    finally:
        probe.packages = before


def raises(error: BaseException) -> Callable[[ReplayTask], None]:
    """A script entry that raises."""

    def raise_it(_: ReplayTask) -> None:
        raise error

    return raise_it


def places_in(root: Path) -> Places:
    """Everything below one folder; ``configs`` must be there."""
    return Places(
        search=(root / "configs", BUILTIN),
        store=root / "var" / "fleet.duckdb",
        landing=root / "var" / "landing",
        cache=root / "cache",
        scratch=root / "cache" / "scratch",
    )


def planned_in(root: Path, *names: str, **request: Any) -> tuple[Request, Planned, Places]:
    """A request over contracts of ``root/configs``, resolved."""
    places = places_in(root)
    asked = Request(names or ("toy",), **{"limits": QUICK} | request)
    return asked, plan_request(asked, places, lambda _: None), places


def certified(
    root: Path, *names: str, launcher: FakeLauncher | None = None, **changes: Any
) -> CampaignAnswer:
    """Certify contracts of ``root/configs`` into ``root/var``."""
    request, planned, places = planned_in(root, *names, **changes)
    return certify(request, planned, places, launcher or FakeLauncher(), lambda _: None)
