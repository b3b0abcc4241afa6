"""Whole numbers behind a demo checkpoint's name: ``NAME?layers=4&vocabulary=4096``.

Knows the form and the limits that a family states, no checkpoint. Every spelling that is accepted
has one canonical name, with all parameters written out; nothing is rounded or ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from fleet.errors import CheckpointError

_NUMBER = re.compile(r"[1-9][0-9]{0,8}")


@dataclass(frozen=True)
class Parameter:
    """A number from ``least`` to ``most`` in steps of ``step``."""

    default: int
    least: int
    most: int
    step: int = 1

    def allows(self, value: int) -> bool:
        """Whether a name may say this."""
        return self.least <= value <= self.most and value % self.step == 0

    def __str__(self) -> str:
        kind = f"a multiple of {self.step}" if self.step > 1 else "a whole number"
        return f"{kind} from {self.least} to {self.most}"


Parameters = Mapping[str, Parameter]


def parse(name: str, known: Parameters) -> tuple[str, dict[str, int]]:
    """The name before the question mark, and a value for every known parameter.

    Raises:
        CheckpointError: a part that is no KEY=NUMBER, an unknown or doubled key, a bad number.
    """
    base, mark, query = name.partition("?")
    values: dict[str, int] = {}
    for part in query.split("&") if mark else ():
        key, _, text = part.partition("=")
        if key not in known:
            allowed = " or ".join(f"{k}=NUMBER" for k in known) or "no parameter"
            raise _error(name, key, allowed, repr(part), f"write demo:{canonical(base, {}, known)}")
        if key in values:
            raise _error(name, key, "each key once", "it twice", f"remove one {key}=")
        values[key] = _number(name, key, text, known[key])
    return base, {key: values.get(key, one.default) for key, one in known.items()}


def canonical(base: str, values: Mapping[str, int], known: Parameters) -> str:
    """One name for all spellings of the same checkpoint."""
    words = [f"{key}={values.get(key, one.default)}" for key, one in known.items()]
    return f"{base}?{'&'.join(words)}" if words else base


def _number(name: str, key: str, text: str, rule: Parameter) -> int:
    if not _NUMBER.fullmatch(text) or not rule.allows(int(text)):
        fix = f"write {key}={rule.default}, or leave it out"
        raise _error(name, key, str(rule), repr(text), fix)
    return int(text)


def _error(name: str, key: str, expected: str, got: str, fix: str) -> CheckpointError:
    return CheckpointError(f"demo:{name}", key, expected, got, fix)
