"""One contract file as read: TOML syntax, the file's own keys, and no unknown key.

Knows nothing of other files. Keeps: what this version cannot understand is refused, not skipped.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.contract.keys import FILE_KEYS, UnknownKey, unknown_keys
from fleet.contract.model import SCHEMA, Contract, Table
from fleet.contract.wording import NAME_WORDS, shown
from fleet.errors import ContractError, UsageError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_LINE = re.compile(r"\(at line (\d+), column \d+\)")


@dataclass(frozen=True)
class Source:
    """``raw`` is the file's tables without the keys of the file itself."""

    path: Path
    raw: Mapping[str, Any]
    extends: str | None

    def holds(self, key: str) -> bool:
        """Whether the dotted ``key``, list positions left out, is written in this file."""
        return _reaches(self.raw, key.partition("[")[0])

    def raw_seen_from(self, folder: Path) -> dict[str, Any]:
        """The tables, with relative paths spelled from ``folder``: they stay beside this file."""
        raw = dict(self.raw)
        if self.path.parent == folder:
            return raw
        arms, model = raw.get("arms"), raw.get("model")
        if isinstance(arms, dict):
            raw["arms"] = {
                n: self._moved(arm, "parser", "file:", folder) for n, arm in arms.items()
            }
        if model is not None:
            raw["model"] = self._moved(model, "checkpoint", "path:", folder)
        return raw

    def _moved(self, table: Any, key: str, scheme: str, folder: Path) -> Any:
        text = table.get(key) if isinstance(table, dict) else None
        if not isinstance(text, str) or not text.startswith(scheme):
            return table
        target = self.path.parent / Path(text.removeprefix(scheme)).expanduser()
        return {**table, key: scheme + Path(os.path.relpath(target, folder)).as_posix()}


def _reaches(table: Any, key: str) -> bool:
    """Arm names may hold dots, so every split of ``key`` is tried."""
    if not isinstance(table, Mapping):
        return False
    if key in table:
        return True
    cuts = [position for position, letter in enumerate(key) if letter == "."]
    return any(key[:cut] in table and _reaches(table[key[:cut]], key[cut + 1 :]) for cut in cuts)


def read_source(path: Path) -> Source:
    """Read and check one file on its own.

    Raises:
        ContractError: unreadable, not TOML, written for newer code, or holding unknown keys.
    """
    raw = checked_toml(path, Contract, FILE_KEYS, ContractError)
    extends = raw.get("extends")
    if extends is not None and not (isinstance(extends, str) and NAME.fullmatch(extends)):
        raise ContractError(
            str(path),
            "extends",
            NAME_WORDS,
            shown(extends),
            'write extends = "NAME", without .toml',
        )
    tables = {key: value for key, value in raw.items() if key not in FILE_KEYS}
    return Source(path, tables, extends)


def checked_toml(
    path: Path, model: type[Table], own: tuple[str, ...], kind: type[UsageError]
) -> dict[str, Any]:
    """The file's tables: no newer schema, no key that neither the model nor the format (``own``)
    has, no number that no identity can hold. Faults are raised as ``kind``."""
    raw = read_toml(path, kind)
    _check_schema(path, raw, kind)
    _check_keys(path, unknown_keys(raw, model, own), kind)
    _check_finite(path, raw, kind)
    return raw


def read_toml(path: Path, kind: type[UsageError]) -> dict[str, Any]:
    """The file's tables; faults of the file or its syntax are raised as ``kind``."""
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        got = error.strerror or type(error).__name__
        raise kind(str(path), "", "a readable file", got, "check its permissions") from error
    except UnicodeDecodeError as error:
        got = f"a byte at offset {error.start} that is not UTF-8"
        raise kind(str(path), "", "UTF-8 text", got, "save the file as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise _syntax(path, str(error), kind) from None


def _syntax(path: Path, message: str, kind: type[UsageError]) -> UsageError:
    line = _LINE.search(message)
    key = f"line {line[1]}" if line else "end of file"
    got = _LINE.sub("", message).strip()
    if "twice" in message or "Cannot overwrite" in message or "Cannot mutate" in message:
        expected, fix = "each key, table and arm once", "remove or rename the second one"
    else:
        expected, fix = "valid TOML", f"correct {key}"
    return kind(str(path), key, expected, f"{got!r}", fix)


def _check_schema(path: Path, raw: Mapping[str, Any], kind: type[UsageError]) -> None:
    """First of all: a newer file may well hold keys that this code does not know."""
    schema = raw.get("schema", SCHEMA)
    if type(schema) is not int or schema < 1:
        raise kind(str(path), "schema", "an integer >= 1", shown(schema), "remove it")
    if schema > SCHEMA:
        raise kind(
            str(path),
            "schema",
            f"{SCHEMA} or lower",
            f"{schema}: the file is newer than the code",
            "update fleet, or use a file written for this version",
        )


def _check_keys(path: Path, unknown: Sequence[UnknownKey], kind: type[UsageError]) -> None:
    if not unknown:
        return
    first, others = unknown[0], [key.path for key in unknown[1:]]
    more = f" (also unknown: {', '.join(others)})" if others else ""
    raise kind(
        str(path),
        first.path,
        f"one of {', '.join(sorted(first.known))}",
        f"an unknown key{more}",
        f'did you mean "{first.near}"?' if first.near else "remove it",
    )


def _check_finite(path: Path, raw: Mapping[str, Any], kind: type[UsageError]) -> None:
    """TOML can write nan and inf; no identity can hold them."""
    for key, value in _floats(raw, ""):
        if not math.isfinite(value):
            raise kind(str(path), key, "a finite number", f"{value}", f"correct {key}")


def _floats(value: Any, key: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, float):
        yield key, value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _floats(item, f"{key}.{name}".removeprefix("."))
    elif isinstance(value, list):
        for position, item in enumerate(value):
            yield from _floats(item, f"{key}[{position}]")
