"""From landed bytes to a summary: parts, rows and what one pass over them counts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fleet.errors import EvidenceError
from fleet.evidence.landing import Landing
from fleet.evidence.rows import check_columns, rows
from fleet.evidence.summary import STAGE_COLUMNS
from fleet.evidence.tally import tally_rows
from tests.landing_builder import (
    build_landing,
    cut,
    drop_column,
    make_record,
    null_column,
    other_row,
    remake,
    rewrite_part,
)
from tests.unit.forged_landing import (
    ARMS,
    A,
    landed,
    rewrite_manifest,
    void,
    vouch,
)

# parts and rows


def first_part(landing: Landing) -> Path:
    return landing.parts(A.attempt)[0]


def test_a_part_edited_after_the_fact_is_void(tmp_path: Path) -> None:
    landing = landed(tmp_path)
    rewrite_part(first_part(landing), lambda rows: [r | {"raw_answer": "B"} for r in rows])
    assert void(landing, "evidence-altered", "part-00000.parquet was edited").rows == 10


def test_a_part_that_is_gone_or_came_later_is_void(tmp_path: Path) -> None:
    landing = landed(tmp_path)
    extra = first_part(landing).with_name("part-00009.parquet")
    extra.write_bytes(first_part(landing).read_bytes())
    void(landing, "evidence-altered", "part-00009")
    extra.unlink()
    first_part(landing).unlink()
    assert void(landing, "evidence-altered", "on disk").rows == 6


def test_a_part_cut_short_is_void_and_its_rows_are_not_counted(tmp_path: Path) -> None:
    landing = landed(tmp_path)
    cut(first_part(landing), 100)
    assert void(landing, "evidence-altered").rows == 6
    vouch(landing)
    void(landing, "evidence-altered", "not Parquet")


@pytest.mark.parametrize("column", ["step_logits_sha256", "raw_answer", "sample_id", "arm"])
def test_a_column_that_is_missing_is_missing_evidence(tmp_path: Path, column: str) -> None:
    landing = landed(tmp_path)
    drop_column(first_part(landing), column)
    vouch(landing)
    void(landing, "missing-evidence", f"no column {column}")


@pytest.mark.parametrize(
    "column", ["step_logits_sha256", "parsed_answer", "is_correct", "nonfinite", "sample_id", "arm"]
)
def test_a_null_is_missing_evidence_and_never_a_value(tmp_path: Path, column: str) -> None:
    landing = landed(tmp_path)
    null_column(first_part(landing), column)
    vouch(landing)
    void(landing, "missing-evidence", "NULL")


def test_a_null_inside_a_list_is_missing_evidence(tmp_path: Path) -> None:
    landing = landed(tmp_path)
    table = make_record(A.attempt, "current", 0, "s0").to_row()
    digests = [None, *table["step_logits_sha256"][1:]]

    part = first_part(landing)
    old = pq.read_table(part)
    schema = pa.schema(
        [
            pa.field(f.name, pa.list_(pa.binary(32)) if f.name == "step_logits_sha256" else f.type)
            for f in old.schema
        ],
        metadata=old.schema.metadata,
    )
    changed = [r | {"step_logits_sha256": digests} for r in old.to_pylist()]
    pq.write_table(pa.Table.from_pylist(changed, schema=schema), part)
    with pytest.raises(EvidenceError, match="step_logits_sha256 is NULL"):
        list(rows([part], in_order=True))


EDITS: list[tuple[Callable[[list[Any]], list[Any]], str, str]] = [
    (lambda r: r[1:], "sample-set", "1 missing of 10: controlled/s00000"),
    (lambda r: [*r, r[0]], "sample-set", "1 doubled of 10"),
    (lambda r: r[:5], "sample-set", "5 missing of 10"),
    (lambda r: [], "sample-set", "10 missing of 10"),
    (lambda r: [*r, replace(r[0], sample_id="x")], "sample-set", "1 unknown of 10: controlled/x"),
    (lambda r: [*r, replace(r[0], arm="third")], "sample-set", "1 unknown of 10: third/s00000"),
    (lambda r: [replace(r[0], sample_id="s00001"), *r[1:]], "sample-set", "missing"),
    (lambda r: [replace(r[0], position=1), replace(r[1], position=0), *r[2:]],
     "sample-set", "another's position"),
    (lambda r: [replace(r[0], attempt="b" * 16), *r[1:]], "evidence-altered", "another attempt"),
]  # fmt: skip


@pytest.mark.parametrize(("edit", "code", "words"), EDITS)
def test_every_declared_sample_is_there_exactly_once(
    tmp_path: Path, edit: Any, code: str, words: str
) -> None:
    """The worker vouches for these rows, and still they are not what was planned."""
    whole = landed(tmp_path / "whole")
    landing = build_landing(tmp_path / "landing", [replace(A, state="FAILED", edit=edit)])

    def complete(raw: dict[str, Any]) -> None:
        good = json.loads(whole.manifest(A.attempt).read_bytes())
        raw.update(state="COMPLETE", cause=None, roots=good["roots"], arm_roots=good["arm_roots"])

    rewrite_manifest(landing, complete)
    void(landing, code, words)


def test_roots_that_the_rows_do_not_give_are_void(tmp_path: Path) -> None:
    landing = landed(tmp_path)
    rewrite_manifest(landing, lambda raw: raw["roots"].update(logits="sha256:" + "0" * 64))
    void(landing, "evidence-altered", "do not give the manifest's roots")


# one pass over rows


def tallied(tmp_path: Path, edit: Any = None, **row: Any) -> Any:
    spec = replace(A, ends="open", edit=edit or (lambda records: records))
    landing = landed(tmp_path, spec)
    parts = landing.parts(A.attempt)
    if row:
        for part in parts:
            rewrite_part(part, lambda rows: [r | row for r in rows])
    return tally_rows(parts, ARMS, in_order=True)


@pytest.mark.parametrize(
    ("row", "code", "words"),
    [
        ({"generated_token_count": 3}, "missing-evidence", "3 steps"),
        ({"step_logits_sha256": []}, "missing-evidence", "2 steps"),
        ({"generated_token_ids": [], "generated_token_count": 0, "step_logits_sha256": []},
         "missing-evidence", "no decode step"),
        ({"raw_answer": "other"}, "evidence-altered", "does not match the row"),
        ({"prompt_text": "other"}, "evidence-altered", "prompt_sha256"),
        ({"prompt_ids": [1]}, "evidence-altered", "prompt_ids_sha256"),
        ({"full_sequence_sha256": b"\0" * 32}, "evidence-altered", "does not match"),
        ({"generated_token_ids": [9, 9]}, "evidence-altered", "does not match"),
        ({"is_correct": True, "parsed_answer": "Z"}, "evidence-altered", "prediction_sha256"),
        ({"logits_sha256": b"\0" * 32}, "evidence-altered", "logits_sha256"),
    ],
)  # fmt: skip
def test_a_row_that_contradicts_itself_is_found(
    tmp_path: Path, row: dict[str, Any], code: str, words: str
) -> None:
    with pytest.raises(EvidenceError) as raised:
        tallied(tmp_path, **row)
    assert raised.value.code == code
    assert words in raised.value.text


def test_power_counts_what_was_really_asked_and_answered(tmp_path: Path) -> None:
    def edit(records: list[Any]) -> list[Any]:
        ended = replace(
            remake(records[0], tokens=(2,)), margin_ulps=(0,), margin_logits=(0.0,), nonfinite=3
        )
        endless = replace(
            records[1], stop="length", margin_logits=(float("nan"), 0.25), margin_ulps=(5, 5)
        )
        again = remake(records[2], prompt=records[1].prompt_text)
        mute = replace(records[3], unparsed=True, parsed_answer="")
        return [ended, endless, again, mute, *records[4:]]

    power = tallied(tmp_path, edit=edit).power
    assert (power.records, power.decode_steps, power.ended_at_step_1) == (10, 19, 1)
    assert (power.unparsed, power.truncated, power.nonfinite, power.exact_ties) == (1, 1, 3, 1)
    assert power.smallest_margin == 0.0
    assert power.distinct_outputs == 6
    assert (power.distinct_inputs, power.duplicates) == (9, 1)


def test_the_same_input_twice_is_no_second_trial(tmp_path: Path) -> None:
    def edit(records: list[Any]) -> list[Any]:
        twin = replace(
            remake(records[1], prompt=records[0].prompt_text),
            raw_record_sha256=records[0].raw_record_sha256,
        )
        return [records[0], twin, *records[2:]]

    power = tallied(tmp_path, edit=edit).power
    assert (power.distinct_inputs, power.duplicates) == (9, 1)


def test_a_logits_digest_moves_the_logits_column_and_no_other(tmp_path: Path) -> None:
    plain = tallied(tmp_path / "a").arms["controlled"]
    other = tallied(tmp_path / "b", edit=other_row(0, logits="other")).arms["controlled"]
    moved = [name for name in STAGE_COLUMNS if plain.columns[name] != other.columns[name]]
    assert moved == ["logits_sha256"]
    assert [g for g in plain.roots if plain.roots[g] != other.roots[g]] == ["logits"]


def test_columns_of_another_type_or_format_are_altered_evidence(tmp_path: Path) -> None:
    part = first_part(landed(tmp_path))
    check_columns([part])

    table = pq.read_table(part)
    wide = table.set_column(2, "position", table["position"].cast(pa.int64()))
    pq.write_table(wide.replace_schema_metadata(table.schema.metadata), part)
    with pytest.raises(EvidenceError, match="position is"):
        check_columns([part])
    pq.write_table(table.replace_schema_metadata({"fleet.record_format": "3"}), part)
    with pytest.raises(EvidenceError, match="record format '3'"):
        check_columns([part])
