"""Filters and forms of what is read: what a filter asks, CSV as RFC 4180 has it, a wide matrix."""

from __future__ import annotations

import csv
import io
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleet.errors import UsageError
from fleet.evidence.landing import Landing
from fleet.judge.verdict import Verdict
from fleet.options import TableForm
from fleet.report.answers import Answers
from fleet.report.document import STATUS_COLUMNS, status_cells
from fleet.report.filters import Filters, narrowed
from fleet.report.matrix import Cell, Line, Matrix, matrix_cells, print_matrix
from fleet.report.screen import emit_csv
from fleet.report.status import StatusRow, status_rows
from fleet.store.open import open_reader
from tests.campaigns import places_in
from tests.unit.screens import shown

NOTHING: dict[str, Any] = dict.fromkeys(("model", "backend", "gpu", "since", "until"))
VERDICT = Verdict(
    contract="toy", execution_id="sha256:" + "0" * 64, platform="sha256:" + "1" * 64,
    verdict="PASS", state="PASS", required_grade="logits", scope="same-unit", reason="PASS",
)  # fmt: skip


def filters(**given: Any) -> Filters:
    return Filters.of(**NOTHING | {"packages": (), "states": ()} | given)


BODY = {
    "execution_part": {"quantization": {"backend": "awq_torch"}},
    "asked": {"checkpoint": "hf:Qwen/Qwen2.5-7B-Instruct-AWQ"},
}
FACTS = {"gpu_model": "NVIDIA H200", "packages": {"torch": {"version": "2.13.0"}}}


@pytest.mark.parametrize(
    ("given", "fits"),
    [
        ({"model": "qwen2"}, True),
        ({"model": "*AWQ"}, True),
        ({"model": "Qwen2"}, True),
        ({"model": "llama"}, False),
        ({"backend": "awq_*"}, True),
        ({"backend": "awq"}, False),
        ({"model": "qwen", "backend": "gptq_*"}, False),
    ],
)
def test_a_contract_is_found_by_model_and_backend(given: dict[str, Any], fits: bool) -> None:
    assert filters(**given).contract(BODY) is fits
    assert filters(**given).contract({}) is False


@pytest.mark.parametrize(
    ("given", "fits"),
    [
        ({"gpu": "H200"}, True),
        ({"gpu": "h1*"}, False),
        ({"packages": ("torch=2.13.0",)}, True),
        ({"packages": ("torch==2.13.0",)}, True),
        ({"packages": ("torch=2.13.*",)}, True),
        ({"packages": ("torch=2.1",)}, False),
        ({"packages": ("torch=2.13.0", "triton=3")}, False),
    ],
)
def test_a_platform_is_found_by_gpu_and_version(given: dict[str, Any], fits: bool) -> None:
    assert filters(**given).platform(FACTS) is fits
    assert filters(**given).platform(None) is False


def test_a_day_lasts_until_its_end_and_evidence_without_a_time_fits_no_time() -> None:
    noon = 1796040000.0  # 2026-11-30T12:00:00Z
    assert filters(since="2026-11-30", until="2026-11-30").time(noon)
    assert not filters(since="2026-12-01").time(noon)
    assert not filters(until="2026-11-29").time(noon)
    assert filters(since="2026-11-30T13:00+01:00").time(noon)
    assert not filters(until="2026-11-30T12:00Z").time(noon)
    assert filters().time(None) and not filters(since="2026-11-30").time(None)


@pytest.mark.parametrize(
    "given",
    [
        {"since": "yesterday"},
        {"until": "2026-13-01"},
        {"packages": ("torch",)},
        {"packages": ("torch=",)},
        {"packages": ("=1",)},
        {"states": ("GREEN",)},
    ],
)
def test_a_filter_that_is_none_is_a_usage_error(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="command line"):
        filters(**given)


def test_a_status_is_narrowed_and_what_is_not_known_fits_no_filter(
    campaigned: Path, tmp_path: Path
) -> None:
    shutil.copytree(campaigned, tmp_path / "copy")
    places = places_in(tmp_path / "copy")
    with open_reader(places.store) as store:
        answers = Answers(store, Landing.open(places.landing))
        rows = status_rows(answers, [], places.search, places.cache, time.time())

        def names(**given: Any) -> set[str]:
            found = narrowed(rows, filters(**given), answers, places.search)
            return {row.contract for row in found}

        assert names() == {row.contract for row in rows}
        assert names(states=("pass",)) >= {"toy", "other"}
        assert "smollm2-bf16" not in names(states=("PASS",))
        assert "tiny-awq-torch" in names(backend="awq_torch"), "its file says so"
        assert "toy" not in names(backend="awq_torch")
        assert "smollm2-bf16" in names(model="smollm2") and "toy" not in names(model="smollm2")
        assert names(gpu="H200") == set()
        assert "toy" in names(packages=("torch=*",)) and "smollm2-bf16" not in names(
            packages=("torch=*",)
        )
        assert names(until="2001-01-01") == set()


# forms


def test_csv_has_a_header_crlf_and_quotes_where_they_are_needed(tmp_path: Path) -> None:
    rows = [["a,b", 'say "x"', None, True, 0.5], ["two\nlines", "", 3, False, "-"]]
    emit_csv((("one", "two", "three", "four", "five"), rows), tmp_path / "out.csv")
    data = (tmp_path / "out.csv").read_bytes()
    assert data == (
        b'one,two,three,four,five\r\n"a,b","say ""x""",,true,0.5\r\n"two\nlines",,3,false,-\r\n'
    )
    read = list(csv.reader(io.StringIO(data.decode(), newline="")))
    assert read[1][:2] == ["a,b", 'say "x"'] and {len(row) for row in read} == {5}


def test_a_status_in_csv_has_every_column_of_every_row() -> None:
    rows = [
        StatusRow("toy", "", VERDICT.platform, "cpu", "PASS", VERDICT, 3.0, expires_at_s=0.0),
        StatusRow("new", "", "", "", "UNTESTED", None, None, "never tested"),
    ]
    header, cells = status_cells(rows)
    told = [dict(zip(header, row, strict=True)) for row in cells]
    assert header == STATUS_COLUMNS
    assert told[0]["expires_at"] == "1970-01-01T00:00:00Z" and told[0]["vary"] == "none"
    assert (told[1]["state"], told[1]["n"], told[1]["reason"]) == ("UNTESTED", 0, "never tested")


def test_two_forms_at_once_are_refused() -> None:
    with pytest.raises(UsageError, match="one form"):
        TableForm(as_json=True, as_csv=True).check()


def wide(lines: int = 30, platforms: int = 12) -> Matrix:
    """Every state, long names."""
    names = {
        f"sha256:{n:064x}": f"NVIDIA H200 of generation {n}, torch 2.{n}.0"
        for n in range(platforms)
    }
    states = ("PASS", "FAIL", "REGRESSED", "VOID", "STALE")
    label = "somebody-s-contract-with-a-name"

    def cell(line: int, column: int) -> Cell:
        if (line + column) % 6 == 5:
            return Cell((), 4)
        state = states[(line + column) % 6]
        units = ({"unit": "a"}, {"unit": "b"})
        verdict = replace(VERDICT, state=state, units=units)
        return Cell((StatusRow(label, "", "p", "", state, verdict, 3600.0 * 24 * line),), 4)

    rows = [
        Line(f"{label}-{n:02}", (), tuple(cell(n, p) for p in range(platforms)))
        for n in range(lines)
    ]
    return Matrix(names, tuple(rows))


@pytest.mark.parametrize(("width", "blocks"), [(80, 6), (120, 3), (200, 2), (300, 1)])
def test_a_matrix_of_30_by_12_is_read_at_any_width(width: int, blocks: int) -> None:
    text = shown(print_matrix, wide(), width)
    lines = text.splitlines()
    tables = [line for line in lines if line.startswith("matrix")]
    assert len(tables) == blocks
    told = [line for line in lines if "somebody-s-contract" in line]
    assert len(told) == 30 * len(tables), "no cell is folded into a second line"
    assert max(len(line) for line in told) <= width
    for number in range(12):
        assert any(line.startswith(f"P{number + 1}: NVIDIA H200") for line in lines)
    assert "REGRESSED 2/4 " in text and "PASS 2/4 " in text


def test_a_matrix_in_json_and_csv_has_every_cell() -> None:
    matrix = wide(2, 3)
    document = matrix.to_json()
    assert [len(line["cells"]) for line in document["contracts"]] == [3, 3]
    header, rows = matrix_cells(matrix)
    told = [dict(zip(header, row, strict=True)) for row in rows]
    assert len(told) == 6 and told[0]["state"] == "PASS" and told[0]["units_tested"] == 2
    untested = [row for row in matrix_cells(wide(1, 6))[1] if row[4] == "UNTESTED"]
    assert len(untested) == 1


def test_a_matrix_without_a_platform_says_so() -> None:
    text = shown(print_matrix, Matrix({}, (Line("toy", ("order",), ()),)))
    assert "toy, varied order: never tested" in text
