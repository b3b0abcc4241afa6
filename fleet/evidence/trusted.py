"""Whose retractions count: key ids that somebody declared, each with a name.

    # configs/keys, or the file of --trusted-keys: a key id and who holds the key, one a line
    3f0c...64 hexadecimal digits  release team

A key that is not declared withdraws nothing, however well it signs. Knows no signature.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from fleet.errors import UsageError

FILE = "keys"
"""Name of the file in a folder of the config path."""

Trusted = dict[str, str]
"""Key id -> the name it was declared under."""

_LINE = re.compile(r"([0-9a-f]{64})\s+(\S.*)")


def trusted_keys(given: Path | None, search: Sequence[Path]) -> Trusted:
    """The keys of the file that was named, else of every ``keys`` file in the config path.

    Raises:
        UsageError: the named file cannot be read, or a line is no key.
    """
    if given is not None:
        return read_keys(given)
    found: Trusted = {}
    for folder in reversed(search):
        if (folder / FILE).is_file():
            found |= read_keys(folder / FILE)
    return found


def read_keys(file: Path) -> Trusted:
    """The keys of one file.

    Raises:
        UsageError: see :func:`trusted_keys`.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        got = getattr(error, "strerror", None) or "no text"
        raise UsageError(str(file), "", "a file of trusted keys", got, "pass another one") from (
            error
        )
    found: Trusted = {}
    for number, line in enumerate(lines, start=1):
        text = line.partition("#")[0].strip()
        match = _LINE.fullmatch(text)
        if match is not None:
            found[match[1]] = match[2].strip()
        elif text:
            raise UsageError(
                str(file), f"line {number}", "a key id (64 hexadecimal digits) and a name",
                repr(text[:80]), "fleet certificate keygen prints such a line",
            )  # fmt: skip
    return found
