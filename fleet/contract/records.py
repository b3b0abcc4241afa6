"""JSON Lines to records, strictly: one object a line, no key twice, no NaN, unique ids.

Python's JSON reader forgives duplicate keys, NaN and lone surrogates; here each is an error with
its line number, because two readers that forgive differently would ask two different questions.
Knows no file: it takes bytes, so that a worker can check the bytes it read itself.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

from fleet.contract.wording import shown
from fleet.errors import DatasetError


class _Refused(ValueError):
    """A line that JSON allows, or Python's reader does, and a dataset does not.

    ``args`` = (expected, got).
    """


def split_lines(data: bytes) -> tuple[bytes, ...]:
    """The lines of a JSONL file as bytes, without newlines; the last one may lack its newline."""
    lines = data.split(b"\n")
    return tuple(lines[:-1] if lines[-1] == b"" else lines)


def parse_records(
    data: bytes, where: str
) -> tuple[tuple[Mapping[str, Any], ...], tuple[bytes, ...]]:
    """Records in file order, and each one's line as bytes.

    Args:
        data: the JSONL file's bytes.
        where: its name, for messages.

    Raises:
        DatasetError: the first line that is wrong, with its number.
    """
    pairs = list(stream_records(split_lines(data), where))
    return tuple(record for record, _ in pairs), tuple(line for _, line in pairs)


def stream_records(lines: Iterable[bytes], where: str) -> Iterator[tuple[Mapping[str, Any], bytes]]:
    """Each line's record and the line, one at a time, checked like :func:`parse_records`."""
    first_seen: dict[str, int] = {}
    for number, (record, line) in enumerate(reread_records(lines, where), 1):
        earlier = first_seen.setdefault(record["id"], number)
        if earlier != number:
            got = f"{record['id']!r} again, first on line {earlier}"
            raise _wrong(where, number, "an id of its own", got, "rename or remove one of the two")
        yield record, line
    if not first_seen:
        raise DatasetError(where, "", "at least one record", "an empty file", "add records")


def reread_records(lines: Iterable[bytes], where: str) -> Iterator[tuple[Mapping[str, Any], bytes]]:
    """The same for lines whose ids were found distinct before: holds no id."""
    for number, line in enumerate(lines, 1):
        yield _line(line, number, where), line


def _line(line: bytes, number: int, where: str) -> Mapping[str, Any]:
    if not line.strip():
        raise _wrong(where, number, "a JSON object", "a blank line", "remove the line")
    try:
        record = _decode(line)
        _check_fields(record)
    except UnicodeDecodeError as error:
        got = f"a byte that is not UTF-8 at position {error.start + 1}"
        raise _wrong(where, number, "UTF-8 text", got, "save the file as UTF-8") from error
    except json.JSONDecodeError as error:
        got = f"{error.msg} at column {error.colno}"
        raise _wrong(where, number, "a JSON object", got, f"correct line {number}") from error
    except _Refused as refused:
        expected, got = refused.args
        raise _wrong(where, number, expected, got, f"correct line {number}") from None
    return record


def _wrong(where: str, number: int, expected: str, got: str, fix: str) -> DatasetError:
    return DatasetError(where, f"line {number}", expected, got, fix)


def _decode(line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(
            line.decode("utf-8"),
            object_pairs_hook=_object,
            parse_constant=_constant,
            parse_float=_float,
            parse_int=_int,
        )
        json.dumps(record, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise _Refused("a JSON object", "brackets nested too deep") from None
    except UnicodeEncodeError:
        raise _Refused("Unicode text", "half of a surrogate pair (\\uD800 to \\uDFFF)") from None
    if not isinstance(record, dict):
        raise _Refused("a JSON object", shown(record) if record is not None else "null")
    return record


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _Refused("each key once in an object", f"the key {key!r} twice")
        found[key] = value
    return found


def _constant(word: str) -> NoReturn:
    raise _Refused("finite numbers", word)


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _Refused("finite numbers", f"{text}, which is too large for a float")
    return value


def _int(text: str) -> int:
    """Python refuses to read integers of more than 4300 digits."""
    try:
        return int(text)
    except ValueError:
        raise _Refused("numbers of a sane size", f"{len(text)} digits") from None


def _check_fields(record: Mapping[str, Any]) -> None:
    for field in ("id", "answer"):
        if field not in record:
            raise _Refused(f'a field "{field}"', f"only {', '.join(record) or 'an empty object'}")
        value = record[field]
        if not isinstance(value, str):
            got = "null" if value is None else shown(value)
            raise _Refused(f'a string as "{field}"', got)
        if not value.strip():
            raise _Refused(f'a non-empty string as "{field}"', shown(value))
