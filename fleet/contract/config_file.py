"""One strict way to read a TOML file of the config path into its model: all kinds but contracts.

A contract extends another and merges tables; every other file stands alone. Whatever cannot be
understood is refused with file, key and fix. Knows no kind of file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from pydantic import ValidationError

from fleet.contract.explain import explain
from fleet.contract.model import Table
from fleet.contract.named import find_file
from fleet.contract.source import checked_toml
from fleet.errors import UsageError

T = TypeVar("T", bound=Table)

OWN = ("schema",)
"""Keys of the file itself."""


class Kind(NamedTuple):
    """The folder of such files, and what one of them is called in a message."""

    folder: str
    word: str

    def load(
        self, name_or_file: str, search: Sequence[Path], model: type[T], wrong: type[UsageError]
    ) -> tuple[Path, T]:
        """Where it was read, and what it says.

        Args:
            name_or_file: a name in the search path; with a ``/``, or ending in ``.toml``, a file.
            search: folders that hold ``folder``, first wins.
            model: of the whole file.
            wrong: what every fault is raised as.

        Raises:
            UsageError: as ``wrong``: it cannot be found, read or understood.
        """
        path = find_file(name_or_file, search, self.folder, self.word, wrong)
        raw = checked_toml(path, model, OWN, wrong)
        tables = {key: value for key, value in raw.items() if key not in OWN}
        try:
            return path, model.model_validate(tables)
        except ValidationError as error:
            raise explain(error, tables, lambda _: str(path), model, wrong) from None
