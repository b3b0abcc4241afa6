"""Files of the config path by name: ``FOLDER/NAME.toml``, in the first folder that has it.

Knows no file's content.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from fleet.contract.keys import nearest
from fleet.contract.source import NAME
from fleet.contract.variant import is_file
from fleet.errors import UsageError


def list_files(search: Sequence[Path], folder: str) -> list[str]:
    """Names of all such files in the search path, sorted."""
    return sorted({path.stem for root in search for path in (root / folder).glob("*.toml")})


def find_file(
    name_or_file: str, search: Sequence[Path], folder: str, what: str, kind: type[UsageError]
) -> Path:
    """One of them.

    Args:
        name_or_file: a name in the search path; with a ``/``, or ending in ``.toml``, a file.
        search: folders that hold ``folder``, first wins.
        folder: ``fleets`` and so on.
        what: one of them is called in a message.
        kind: of error where there is none.
    """
    if is_file(name_or_file):
        path = Path(name_or_file)
        if path.is_file():
            return path.resolve()
        raise kind(str(path), "", f"a {what} file", "no such file", "check the path")
    named = NAME.fullmatch(name_or_file)
    tried = [root / folder / f"{name_or_file}.toml" for root in search if named]
    found = next((path for path in tried if path.is_file()), None)
    if found is not None:
        return found.resolve()
    known = list_files(search, folder)
    close = nearest(name_or_file, known)
    raise kind(
        os.pathsep.join(str(root / folder) for root in search),
        "",
        f"a {what} named {name_or_file!r}",
        f"only these: {', '.join(known) or '(none)'}",
        f'did you mean "{close}"?' if close else "write one: configs/README.md says how",
    )
