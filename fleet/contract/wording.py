"""What a key of a file wants and what the file holds, in words for a person.

Reads the model's types and bounds, so the words cannot drift from the rules. Knows no
file. Never shows the validator's own terms.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from fleet.contract.keys import named_tables, table_of
from fleet.contract.model import Contract, Table

Location = tuple[str | int, ...]
NAME_WORDS = "a name of letters, digits, dots, dashes and underscores"

PATTERNS: Mapping[str, str] = {
    "model.checkpoint": '"hf:REPO", "path:FOLDER" or "demo:NAME"',
    "model.code_sha256": '"sha256:" and 64 hexadecimal digits',
    "determinism.cublas_workspace": 'a string like ":4096:8"',
    "dataset.name": NAME_WORDS,
    "dataset.clock": 'an ISO time with its zone, like "2026-01-01T00:00:00Z"',
    "arms.*.parser": 'a parser name such as "letter", or "file:PATH.py"',
    "control.inject": '"racy_linear:MODULE" or "ordered_linear:MODULE"',
    "night.contracts.*": "the name of a contract, or NAME@BACKEND",
    "nodes.contracts.*": "the name of a contract, or NAME@BACKEND",
    "nodes.label": "the value of a node's label: letters, digits, dots, dashes and underscores",
    "nodes.platform.packages.*": 'a version, like "2.13.0"',
    "others.*": 'a version, like "2.13.0"',
    "packages.*.record_sha256": "64 hexadecimal digits",
    "rules.contracts.*": 'the name of a contract, or names with wildcards, like "smollm2-*"',
    "rules.fleet": NAME_WORDS,
    "rules.vary.*": 'a claim, like "none", "order" or "batch,order"',
    "rules.platforms.packages.*": 'a version, like "2.13.0"',
}
"""What a string that must have a certain form looks like, in words; ``*`` stands for any arm, any
package or any item of a list."""


def dotted(location: Location) -> str:
    """``("decoding", "stop_token_ids", 0)`` -> ``decoding.stop_token_ids[0]``."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def shown(value: Any) -> str:
    """A raw TOML value with its type: ``'8' (string)``."""
    if isinstance(value, bool):
        return f"{str(value).lower()} (boolean)"
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return f"{value.isoformat()} (a TOML date; put it in quotation marks)"
    names = {str: "string", int: "integer", float: "float"}
    if type(value) in names:
        return f"{value!r} ({names[type(value)]})"
    kind = "table" if isinstance(value, Mapping) else "list"
    return f"{json.dumps(value, default=str)} ({kind})"


def wanted(location: Location, model: type[Table] = Contract) -> str:
    """What the model wants at ``location``, in words."""
    annotation: Any = model
    metadata: tuple[Any, ...] = ()
    generic: list[str] = []
    for part in location:
        if isinstance(part, int):
            annotation, metadata = get_args(_present(annotation))[0], ()
            generic += [] if table_of(annotation) else ["*"]
            continue
        table = table_of(annotation)
        if named_tables(annotation) or table is None:
            annotation, metadata = table or _item_of(annotation), ()
            generic.append("*")
            continue
        field: FieldInfo = table.model_fields[part]
        annotation, metadata = field.annotation, tuple(field.metadata)
        generic.append(part)
    return PATTERNS.get(".".join(generic)) or _type_words(annotation, metadata)


def _item_of(annotation: Any) -> Any:
    """``dict[Name, X]`` -> X: tables of names hold plain values too."""
    annotation = _present(annotation)
    annotation = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    return get_args(annotation)[1] if get_origin(annotation) is dict else None


def _present(annotation: Any) -> Any:
    """``X | None`` -> X: TOML cannot write None, a key is left out instead."""
    if annotation is None or get_origin(annotation) in (Annotated, Literal, tuple, dict):
        return annotation
    parts = [part for part in get_args(annotation) if part is not type(None)]
    return parts[0] if parts else annotation


def _type_words(annotation: Any, metadata: tuple[Any, ...]) -> str:
    annotation = _present(annotation)
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type_words(parts[0], _bounds_of(parts[1:]))
    if origin is Literal:
        words = [json.dumps(part) for part in parts]
        return words[0] if len(words) == 1 else f"one of {', '.join(words)}"
    if origin is tuple and table_of(annotation):
        return "tables in double brackets, at least one"
    if origin is tuple:
        return f"a list, each item {_type_words(parts[0], ())}" + _bound_words(metadata)
    if origin is dict:
        return (
            "a table of names" if table_of(annotation) is None else "at least one table [arms.NAME]"
        )
    plain = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}
    return plain.get(annotation, "a table") + _bound_words(metadata)


def _bounds_of(parts: tuple[Any, ...]) -> tuple[Any, ...]:
    found: list[Any] = []
    for part in parts:
        found.extend(part.metadata if isinstance(part, FieldInfo) else [part])
    return tuple(found)


def _bound_words(metadata: tuple[Any, ...]) -> str:
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    words = [
        f"{sign} {getattr(part, name)}"
        for part in metadata
        for name, sign in signs.items()
        if getattr(part, name, None) is not None
    ]
    if any(getattr(part, "min_length", None) for part in metadata):
        words.append("that is not empty")
    return " " + " and ".join(words) if words else ""
