"""Answer parsers: one file each, pinned by the digest of that file's bytes (CRLF read as LF).

A parser has ``parse(raw, record) -> str | None`` (None: no answer found) and may have
``is_correct(parsed, record) -> bool``; without it, correct means equal to the record's answer.
Knows no model. Keeps: the code that runs is the code that was digested, because both come from one
read of the file; no compiled copy is read or written. What a parser file imports is not in the
digest, so it should import the standard library only.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from fleet.contract.canonical import sha256
from fleet.contract.keys import nearest
from fleet.errors import ContractError, ParserFault

Parse = Callable[[str, Mapping[str, Any]], str | None]
IsCorrect = Callable[[str, Mapping[str, Any]], bool]

NAMED = ("letter", "number", "text")
_FOREIGN_FAULTS = (Exception, SystemExit)
"""A parser file is foreign code: whatever it raises is its fault, and is reported as such."""


@dataclass(frozen=True)
class Parser:
    """``name`` as the contract spells it, ``digest`` of its one file (32 bytes)."""

    name: str
    digest: bytes
    parse: Parse
    is_correct: IsCorrect

    def answer(self, raw: str, record: Mapping[str, Any]) -> tuple[str | None, bool]:
        """``(parsed answer or None, is it correct)``.

        The parser is handed copies of the record, so that it can change neither the gold answer
        nor what another arm sees.

        Raises:
            ParserFault: it raised, or returned another type than it must.
        """
        parsed = self._call("parse", self.parse, raw, deepcopy(dict(record)))
        if parsed is None:
            return None, False
        if type(parsed) is not str:
            raise ParserFault(f"parser {self.name}: parse returned {type(parsed).__name__}")
        correct = self._call("is_correct", self.is_correct, parsed, deepcopy(dict(record)))
        if type(correct) is not bool:
            raise ParserFault(f"parser {self.name}: is_correct returned {type(correct).__name__}")
        _require_utf8(self.name, parsed)
        return parsed, correct

    def _call(self, what: str, function: Callable[..., Any], *given: Any) -> Any:
        try:
            return function(*given)
        except MemoryError:  # the process has none left, whoever asked for it
            raise
        except _FOREIGN_FAULTS as error:
            raise ParserFault(
                f"parser {self.name}: {what} raised {type(error).__name__}: {error}"
            ) from error


def load_parser(spec: str, near: Path) -> Parser:
    """The parser that an arm names.

    Args:
        spec: a name in :data:`NAMED`, or ``file:`` and a path relative to the contract's folder.
        near: the contract file, or its folder.

    Raises:
        ContractError: unknown name, missing file, or a file that is no parser.
    """
    path = parser_file(spec, near)
    source = _source(spec, path, near).replace(b"\r\n", b"\n")
    digest = sha256(source)
    module = _execute(path, source, digest)
    parse = getattr(module, "parse", None)
    if not callable(parse):
        raise _no_parser(path, "parse", "a function parse(raw, record)", "no such function")
    is_correct = getattr(module, "is_correct", _equals_answer)
    if not callable(is_correct):
        expected = "a function is_correct(parsed, record), or none"
        raise _no_parser(path, "is_correct", expected, f"{is_correct!r}")
    return Parser(spec, digest, parse, is_correct)


def parser_file(spec: str, near: Path) -> Path:
    """Where the source of a parser lies; see :func:`load_parser`, which says what there may be.

    Raises:
        ContractError: an unknown name.
    """
    if spec.startswith("file:"):
        folder = near if near.is_dir() else near.parent
        return folder / spec.removeprefix("file:")
    if spec not in NAMED:
        close = nearest(spec, NAMED)
        raise ContractError(
            str(near),
            "parser",
            f'one of {", ".join(NAMED)}, or "file:PATH.py"',
            f"{spec!r}",
            f'did you mean "{close}"?' if close else "see the guide in configs/README.md",
        )
    return Path(__file__).with_name(f"{spec}.py")


def _source(spec: str, path: Path, near: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ContractError(
            str(near),
            "parser",
            "a readable file, relative to the contract's folder",
            f"{spec!r}: {path}: {error.strerror or type(error).__name__}",
            "correct the path or restore the file",
        ) from error


class _OneFile(importlib.abc.InspectLoader):
    """Runs source that is already in memory, and caches nothing."""

    def __init__(self, path: Path, source: bytes) -> None:
        self._path, self._source = path, source

    def get_source(self, fullname: str) -> str:
        return importlib.util.decode_source(self._source)

    def get_code(self, fullname: str) -> Any:
        return self.source_to_code(self._source, str(self._path))


def _execute(path: Path, source: bytes, digest: bytes) -> ModuleType:
    """The module's name holds its digest: two parsers of one file name never meet."""
    name = f"fleet_parser_{digest.hex()}"
    loader = _OneFile(path, source)
    module = importlib.util.module_from_spec(importlib.machinery.ModuleSpec(name, loader))
    sys.modules[name] = module
    try:
        with redirect_stdout(sys.stderr):  # standard output belongs to the command line's answer
            loader.exec_module(module)
    except SyntaxError as error:
        del sys.modules[name]
        raise _no_parser(path, f"line {error.lineno}", "Python", f"{error.msg}") from error
    except _FOREIGN_FAULTS as error:
        del sys.modules[name]
        got = f"{type(error).__name__}: {error}"
        raise _no_parser(path, "", "a file that can be imported", got) from error
    return module


def _no_parser(path: Path, key: str, expected: str, got: str) -> ContractError:
    return ContractError(str(path), key, expected, got, "see the parser guide in configs/README.md")


def _require_utf8(name: str, text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ParserFault(f"parser {name}: parse returned text that is no UTF-8") from error


def _equals_answer(parsed: str, record: Mapping[str, Any]) -> bool:
    return parsed.strip() == str(record["answer"]).strip()
