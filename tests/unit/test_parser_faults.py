"""A parser file is foreign code: whatever it does, the fault is named and nothing else breaks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fleet.contract.parsers import Parser, load_parser
from fleet.errors import ContractError, ParserFault

RECORD: dict[str, Any] = {"id": "q1", "answer": "A", "options": ["A", "B"]}


def parser_of(folder: Path, source: str) -> Parser:
    (folder / "mine.py").write_text(source, encoding="utf-8")
    return load_parser("file:mine.py", folder)


@pytest.mark.parametrize(
    "source",
    [
        "import sys\nsys.exit(0)",
        "raise SystemExit('bye')",
        "class Odd(Exception): pass\nraise Odd('at import')",
    ],
)
def test_a_parser_that_leaves_or_raises_at_import_is_a_contract_error(
    tmp_path: Path, source: str
) -> None:
    with pytest.raises(ContractError, match="a file that can be imported"):
        parser_of(tmp_path, source + "\ndef parse(raw, record): return raw")


def test_a_parser_that_prints_at_import_leaves_standard_output_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parser_of(tmp_path, "print('hello')\ndef parse(raw, record): return raw")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return 0", "parse returned int"),
        ("return b'A'", "parse returned bytes"),
        ("return {}['']", "parse raised KeyError"),
        ("import sys; sys.exit(3)", "parse raised SystemExit"),
        (r"return '\ud800'", "no UTF-8"),
    ],
)
def test_a_parser_that_returns_or_raises_what_it_must_not_is_named(
    tmp_path: Path, body: str, words: str
) -> None:
    parser = parser_of(tmp_path, f"def parse(raw, record): {body}")
    with pytest.raises(ParserFault, match=words):
        parser.answer("A", RECORD)


def test_a_process_without_memory_is_no_fault_of_the_parser(tmp_path: Path) -> None:
    with pytest.raises(MemoryError):
        parser_of(tmp_path, "def parse(raw, record): raise MemoryError").answer("A", RECORD)


def test_is_correct_must_say_yes_or_no(tmp_path: Path) -> None:
    source = "def parse(raw, record): return raw\ndef is_correct(parsed, record): return 1"
    with pytest.raises(ParserFault, match="is_correct returned int"):
        parser_of(tmp_path, source).answer("A", RECORD)


def test_a_parser_cannot_change_the_gold_answer(tmp_path: Path) -> None:
    source = (
        "def parse(raw, record):\n"
        "    record['answer'] = raw\n"
        "    record['options'].append(raw)\n"
        "    return raw"
    )
    assert parser_of(tmp_path, source).answer("B", RECORD) == ("B", False)
    assert RECORD == {"id": "q1", "answer": "A", "options": ["A", "B"]}


def test_an_empty_answer_is_an_answer_and_none_is_not(tmp_path: Path) -> None:
    assert parser_of(tmp_path, "def parse(raw, record): return ''").answer("x", RECORD) == (
        "",
        False,
    )
    assert parser_of(tmp_path, "def parse(raw, record): return None").answer("x", RECORD) == (
        None,
        False,
    )
