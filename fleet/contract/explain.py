"""Turns what validation found into one message: file, key, expected, got, next step.

Says nothing in the validator's own terms. Which file a key came from is told by the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from fleet.contract.model import Contract, Table
from fleet.contract.rules import RULES
from fleet.contract.wording import NAME_WORDS, Location, dotted, shown, wanted
from fleet.errors import ContractError, UsageError


def explain(
    error: ValidationError,
    raw: Mapping[str, Any],
    file_of: Callable[[str], str],
    model: type[Table] = Contract,
    kind: type[UsageError] = ContractError,
) -> UsageError:
    """The first fault as one of ``kind``; the keys of the others are named in ``got``.

    Args:
        error: what validation raised.
        raw: the merged raw tables.
        file_of: dotted key -> the file that decides it.
        model: what they were validated as.
        kind: of error.
    """
    faults = error.errors(include_url=False)
    key, expected, got, fix = _words(faults[0], raw, model)
    others = [_words(fault, raw, model)[0] for fault in faults[1:]]
    if others:
        got += f" (further faults: {', '.join(dict.fromkeys(others))})"
    return kind(file_of(key), key, expected, got, fix)


def _words(fault: Any, raw: Mapping[str, Any], model: type[Table]) -> tuple[str, str, str, str]:
    location: Location = fault["loc"]
    if fault["type"] == "value_error":
        return _rule_words(str(fault["ctx"]["error"]), location, raw)
    if location[-1] == "[key]":
        return dotted(location[:-1]), NAME_WORDS, f"the name {fault['input']!r}", "rename it"
    key, expected = dotted(location), wanted(location, model)
    if fault["type"] == "missing":
        table = f"[{key.rpartition('.')[0]}]" if "." in key else "the file"
        return key, expected, "no such key", f"add it to {table}: everything is explicit"
    return key, expected, shown(fault["input"]), _edit(key, fault["input"], expected)


def _edit(key: str, value: Any, expected: str) -> str:
    unquoted = expected.startswith(("an integer", "a number", "true"))
    if isinstance(value, str) and unquoted:
        return f"write {key.rpartition('.')[2]} without quotation marks"
    return f"correct {key}"


def _rule_words(
    raised: str, location: Location, raw: Mapping[str, Any]
) -> tuple[str, str, str, str]:
    rule = next((rule for rule in RULES if rule.raised in raised), None)
    if rule is None:
        return dotted(location), "keys that agree", raised, "correct one of them"
    parts = [f"{key.rpartition('.')[2]} = {_at(raw, key)}" for key in rule.shown]
    return rule.key, rule.expected, ", ".join(parts), rule.fix


def _at(raw: Mapping[str, Any], key: str) -> str:
    value: Any = raw
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return "(not given)"
        value = value[part]
    return shown(value)
