"""Software stacks as the driver sees them: can a replay run there, and what is there to freeze.

A Python executable is asked in a process of its own, before anything is planned, and an image when
it is frozen. Ray takes workers of its own version and Python only; fleet comes with the driver, by
a folder that holds nothing else, so that no package of the driver's environment can stand in for
one of the stack's.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import fleet
from fleet.contract.canonical import sha256
from fleet.contract.stack import LoadedStack, Stack
from fleet.errors import StackError
from fleet.schedule.containers import VARIABLES, asking
from fleet.schedule.launcher import Surroundings

ASK_S = 300.0
"""How long an environment may take to tell: its packages may lie on a slow disk."""

_PROGRAM = """
import json, runpy, sys
sys.path.pop(0)
from importlib import metadata
found = {"python": "%d.%d.%d" % sys.version_info[:3]}
if found["python"] == sys.argv[1]:
    try:
        found["ray"] = metadata.version("ray")
    except metadata.PackageNotFoundError:
        found["ray"] = None
print(json.dumps(found))
sys.stdout.flush()
if found.get("ray") == sys.argv[2]:
    runpy.run_module("fleet.replay.environment", run_name="__main__")
"""


@dataclass(frozen=True)
class Told:
    """What an environment says of itself: as :meth:`Stack.frozen`; distribution -> requirements."""

    frozen: dict[str, Any]
    requires: dict[str, list[str]]


def source_folder(cache: Path) -> Path:
    """A folder that holds the driver's own package fleet, and nothing else."""
    package = Path(fleet.__file__).resolve().parent
    folder = cache.absolute() / "source" / sha256(str(package).encode()).hex()[:12]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        (folder / "fleet").symlink_to(package)
    except FileExistsError:
        return folder
    return folder


def surroundings(loaded: LoadedStack, cache: Path) -> Surroundings:
    """Where its replays run."""
    stack = loaded.stack
    if loaded.python is not None:
        variables = {"PYTHONPATH": str(source_folder(cache))}
        return Surroundings(python=loaded.python, variables=variables)
    if stack.image is not None:
        return Surroundings(image=stack.image, variables=VARIABLES)
    return Surroundings(labels=stack.labels or {})


def require_usable(loaded: LoadedStack, cache: Path) -> None:
    """Raise what keeps every replay from it; an image and a pool are asked by their first replay.

    Raises:
        StackError: no such Python, another Ray or Python, or something that fleet needs is missing.
    """
    if loaded.python is not None:
        ask(loaded.python, str(loaded.path), cache)


def ask(python: str, where: str, cache: Path) -> Told:
    """What this environment is.

    Args:
        python: its executable.
        where: who names it, for messages.
        cache: where fleet's own source folder is made.

    Raises:
        StackError: see :func:`require_usable`.
    """
    given = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    given["PYTHONPATH"] = str(source_folder(cache))
    return _told(_answer([python], given, where), python, where)


def ask_image(image: str, where: str) -> Told:
    """What this image is, by podman on this machine.

    Args:
        image: its name, as podman knows it.
        where: who names it, for messages.

    Raises:
        UsageError: there is no podman.
        StackError: see :func:`require_usable`.
    """
    return _told(_answer(asking(image), os.environ, where, "image"), image, where, "image")


def _told(found: Mapping[str, Any], asked: str, where: str, key: str = "python") -> Told:
    mine = {"Python": platform.python_version(), "Ray": metadata.version("ray")}
    theirs = {"Python": found["python"], "Ray": found.get("ray", mine["Ray"])}
    for name, wanted in mine.items():
        if theirs[name] != wanted:
            got = f"{theirs[name] or 'none'} in {asked}"
            fix = f"make it with {name} {wanted}: one Ray driver takes no other"
            raise StackError(where, key, f"{name} {wanted}, as the driver", got, fix)
    if found["faults"]:
        fix = "install what fleet needs there (pyproject.toml)"
        raise StackError(where, key, "all that a replay imports", found["faults"][0], fix)
    return Told(found["software"], found["requires"])


def _answer(
    command: Sequence[str], given: Mapping[str, str], where: str, key: str = "python"
) -> dict[str, Any]:
    """What the Python that this command line starts says; ``given``: its variables."""
    asked, versions = command[-1], (platform.python_version(), metadata.version("ray"))
    try:
        done = subprocess.run(
            [*command, "-c", _PROGRAM, *versions],
            env=dict(given), capture_output=True, text=True, timeout=ASK_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        got = f"{asked}: {getattr(error, 'strerror', None) or error}"
        raise StackError(where, key, "a Python that runs", got, "correct the path") from error
    lines = done.stdout.splitlines()
    if not lines or done.returncode:
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        fix = "run it by hand"
        raise StackError(where, key, "a Python that answers", f"{asked}: {said}", fix)
    found: dict[str, Any] = {}
    for line in (lines[0], lines[-1]):
        found |= json.loads(line)
    return found


def freeze(python: str, where: str, cache: Path) -> str:
    """The TOML of the stack that this executable is.

    Raises:
        StackError: see :func:`ask`.
    """
    stack = Stack.model_validate({"python": python} | ask(python, where, cache).frozen)
    return to_toml(stack)


def freeze_image(image: str, where: str) -> str:
    """The TOML of the stack that this image is.

    Raises:
        UsageError, StackError: see :func:`ask_image`.
    """
    return to_toml(Stack.model_validate({"image": image} | ask_image(image, where).frozen))


def own_python() -> str:
    """The executable of this environment, not that which its link leads to."""
    return os.path.abspath(sys.executable)


def to_toml(stack: Stack) -> str:
    """A stack's file."""
    return "\n".join(_lines(stack)) + "\n"


def _lines(stack: Stack) -> Iterator[str]:
    yield "# Written by fleet stack freeze: a replay that finds anything else in effect is VOID."
    yield "schema = 1"
    for key in ("python", "image"):
        if (value := getattr(stack, key)) is not None:
            yield f"{key} = {_text(value)}"
    if stack.labels:
        labels = (f"{_text(name)} = {_text(value)}" for name, value in stack.labels.items())
        yield f"labels = {{ {', '.join(labels)} }}"
    yield from _table("facts", stack.facts.model_dump(exclude_none=True))
    yield "\n[packages]"
    for name, package in sorted(stack.packages.items()):
        pinned = f'version = {_text(package.version)}, record_sha256 = "{package.record_sha256}"'
        yield f"{_key(name)} = {{ {pinned} }}"
    yield from _table("others", stack.others)


def _table(name: str, values: Mapping[str, str]) -> Iterator[str]:
    if values:
        yield f"\n[{name}]"
        yield from (f"{_key(key)} = {_text(value)}" for key, value in values.items())


def _key(name: str) -> str:
    """Bare where TOML allows it."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _text(name)


def _text(value: str) -> str:
    """A basic string: what JSON escapes, TOML escapes alike."""
    return json.dumps(value, ensure_ascii=False)


def write(file: Path, text: str) -> Path:
    """A new file; its folder is made, and nothing is overwritten.

    Raises:
        StackError: there is one, or it cannot be written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as new:
            new.write(text)
    except OSError as error:
        got = error.strerror or str(error)
        expected = "a file that is not there yet"
        raise StackError(str(file), "", expected, got, "name another") from error
    return file
