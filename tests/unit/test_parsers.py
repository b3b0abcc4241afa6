"""Parsers: what each reads, what it refuses to read, and how a file becomes one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fleet.contract import parsers
from fleet.contract.canonical import sha256
from fleet.contract.parsers import load_parser
from fleet.errors import ContractError

HERE = Path(__file__).parent
ABCD = {"options": ["A", "B", "C", "D"], "answer": "B"}


@pytest.mark.parametrize(
    ("raw", "letter"),
    [
        ("B", "B"),
        (" B\n", "B"),
        ("B.", "B"),
        ("B. Paris", "B"),
        ("B) Paris", "B"),
        ("(B)", "B"),
        ("**B**", "B"),
        ("[B]", "B"),
        ("'C'", None),
        ("The answer is B", "B"),
        ("The answer is: D.", "D"),
        ("Answer: A", "A"),
        ("The answer is A because it is", "A"),
        ("Option A fits", "A"),
        ("A", "A"),
        ("A. dog", "A"),
        ("(A) dog", "A"),
        ("A\nTokyo", "A"),
        ("A dog is an animal. B", "B"),
        ("A dog ran away", None),
        ("I think C", "C"),
        ("I think A or B", None),
        ("A or B", None),
        ("B and C", None),
        ("(B) or (C)", None),
        ("A/B", None),
        ("A, B, C", None),
        ("B or B", "B"),
        ("B, not A", "B"),
        ("B, I think", "B"),
        ("E", None),
        ("E. B", "B"),
        ("Banana", None),
        ("b", None),
        ("B-flat", None),
        ("A's", None),
        ("B1", None),
        ("\u00c9B", None),
        ("", None),
    ],
)
def test_the_letter_parser(raw: str, letter: str | None) -> None:
    assert load_parser("letter", HERE).parse(raw, ABCD) == letter


def test_without_options_the_letters_are_a_to_j() -> None:
    parse = load_parser("letter", HERE).parse
    assert parse("J", {"answer": "J"}) == "J"
    assert parse("K", {"answer": "J"}) is None
    assert parse("I am sure: H", {"answer": "H"}) == "H"


@pytest.mark.parametrize(
    ("raw", "number"),
    [
        ("42", "42"),
        ("The answer is 42.", "42"),
        ("-7 degrees", "-7"),
        ("\u22127", "-7"),
        ("$5", "5"),
        ("-$5", "-5"),
        ("$-5", "-5"),
        ("$1,234.50.", "1234.50"),
        ("1,234,567", "1234567"),
        ("1,2345", "1"),
        ("12,50", "12"),
        ("3.14", "3.14"),
        (".5", ".5"),
        ("1990-95", "1990"),
        ("7 or 8", "7"),
        ("- 5", "5"),
        ("H2O has 3 atoms", "3"),
        ("5km", "5"),
        ("seven", None),
        ("", None),
    ],
)
def test_the_number_parser(raw: str, number: str | None) -> None:
    assert load_parser("number", HERE).parse(raw, {"answer": "1"}) == number


def test_numbers_are_equal_exactly_or_not_at_all() -> None:
    is_correct = load_parser("number", HERE).is_correct
    assert is_correct("12.0", {"answer": "12"})
    assert is_correct("1234", {"answer": "$1,234"})
    assert not is_correct("12.0000000001", {"answer": "12"})
    assert not is_correct("12", {"answer": "twelve"})


def test_the_text_parser_takes_everything_but_white_space() -> None:
    parser = load_parser("text", HERE)
    assert parser.parse("  two words \n", {"answer": "x"}) == "two words"
    assert parser.parse(" \n", {"answer": "x"}) is None
    assert parser.is_correct("two words", {"answer": "two words "})
    assert not parser.is_correct("Two words", {"answer": "two words"})


@pytest.mark.parametrize("name", parsers.NAMED)
def test_a_named_parser_is_pinned_by_the_bytes_of_its_one_file(name: str) -> None:
    source = Path(parsers.__file__).with_name(f"{name}.py").read_bytes()
    assert load_parser(name, HERE).digest == sha256(source)


SHOUT = b'"""Shouts."""\n\n\ndef parse(raw, record):\n    return raw.upper() or None\n'


def test_a_file_is_looked_up_beside_the_contract_and_gold_equality_is_the_default(
    tmp_path: Path,
) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "shout.py").write_bytes(SHOUT)
    for near in (tmp_path, tmp_path / "contract.toml"):
        parser = load_parser("file:p/shout.py", near)
        assert parser.name == "file:p/shout.py"
        assert parser.parse("b", {}) == "B"
        assert parser.is_correct("B ", {"answer": " B"})
        assert not parser.is_correct("b", {"answer": "B"})


def test_line_endings_do_not_change_the_digest(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(SHOUT)
    (tmp_path / "b.py").write_bytes(SHOUT.replace(b"\n", b"\r\n"))
    a, b = (load_parser(f"file:{name}.py", tmp_path) for name in "ab")
    assert a.digest == b.digest == sha256(SHOUT)


def test_two_files_of_one_name_stay_two_parsers_and_leave_no_compiled_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    for folder, answer in (("one", "1"), ("two", "2")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "p.py").write_text(f"def parse(raw, record):\n    return '{answer}'\n")
    one, two = (load_parser(f"file:{folder}/p.py", tmp_path) for folder in ("one", "two"))
    assert (one.parse("", {}), two.parse("", {})) == ("1", "2")
    assert one.digest != two.digest
    assert not list(tmp_path.rglob("*.pyc"))


def test_an_edited_file_is_a_new_parser_at_once(tmp_path: Path) -> None:
    path = tmp_path / "p.py"
    path.write_bytes(SHOUT)
    before = load_parser("file:p.py", tmp_path)
    path.write_bytes(SHOUT.replace(b"upper", b"lower"))
    after = load_parser("file:p.py", tmp_path)
    assert (before.parse("Ab", {}), after.parse("Ab", {})) == ("AB", "ab")


def test_a_parser_may_bring_its_own_is_correct_and_dataclasses(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Found:\n    text: str\n"
        "def parse(raw, record):\n    return Found(raw).text\n"
        "def is_correct(parsed, record):\n    return True\n"
    )
    assert load_parser("file:p.py", tmp_path).is_correct("x", {"answer": "y"})


@pytest.mark.parametrize(
    ("source", "key", "got"),
    [
        ("x = 1\n", "parse", "no such function"),
        ("parse = 3\n", "parse", "no such function"),
        ("def parse(r, c): return r\nis_correct = 3\n", "is_correct", "3"),
        ("def parse(\n", "line 1", "never closed"),
        ("import no_such_module_here\n", "", "ModuleNotFoundError"),
        ("1 / 0\n", "", "ZeroDivisionError"),
        ("# coding: nonsense\n", "line", "nonsense"),
    ],
)
def test_a_file_that_is_no_parser_is_refused(
    tmp_path: Path, source: str, key: str, got: str
) -> None:
    path = tmp_path / "p.py"
    path.write_text(source)
    with pytest.raises(ContractError) as caught:
        load_parser("file:p.py", tmp_path)
    assert caught.value.where == str(path)
    assert caught.value.key.startswith(key)
    assert got in caught.value.got
    assert "parser guide" in caught.value.fix


def test_an_unknown_name_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ContractError) as caught:
        load_parser("leter", tmp_path)
    assert "letter, number, text" in caught.value.expected
    assert caught.value.fix == 'did you mean "letter"?'
    with pytest.raises(ContractError) as caught:
        load_parser("file:no.py", tmp_path)
    assert "No such file" in caught.value.got
