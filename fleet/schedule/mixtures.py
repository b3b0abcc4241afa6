"""Environments between two stacks, built by a real resolver and kept by what they hold.

uv is given every package of the mixture by its version, so all that is left to it is to agree or to
refuse; what it builds is asked again before it is used. An environment is found by the digest of
its set, so no set is built twice. Options of uv, such as where to find packages, are the user's:
``UV_FIND_LINKS``, ``UV_INDEX_URL``. Knows no replay and no verdict.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fleet.contract.canonical import digest_json
from fleet.contract.stack import LoadedStack, Stack
from fleet.errors import CampaignStopped, UsageError
from fleet.schedule.stacks import ask, to_toml

BUILD_S = 3600.0
"""How long one environment may take: some packages are compiled."""

REFUSAL, REASON = "No solution found", "depends on"
"""What uv says when packages do not go together, and which one says so (uv, "Resolution")."""

MISSING = ("there is no version of", "was not found in")
"""Of uv's refusals those that are about what it can find: both ends of a mixture hold each of its
versions, so it looks in other places than where those came from."""

_DONE = "stack.toml"
"""Written last: a folder without it was not finished."""


@dataclass(frozen=True)
class Refused:
    """The resolver would not have this set; its own words."""

    words: str


def uv() -> str:
    """The resolver.

    Raises:
        UsageError: it is not installed.
    """
    beside = Path(sys.executable).parent
    found = shutil.which("uv", path=str(beside)) or shutil.which("uv")
    if found is None:
        fix = "pip install 'fleet[stacks]'"
        raise UsageError("--bisect", "", "uv, which resolves and installs packages", "none", fix)
    return found


def build(
    versions: Mapping[str, str], unfit: Iterable[str], like: LoadedStack, cache: Path
) -> LoadedStack | Refused:
    """The environment with exactly these versions.

    Args:
        versions: distribution -> version: all of them.
        unfit: packages that an end of the two holds against what another declares.
        like: a stack whose Python it is to have.
        cache: where environments are kept.

    Raises:
        CampaignStopped: it failed for another reason than what goes together, such as a version
            that is not to be had.
    """
    digest = digest_json({"python": like.stack.facts.python, "versions": dict(versions)}).hex()
    folder = cache.absolute() / "stacks" / digest[:16]
    python = str(folder / "bin" / "python")
    if not (folder / _DONE).exists():
        refused = _install(versions, unfit, str(like.python), folder)
        if refused is not None:
            return refused
    told = ask(python, str(folder), cache)
    stack = Stack.model_validate({"python": python} | told.frozen)
    odd = _odd(versions, stack.versions())
    if odd:
        return Refused(f"it installs more than the two stacks hold: {odd}")
    (folder / _DONE).write_text(to_toml(stack))
    return LoadedStack(f"between-{digest[:8]}", folder / _DONE, stack, python)


def _odd(wanted: Mapping[str, str], found: Mapping[str, str]) -> str:
    names = sorted(n for n in wanted.keys() | found.keys() if wanted.get(n) != found.get(n))
    return ", ".join(f"{name} {found.get(name) or 'absent'}" for name in names)


def _install(
    versions: Mapping[str, str], unfit: Iterable[str], python: str, folder: Path
) -> Refused | None:
    _run([uv(), "venv", "--quiet", "--clear", "--python", python, str(folder)])
    pins, over = folder / "set.txt", folder / "unfit.txt"
    pins.write_text("".join(f"{name}=={version}\n" for name, version in versions.items()))
    forced = [name for name in sorted(unfit) if name in versions]
    over.write_text("".join(f"{name}=={versions[name]}\n" for name in forced))
    to = str(folder / "bin" / "python")
    try:
        _run([uv(), "pip", "install", "--quiet", "--python", to, "-r", str(pins),
              "--overrides", str(over)])  # fmt: skip
    except CampaignStopped as error:
        said = " ".join(str(error).split())
        if REFUSAL not in said:
            raise
        if REASON in said and not any(words in said for words in MISSING):
            return Refused(said[:500])
        fix = "uv looks where UV_FIND_LINKS and UV_INDEX_URL say"
        raise CampaignStopped(f"{said[:500]}; {fix}; run again to go on") from error
    return None


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CampaignStopped(f"uv: {error}; run again to go on") from error
    if done.returncode:
        raise CampaignStopped(f"uv {command[1]}: {done.stderr.strip()[-2000:]}")


def same_content(mixed: Stack, ends: Iterable[Stack]) -> list[str]:
    """Packages that were built anew with other files than in the end that has their version."""
    known = {(n, p.version): p.record_sha256 for end in ends for n, p in end.packages.items()}
    return [
        name for name, package in mixed.packages.items()
        if known.get((name, package.version)) not in (None, package.record_sha256)
    ]  # fmt: skip
