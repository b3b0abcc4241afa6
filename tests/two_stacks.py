"""Two software stacks for tests: files that name them, and a launcher whose replays are in them.

A stack's Python is a script that starts this one, so the driver can ask it; what a replay finds
there is what its ``World`` says: other versions of packages, other bits, entropy.
"""

from __future__ import annotations

import copy
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from fleet.contract.stack import Stack
from fleet.replay import probe, software
from fleet.replay.engines.synthetic import SyntheticEngine
from fleet.schedule.launcher import Surroundings
from fleet.schedule.stacks import ask, own_python, to_toml
from tests import campaigns
from tests.campaigns import FakeLauncher, FakeRunning

OTHER = "0" * 64


@cache
def frozen_here(where: Path) -> dict[str, Any]:
    """This environment's software, read once."""
    return ask(own_python(), "tests", where).frozen


def python_in(folder: Path, name: str) -> Path:
    """A script that starts this Python, found at a path of its own."""
    path = folder / f"{name}-python"
    path.write_text(f'#!/bin/sh\nexec {own_python()} "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def write_stack(root: Path, name: str, **versions: str) -> Path:
    """``configs/stacks/NAME.toml``: this environment with other versions of some packages."""
    frozen = copy.deepcopy(frozen_here(Path(os.environ["FLEET_CACHE"])))
    for package, version in versions.items():
        frozen["packages"][package] = {"version": version, "record_sha256": OTHER}
    stack = Stack.model_validate({"python": str(python_in(root, name))} | frozen)
    file = root / "configs" / "stacks" / f"{name}.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(to_toml(stack))
    return file


@dataclass(frozen=True)
class World:
    """What replays of one stack find. ``offset``: added to logits of contracts that are no control;
    ``racy``: drawn anew for every process; ``patches``: what other code of that stack does, by name
    of a method of the engine."""

    versions: Mapping[str, str] = field(default_factory=dict)
    offset: float = 0.0
    racy: bool = False
    patches: Mapping[str, Callable[..., Any]] = field(default_factory=dict)


@dataclass
class StackLauncher(FakeLauncher):
    """``worlds``: name of a stack -> what its replays find."""

    worlds: Mapping[str, World] = field(default_factory=dict)
    world: World = World()

    def within(self, around: Surroundings) -> StackLauncher:
        view = copy.copy(self)
        name = Path(str(around.python)).name.removesuffix("-python")
        view.world = self.worlds.get(name, World())
        return view

    def start(self, *args: Any, **kwargs: Any) -> FakeRunning:
        made = super().start(*args, **kwargs)
        return _Elsewhere(**vars(made), world=self.world)


@dataclass
class _Elsewhere(FakeRunning):
    world: World = World()

    def result(self, deadline_s: float) -> str:
        control = self.task.contract_name.startswith("control-")
        number = float(self.number) if self.world.racy else 0.0
        offset = 0.0 if control else self.world.offset + number
        with ExitStack() as around:
            around.enter_context(_installed(self.world.versions))
            around.enter_context(_shifted(offset))
            for name, code in {} if control else self.world.patches.items():
                around.enter_context(patch.object(SyntheticEngine, name, code))
            return super().result(deadline_s)


@contextmanager
def _installed(versions: Mapping[str, str]) -> Iterator[None]:
    found = dict(probe_once())
    found |= {n: {"version": v, "record_sha256": OTHER} for n, v in versions.items()}
    every = {name: package["version"] for name, package in found.items()}
    listed = {n: v for n, v in everything_once().items() if n not in every}
    with (
        patch.object(campaigns, "_packages", lambda: dict(sorted(found.items()))),
        patch.object(software, "others", lambda _: listed),
    ):
        yield


@cache
def everything_once() -> dict[str, str]:
    return software.others(())


@cache
def probe_once() -> dict[str, dict[str, str]]:
    return probe.packages()


@contextmanager
def _shifted(offset: float) -> Iterator[None]:
    own = SyntheticEngine._logits

    def shifted(self: SyntheticEngine, context: Any) -> list[float]:
        return [value + offset for value in own(self, context)]

    with patch.object(SyntheticEngine, "_logits", shifted):
        yield
