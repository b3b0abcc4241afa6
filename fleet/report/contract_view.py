"""A contract as rows: every key, its value, and the file it came from (``contract show``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fleet.contract.load import LoadedContract


@dataclass(frozen=True)
class KeyRow:
    """``origin`` is a file name, or ``default``."""

    key: str
    value: Any
    origin: str


def contract_rows(loaded: LoadedContract) -> list[KeyRow]:
    """All keys in the order of the format."""
    body = loaded.contract.model_dump(mode="json")
    return [KeyRow(key, value, loaded.origin.get(key, "default")) for key, value in _flat(body)]


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
