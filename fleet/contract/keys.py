"""Finds keys of a file that its model does not have, before anything is merged.

A misspelled key would otherwise be dropped or hidden behind the base that a file extends, and the
run would promise something else than its author wrote. Knows the model's tables and no files.
Keeps: nothing that is written in a contract is ignored.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin

from fleet.contract.model import Contract, Table

FILE_KEYS = ("schema", "extends")
"""Keys of the file itself: they are read before the contract and are no part of it."""


@dataclass(frozen=True)
class UnknownKey:
    """``path`` is dotted; ``known`` are the keys that its table has."""

    path: str
    known: tuple[str, ...]

    @property
    def near(self) -> str | None:
        """The known key that is spelled most like this one."""
        return nearest(self.path.rpartition(".")[2], self.known)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The most similar of ``known``, or None when none is similar."""
    found = difflib.get_close_matches(word, sorted(known), n=1)
    return found[0] if found else None


def unknown_keys(
    raw: Mapping[str, Any], model: type[Table] = Contract, own: tuple[str, ...] = FILE_KEYS
) -> list[UnknownKey]:
    """Every key of ``raw`` that neither the model nor the file format (``own``) has."""
    return list(_unknown(raw, model, "", own))


def _unknown(
    raw: Mapping[str, Any], table: type[Table], prefix: str, extra: tuple[str, ...] = ()
) -> Iterator[UnknownKey]:
    known = (*table.model_fields, *extra)
    for key, value in raw.items():
        field = table.model_fields.get(key)
        if field is not None:
            yield from _inside(value, field.annotation, f"{prefix}{key}.")
        elif key not in extra:
            yield UnknownKey(prefix + key, known)


def _inside(value: Any, annotation: Any, prefix: str) -> Iterator[UnknownKey]:
    """Descend where both the file and the model have a table; wrong types are reported later."""
    inner = table_of(annotation)
    if inner is not None and isinstance(value, list):
        for position, item in enumerate(value):
            yield from _inside(item, inner, f"{prefix[:-1]}[{position}].")
    if inner is None or not isinstance(value, dict):
        return
    if not named_tables(annotation):
        yield from _unknown(value, inner, prefix)
        return
    for name, item in value.items():
        if isinstance(item, dict):
            yield from _unknown(item, inner, f"{prefix}{name}.")


def table_of(annotation: Any) -> type[Table] | None:
    """The table class inside ``Table``, ``Table | None``, ``tuple[Table, ...]`` or
    ``dict[Name, Table]``."""
    if isinstance(annotation, type) and issubclass(annotation, Table):
        return annotation
    found = (table_of(part) for part in get_args(annotation))
    return next((part for part in found if part is not None), None)


def named_tables(annotation: Any) -> bool:
    """Whether the tables are named by the user, as ``[arms.NAME]`` are."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return get_origin(annotation) is dict
