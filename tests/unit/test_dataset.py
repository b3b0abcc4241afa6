"""Loading datasets: where they are found, what is pinned, and every kind of bad input."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fleet.contract.canonical import sha256, to_text
from fleet.contract.dataset import LoadedDataset, list_datasets, load_dataset, parse_records
from fleet.errors import DatasetError

GOOD = b'{"id": "a", "answer": "A", "question": "?"}\n{"id": "b", "answer": "B"}\n'
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def _write(data: bytes, extra: str = "", folder: Path = tmp_path) -> Path:
        (folder / "datasets").mkdir(parents=True, exist_ok=True)
        (folder / "datasets" / "d.jsonl").write_bytes(data)
        toml = folder / "datasets" / "d.toml"
        toml.write_text(f'file = "d.jsonl"\nsha256 = "{to_text(sha256(data))}"\n{extra}')
        return toml

    return _write


def load(tmp_path: Path) -> LoadedDataset:
    return load_dataset("d", [tmp_path])


def refused(data: bytes) -> DatasetError:
    with pytest.raises(DatasetError) as caught:
        parse_records(data, "d.jsonl")
    assert caught.value.where == "d.jsonl"
    return caught.value


def test_records_come_in_file_order_with_their_own_bytes(write: Write, tmp_path: Path) -> None:
    write(GOOD, 'description = "two"\nlicense = "CC0-1.0"\n')
    found = load(tmp_path)
    assert (found.name, found.ids) == ("d", ("a", "b"))
    assert found.raw == tuple(GOOD.splitlines())
    assert found.digest == sha256(GOOD)
    assert found.records[0]["question"] == "?"
    assert (found.path.name, found.file.name) == ("d.toml", "d.jsonl")


def test_a_missing_newline_at_the_end_of_the_file_loses_no_record() -> None:
    with_newline, without = parse_records(GOOD, "x"), parse_records(GOOD[:-1], "x")
    assert with_newline == without


def test_a_separator_that_is_no_newline_splits_no_line() -> None:
    records, raw = parse_records('{"id": "a", "answer": "x\u2028y"}\n'.encode(), "x")
    assert (len(records), records[0]["answer"]) == (1, "x\u2028y")
    assert raw[0].decode().endswith('y"}')


def test_the_folder_beside_the_contract_is_looked_at_first(write: Write, tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    write(GOOD, folder=near)
    write(GOOD.splitlines()[0], folder=far)
    (near / "contracts").mkdir()
    assert len(load_dataset("d", [far]).ids) == 1
    assert len(load_dataset("d", [far], near / "contracts" / "c.toml").ids) == 2
    assert len(load_dataset("d", [far], near / "contracts").ids) == 2
    assert len(load_dataset("d", [far], tmp_path / "else" / "c.toml").ids) == 1


def test_an_unknown_dataset_lists_what_exists_and_suggests_the_nearest(
    write: Write, tmp_path: Path
) -> None:
    write(GOOD)
    assert list_datasets([tmp_path]) == ["d"]
    for name in ("dd", "../d"):
        with pytest.raises(DatasetError) as caught:
            load_dataset(name, [tmp_path])
        assert caught.value.got == "only these: d"
    with pytest.raises(DatasetError, match='did you mean "d"'):
        load_dataset("dd", [tmp_path])


def test_a_changed_digest_shows_both_and_says_what_to_do(write: Write, tmp_path: Path) -> None:
    toml = write(GOOD)
    edited = GOOD.replace(b'"B"', b'"C"')
    (tmp_path / "datasets" / "d.jsonl").write_bytes(edited)
    with pytest.raises(DatasetError) as caught:
        load(tmp_path)
    error = caught.value
    assert (error.where, error.key) == (str(toml), "sha256")
    assert error.expected == to_text(sha256(GOOD))
    assert to_text(sha256(edited)) in error.got
    assert f'sha256 = "{to_text(sha256(edited))}"' in error.fix
    assert error.fix.startswith("review the change")


def test_a_file_that_changes_after_it_was_loaded_is_noticed_when_read_again(
    write: Write, tmp_path: Path
) -> None:
    write(GOOD)
    found = load(tmp_path)
    (tmp_path / "datasets" / "d.jsonl").write_bytes(GOOD.replace(b'"B"', b'"C"'))
    with pytest.raises(DatasetError, match="review the change"):
        list(found.stream())


def test_a_missing_jsonl_is_named(write: Write, tmp_path: Path) -> None:
    write(GOOD)
    (tmp_path / "datasets" / "d.jsonl").unlink()
    with pytest.raises(DatasetError) as caught:
        load(tmp_path)
    assert caught.value.key == "file"
    assert "d.jsonl" in caught.value.got


@pytest.mark.parametrize(
    ("text", "key", "got"),
    [
        ('file = "d.jsonl"\nsha265 = "x"\n', "sha265", "an unknown key"),
        ('file = "d.jsonl"\n', "sha256", "no such key"),
        ('sha256 = "sha256:00"\n', "file", "no such key"),
        ('file = "d.jsonl"\nsha256 = "sha256:00"\n', "sha256", "'sha256:00' (string)"),
        (f'file = "d.jsonl"\nsha256 = "sha256:{"z" * 64}"\n', "sha256", "zz"),
        ('file = 3\nsha256 = "x"\n', "file", "3 (integer)"),
        ("file = \n", "line 1", "Invalid value"),
        ('file = "a"\nfile = "b"\n', "line 2", "overwrite"),
    ],
)
def test_a_bad_toml_is_refused(write: Write, tmp_path: Path, text: str, key: str, got: str) -> None:
    toml = write(GOOD)
    toml.write_text(text)
    with pytest.raises(DatasetError) as caught:
        load(tmp_path)
    assert (caught.value.where, caught.value.key) == (str(toml), key)
    assert got in caught.value.got


@pytest.mark.parametrize(
    ("line", "expected", "got"),
    [
        (b'{"id": "b", "answer": "B"', "a JSON object", "column"),
        (b"not json", "a JSON object", "Expecting value at column 1"),
        (b'{"id": "b", "answer": "B"} {}', "a JSON object", "Extra data"),
        (b'["b"]', "a JSON object", "(list)"),
        (b"null", "a JSON object", "null"),
        (b"", "a JSON object", "a blank line"),
        (b"  \r", "a JSON object", "a blank line"),
        (b'{"id": "b", "id": "c", "answer": "B"}', "each key once", "'id' twice"),
        (b'{"id": "b", "answer": "B", "x": {"y": 1, "y": 1}}', "each key once", "'y' twice"),
        (b'{"id": "b", "answer": "B", "x": NaN}', "finite numbers", "NaN"),
        (b'{"id": "b", "answer": "B", "x": -Infinity}', "finite numbers", "-Infinity"),
        (b'{"id": "b", "answer": "B", "x": 1e999}', "finite numbers", "1e999"),
        (b'{"id": "b", "answer": "B", "x": 1' + b"0" * 5000 + b"}", "sane size", "5001 digits"),
        (b'{"id": "b", "answer": "\xe9"}', "UTF-8 text", "not UTF-8 at position 24"),
        (b'{"id": "b", "answer": "\\ud800"}', "Unicode text", "surrogate"),
        (b'{"id": "b", "answer": "B", "x": ' + b"[" * 200000 + b"}", "a JSON object", "nested"),
        (b'{"answer": "B"}', 'a field "id"', "only answer"),
        (b'{"id": "", "answer": "B"}', 'a non-empty string as "id"', "''"),
        (b'{"id": " ", "answer": "B"}', 'a non-empty string as "id"', "' '"),
        (b'{"id": 7, "answer": "B"}', 'a string as "id"', "7 (integer)"),
        (b'{"id": null, "answer": "B"}', 'a string as "id"', "null"),
        (b'{"id": "b"}', 'a field "answer"', "only id"),
        (b'{"id": "b", "answer": 2}', 'a string as "answer"', "2 (integer)"),
        (b'{"id": "b", "answer": ""}', 'a non-empty string as "answer"', "''"),
        (b"{}", 'a field "id"', "an empty object"),
    ],
)
def test_a_bad_line_is_refused_with_its_number(line: bytes, expected: str, got: str) -> None:
    error = refused(b'{"id": "a", "answer": "A"}\n' + line + b'\n{"id": "z", "answer": "A"}\n')
    assert error.key == "line 2"
    assert expected in error.expected
    assert got in error.got
    assert error.fix


def test_a_blank_line_at_the_end_is_refused_too() -> None:
    assert refused(GOOD + b"\n").key == "line 3"


def test_a_duplicate_id_names_both_lines() -> None:
    error = refused(GOOD + b'{"id": "a", "answer": "C"}\n')
    assert (error.key, error.expected) == ("line 3", "an id of its own")
    assert error.got == "'a' again, first on line 1"


def test_an_empty_dataset_is_refused() -> None:
    assert refused(b"").expected == "at least one record"
    assert refused(b"\n").got == "a blank line"
