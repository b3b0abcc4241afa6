"""A stack's TOML: one software environment, where replays find it, and what it was when frozen.

Strict like a contract. The place is a Python executable, a container image, or labels of nodes that
were prepared with it. What was frozen is held against what a replay finds in effect, so that a
verdict is about the stack that its name says. Knows no environment: reading one is not its work.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from fleet.contract.canonical import digest_json, to_text
from fleet.contract.config_file import Kind
from fleet.contract.model import Name, Table
from fleet.contract.named import list_files
from fleet.contract.variant import is_file
from fleet.errors import StackError

FOLDER = "stacks"

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Text = Annotated[str, Field(min_length=1)]


class Package(Table):
    """A package that can move a bit: its version, and a digest over the files of its RECORD."""

    version: Text
    record_sha256: Digest


class Facts(Table):
    """Software that is no package. What is left out did not apply where the stack was frozen, and
    is not asked."""

    python: Text
    glibc: Text | None = None
    os: Text | None = None
    driver: Text | None = None
    cuda: Text | None = None
    cublas: Text | None = None
    cudnn: Text | None = None


class Stack(Table):
    """The whole file. Exactly one of ``python``, ``image`` and ``labels`` says where it is;
    ``packages`` can move a bit, ``others`` are every further distribution."""

    python: Text | None = None
    image: Text | None = None
    labels: Annotated[dict[str, str], Field(min_length=1)] | None = None
    facts: Facts
    packages: Annotated[dict[Name, Package], Field(min_length=1)]
    others: dict[Name, Text] = Field(default_factory=dict)

    def frozen(self) -> dict[str, Any]:
        """What must be in effect, without the place: facts, packages, others."""
        return self.model_dump(mode="json", include={"facts", "packages", "others"})

    def versions(self) -> dict[str, str]:
        """Every distribution -> version."""
        pinned = {name: package.version for name, package in self.packages.items()}
        return dict(sorted((self.others | pinned).items()))


@dataclass(frozen=True)
class LoadedStack:
    """A stack and where it was read; ``python`` as a path that stands by itself, None without, or
    when it was not asked where it is."""

    name: str
    path: Path
    stack: Stack
    python: str | None = None

    @property
    def digest(self) -> str:
        """Of all that was frozen: two files of one environment have the same."""
        return to_text(digest_json({"format": 1, **self.stack.frozen()}))

    def to_task(self) -> dict[str, Any]:
        """What a replay is told of it."""
        return {"name": self.name, "digest": self.digest, "frozen": self.stack.frozen()}


class Change(NamedTuple):
    """One thing that two stacks have otherwise; None where a side has none. ``word``: package,
    other or fact."""

    word: str
    name: str
    base: str | None
    new: str | None

    def in_words(self) -> str:
        """``torch 2.12.0 -> 2.13.0``."""
        return f"{self.name} {self.base or 'absent'} -> {self.new or 'absent'}"


def list_stacks(search: Sequence[Path]) -> list[str]:
    """Names of all stacks in the search path, sorted."""
    return list_files(search, FOLDER)


def is_stack(name_or_file: str, search: Sequence[Path]) -> bool:
    """Is it a file, or the name of a stack in the search path?"""
    return is_file(name_or_file) or name_or_file in list_stacks(search)


def load_stack(
    name_or_file: str, search: Sequence[Path], environ: Mapping[str, str] | None = os.environ
) -> LoadedStack:
    """Load one stack by name or by file.

    Args:
        name_or_file: a name in the search path; with a ``/``, or ending in ``.toml``, a file.
        search: folders that hold ``stacks/``, first wins.
        environ: what ``$NAME`` in ``python`` stands for; None to read the stack and not find it.

    Raises:
        StackError: it cannot be found, read or understood.
    """
    path, stack = Kind(FOLDER, "stack").load(name_or_file, search, Stack, StackError)
    given = {"python": stack.python, "image": stack.image, "labels": stack.labels}
    places = [key for key, value in given.items() if value is not None]
    if len(places) != 1:
        got = " and ".join(places) or "none of them"
        fix = 'keep one; python = ".venv/bin/python" is the usual one'
        raise StackError(str(path), "", "one of python, image and labels", got, fix)
    both = sorted(stack.packages.keys() & stack.others.keys())
    if both:
        got = f"{both[0]} in both"
        raise StackError(str(path), "others", "each package once", got, "freeze it again")
    python = None if environ is None else _python(stack.python, path, environ)
    return LoadedStack(path.stem, path, stack, python)


_NAMED = re.compile(r"\$(\w+|\{\w+\})")


def _python(text: str | None, path: Path, environ: Mapping[str, str]) -> str | None:
    """Beside the file when it is relative. A link stays one: it is what makes an environment."""
    if text is None:
        return None

    def value(found: re.Match[str]) -> str:
        name = found[1].strip("{}")
        if name not in environ:
            fix = f"export {name}, or write the path"
            raise StackError(str(path), "python", f"a path; ${name} set", "it is not set", fix)
        return environ[name]

    spelled = Path(_NAMED.sub(value, text)).expanduser()
    return os.path.abspath(path.parent / spelled)


def changes(base: Stack, new: Stack) -> list[Change]:
    """What the two have otherwise: packages that can move a bit first, then others, then facts.

    A package of one version and two contents is named with the beginnings of its digests.
    """
    return [*_packages(base, new), *_flat("other", base.others, new.others), *_facts(base, new)]


def _packages(base: Stack, new: Stack) -> Iterator[Change]:
    for name in sorted(base.packages.keys() | new.packages.keys()):
        one, other = base.packages.get(name), new.packages.get(name)
        if one == other:
            continue
        alike = one is not None and other is not None and one.version == other.version
        yield Change("package", name, _shown(one, alike), _shown(other, alike))


def _shown(package: Package | None, whole: bool) -> str | None:
    if package is None:
        return None
    return f"{package.version} ({package.record_sha256[:12]})" if whole else package.version


def _facts(base: Stack, new: Stack) -> Iterator[Change]:
    yield from _flat("fact", base.facts.model_dump(), new.facts.model_dump())


def _flat(word: str, base: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    for name in sorted(base.keys() | new.keys()):
        if base.get(name) != new.get(name):
            yield Change(word, name, base.get(name), new.get(name))


def differences(frozen: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """What is in effect and was not frozen so: one line each, none where all agrees.

    Args:
        frozen: see :meth:`Stack.frozen`.
        found: the same, as read in the process.
    """
    asked = {name: value for name, value in frozen["facts"].items() if value is not None}
    told = [
        f"{name} {found['facts'].get(name) or 'not applicable'}, frozen {value}"
        for name, value in asked.items()
        if found["facts"].get(name) != value
    ]
    for table in ("packages", "others"):
        for name in sorted(frozen[table].keys() | found[table].keys()):
            here, there = found[table].get(name), frozen[table].get(name)
            if here != there:
                told.append(f"{name} {_whole(here)}, frozen {_whole(there)}")
    return told


def _whole(package: Any) -> str:
    if isinstance(package, Mapping):
        return f"{package['version']} ({str(package['record_sha256'])[:12]})"
    return "absent" if package is None else str(package)
