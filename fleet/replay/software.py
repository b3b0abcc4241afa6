"""The software of this process's environment: what a stack freezes, and a replay finds in effect.

Read as the platform is, and more of it: every distribution counts here, also those that are thought
to move no bit. Knows no stack file.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from typing import Any

from fleet.contract.stack import differences
from fleet.errors import AttemptVoid
from fleet.evidence.platform import NOT_APPLICABLE

FACTS = ("python", "glibc", "os", "driver", "cuda", "cublas", "cudnn")
"""Facts of the platform that software decides."""

NOT_COUNTED = ("fleet", "pip", "uv", "wheel")
"""What installs, and what is the same on every stack: fleet comes with the driver."""


def software(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What a stack holds, of the platform facts as this process read them."""
    told = {name: _text(facts[name]) for name in FACTS if facts[name] != NOT_APPLICABLE}
    packages = facts["packages"]
    return {"facts": told, "packages": packages, "others": others(packages)}


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {item}" for key, item in sorted(value.items()))
    return str(value)


def others(counted: Iterable[str]) -> dict[str, str]:
    """Every installed distribution that is not counted already -> its version."""
    found: dict[str, str] = {}
    for name, dist in _installed():
        if name not in (*counted, *NOT_COUNTED):
            found.setdefault(name, dist.version)  # of two on the path the first is imported
    return dict(sorted(found.items()))


def _installed() -> Iterator[tuple[str, metadata.Distribution]]:
    """By name. What a package carries inside itself and puts on the path once it is imported
    (``ray/thirdparty_files``, ``setuptools/_vendor``) is part of it, and its version counts."""
    path = [entry for entry in sys.path if not _is_in_a_package(entry)]
    for dist in metadata.distributions(path=path):
        if name := canonical(dist.metadata["Name"] or ""):
            yield name, dist


def _is_in_a_package(entry: str) -> bool:
    """No, where nobody may look: Ray puts the driver's path behind that of every worker."""
    return os.path.exists(os.path.join(os.path.dirname(os.path.normpath(entry)), "__init__.py"))


def canonical(name: str) -> str:
    """A distribution's name, however it is spelled (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def require_frozen(stack: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """This process is of the stack that the driver named.

    Raises:
        AttemptVoid: stack-differs, naming what does.
    """
    told = differences(stack["frozen"], software(facts))
    if told:
        more = f" and {len(told) - 1} more" if len(told) > 1 else ""
        words = f"stack {stack['name']}: in effect {told[0]}{more}"
        raise AttemptVoid("stack-differs", words, {"differences": told[:50]})


def requirements() -> dict[str, list[str]]:
    """Distribution -> what it declares to require here, extras left out."""
    from packaging.requirements import Requirement

    found: dict[str, list[str]] = {}
    for name, dist in _installed():
        if name not in found:
            declared = [Requirement(text) for text in dist.requires or ()]
            here = [r for r in declared if r.marker is None or r.marker.evaluate({"extra": ""})]
            found[name] = [f"{canonical(r.name)}{r.specifier}" for r in here]
    return found
