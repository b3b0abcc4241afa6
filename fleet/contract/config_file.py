"""One strict way to read a TOML file of the config path into its model, for all kinds but contracts.

A contract extends another and merges tables; every other file stands alone. Whatever cannot be
understood is refused with file, key and fix. Knows no kind of file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import ValidationError

from fleet.contract.explain import explain
from fleet.contract.model import Table
from fleet.contract.named import find_file
from fleet.contract.source import checked_toml
from fleet.errors import UsageError

T = TypeVar("T", bound=Table)

OWN = ("schema",)
"""Keys of the file itself."""


@dataclass(frozen=True)
class Kind(Generic[T]):
    """What is read: the ``model`` of one file in ``folder``, called ``word`` in messages; what is
    wrong with it is raised as ``error``."""

    folder: str
    word: str
    model: type[T]
    error: type[UsageError]

    def load(self, name_or_file: str, search: Sequence[Path]) -> tuple[Path, T]:
        """Where it was read, and what it says.

        Args:
            name_or_file: a name in the search path; with a ``/``, or ending in ``.toml``, a file.
            search: folders that hold ``folder``, first wins.

        Raises:
            UsageError: of this kind: it cannot be found, read or understood.
        """
        path = find_file(name_or_file, search, self.folder, self.word, self.error)
        raw = checked_toml(path, self.model, OWN, self.error)
        tables = {key: value for key, value in raw.items() if key not in OWN}
        try:
            return path, self.model.model_validate(tables)
        except ValidationError as error:
            raise explain(error, tables, lambda _: str(path), self.model, self.error) from None
