"""From landed bytes to a summary: every check has its cause, and none lets a wrong attempt through.

The landing is made by the product's writers; then one thing is changed. Where the worker itself is
meant to have done it, manifest and ledger vouch for the changed rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fleet.contract.canonical import canonical_json, sha256, to_text
from fleet.errors import EvidenceError
from fleet.evidence.landing import Landing, file_sha256
from fleet.evidence.ledger import START, Entry, chain_folder, read_chain
from fleet.evidence.manifest import Manifest, Part
from fleet.evidence.rows import check_columns, rows
from fleet.evidence.states import Cause
from fleet.evidence.summarise import summarise
from fleet.evidence.summary import STAGE_COLUMNS, AttemptSummary
from fleet.evidence.tally import tally_rows
from fleet.store.ingest import ingest
from fleet.store.open import open_writer
from tests.landing_builder import (
    AttemptSpec,
    build_landing,
    cut,
    drop_column,
    make_record,
    null_column,
    other_row,
    remake,
    rewrite_part,
)

A = AttemptSpec("a" * 16)
ARMS = ["controlled", "current"]
Change = Callable[[dict[str, Any]], None]


def landed(tmp_path: Path, spec: AttemptSpec = A) -> Landing:
    return build_landing(tmp_path / "landing", [spec])


def summary(landing: Landing, attempt: str = A.attempt) -> AttemptSummary:
    return summarise(landing, attempt, read_chain(landing, "c1"))


def void(landing: Landing, code: str, *words: str) -> AttemptSummary:
    found = summary(landing)
    assert found.cause is not None
    assert (found.state, found.cause.code) == ("VOID", code), found.cause
    for word in words:
        assert word in found.cause.text
    assert (found.arms, found.roots, found.power) == ({}, {}, None)
    return found


def rewrite_entry(landing: Landing, kind: str, change: Change) -> None:
    """Change an entry's body and make the chain whole again, as a forger with time would."""
    folder, head = chain_folder(landing, "c1"), START
    for path in sorted(folder.glob("*.json")):
        raw = json.loads(path.read_bytes()) | {"previous": head}
        if raw["kind"] == kind:
            change(raw["body"])
        path.write_bytes(canonical_json(raw))
        head = to_text(sha256(path.read_bytes()))


def rewrite_manifest(landing: Landing, change: Change, accept: bool = True) -> None:
    """Change the manifest; the ledger accepts the changed one unless told otherwise."""
    path = landing.manifest(A.attempt)
    raw = json.loads(path.read_bytes())
    change(raw)
    path.write_bytes(canonical_json(raw))
    if accept:
        digest = to_text(sha256(path.read_bytes()))
        rewrite_entry(landing, "accepted", lambda body: body.update(manifest_sha256=digest))


def vouch(landing: Landing) -> None:
    """Manifest and ledger name the parts as they are on disk now, and the roots of their rows."""
    paths = landing.parts(A.attempt)

    def change(raw: dict[str, Any]) -> None:
        raw["parts"] = [vars(Part(p.name, 0, p.stat().st_size, file_sha256(p))) for p in paths]

    rewrite_manifest(landing, change)


# a good one


def test_a_good_attempt_is_complete_with_everything_rederived(tmp_path: Path) -> None:
    found = summary(landed(tmp_path))
    assert (found.state, found.cause, found.rows) == ("COMPLETE", None, 10)
    assert found.accepted_at_s is not None
    assert sorted(found.arms) == ARMS
    for arm in found.arms.values():
        assert (arm.rows, arm.correct, arm.unparsed, arm.truncated) == (5, 2, 0, 0)
        assert sorted(arm.columns) == sorted(STAGE_COLUMNS)
    assert sorted(found.stages) == sorted(
        ["checkpoint", "post_init_weights", "end_weights", "effective", "effective_end"]
    )
    assert AttemptSummary.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_the_order_in_which_rows_arrive_is_no_difference(tmp_path: Path) -> None:
    in_order = summary(landed(tmp_path / "a"))
    turned = landed(tmp_path / "b", replace(A, edit=lambda rows: rows[::-1], rows_per_part=3))
    rewrite_manifest(
        turned,
        lambda raw: raw.update(
            roots=in_order.roots, arm_roots={arm: s.roots for arm, s in in_order.arms.items()}
        ),
    )
    found = summary(turned)
    assert (found.state, found.roots, found.arms) == ("COMPLETE", in_order.roots, in_order.arms)


# the ledger


@pytest.mark.parametrize(
    ("ends", "state", "code"),
    [
        ("open", "VOID", "ledger-gap"),
        ("unplanned", "VOID", "not-accepted"),
    ],
)
def test_an_attempt_that_the_ledger_does_not_end_is_void(
    tmp_path: Path, ends: Any, state: str, code: str
) -> None:
    landing = build_landing(tmp_path, [replace(A, ends=ends), AttemptSpec("b" * 16)])
    found = summary(landing)
    assert (found.state, found.cause and found.cause.code) == (state, code)
    assert (found.rows, found.roots) == (10, {})


def test_a_given_up_attempt_keeps_its_rows_and_its_cause(tmp_path: Path) -> None:
    cause = Cause("killed", "signal 9", {"pid": 3})
    found = summary(landed(tmp_path, replace(A, ends="given-up", state="FAILED", cause=cause)))
    assert (found.state, found.cause, found.rows, found.roots) == ("FAILED", cause, 10, {})
    assert found.accepted_at_s is None


def test_a_late_writer_cannot_help(tmp_path: Path) -> None:
    """Given up, and then its manifest lands after all."""
    landing = landed(tmp_path, replace(A, ends="given-up", state="LOST"))
    other = build_landing(tmp_path / "other", [A])
    landing.manifest(A.attempt).write_bytes(other.manifest(A.attempt).read_bytes())
    found = summary(landing)
    assert (found.state, found.roots, found.accepted_at_s) == ("LOST", {}, None)


def append(landing: Landing, kind: Any, **body: Any) -> None:
    entries = read_chain(landing, "c1")
    last = entries[-1]
    head = to_text(sha256(last.to_bytes()))
    entry = Entry("c1", last.seq + 1, kind, A.attempt, last.at_s, body, head)
    (chain_folder(landing, "c1") / f"{entry.seq:06d}.json").write_bytes(entry.to_bytes())


def test_two_ends_are_no_end(tmp_path: Path) -> None:
    landing = landed(tmp_path)
    append(landing, "given_up", state="LOST", cause={"code": "killed", "text": "", "details": {}})
    void(landing, "evidence-altered", "twice")


def test_an_accepted_attempt_whose_manifest_is_gone_is_void(tmp_path: Path) -> None:
    landing = landed(tmp_path)
    landing.manifest(A.attempt).unlink()
    void(landing, "evidence-altered", "manifest is gone")


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("started", lambda body: body.pop("process")),
        ("started", lambda body: body.update(process={"pid": 1})),
        ("gone", lambda body: body.clear()),
        ("accepted", lambda body: body.pop("manifest_sha256")),
        ("planned", lambda body: body.pop("sample_ids")),
        ("planned", lambda body: body.update(sample_ids=7)),
        ("planned", lambda body: body.update(vary=None)),
    ],
)
def test_a_ledger_entry_that_is_not_understood_voids_its_attempt_and_nothing_else(
    tmp_path: Path, kind: str, change: Change
) -> None:
    landing = landed(tmp_path)
    rewrite_entry(landing, kind, change)
    void(landing, "evidence-altered")


def test_a_broken_chain_with_damaged_entries_can_still_be_ingested(tmp_path: Path) -> None:
    """One edited byte must not keep every other attempt out of the store."""
    b = AttemptSpec("b" * 16, campaign="c2")
    landing = build_landing(tmp_path / "landing", [A, b])
    for path in chain_folder(landing, "c1").glob("*.json"):
        data = path.read_bytes()
        path.write_bytes(data.replace(b'"process"', b'"proCess"').replace(b'"slot"', b'"slOt"'))
    with open_writer(tmp_path / "store.duckdb") as store:
        report = ingest(store, landing)
        ends = dict(store.con.execute("SELECT attempt, state FROM attempts").fetchall())
    assert ends == {A.attempt: "VOID", b.attempt: "COMPLETE"}
    assert any("c1" in warning for warning in report.warnings)


# the manifest


def test_a_manifest_edited_after_it_was_accepted_is_void(tmp_path: Path) -> None:
    landing = landed(tmp_path)
    rewrite_manifest(landing, lambda raw: raw["envelope"].update(batch_size=2), accept=False)
    void(landing, "evidence-altered", "not the one the ledger accepted")


@pytest.mark.parametrize("change", [{"slot": 9}, {"campaign": "c9"}, {"execution_id": "sha256:0"}])
def test_a_manifest_of_another_plan_is_void(tmp_path: Path, change: dict[str, Any]) -> None:
    landing = landed(tmp_path)
    rewrite_manifest(landing, lambda raw: raw.update(change))
    void(landing, "evidence-altered", "planned was")


def test_an_unreadable_manifest_is_void(tmp_path: Path) -> None:
    landing = landed(tmp_path)
    landing.manifest(A.attempt).write_bytes(b"{")
    void(landing, "evidence-altered", "not a manifest")


def test_a_platform_whose_digest_is_not_that_of_its_facts_is_void(tmp_path: Path) -> None:
    landing = landed(tmp_path)
    rewrite_manifest(landing, lambda raw: raw["platform"]["facts"].update(python="9.9"))
    void(landing, "evidence-altered", "platform")


@pytest.mark.parametrize("state", ["VOID", "FAILED"])
def test_the_manifests_own_end_stands(tmp_path: Path, state: Any) -> None:
    cause = Cause("out-of-memory", "no memory")
    found = summary(landed(tmp_path, replace(A, state=state, cause=cause)))
    assert (found.state, found.cause, found.rows, found.roots) == (state, cause, 10, {})


@pytest.mark.parametrize("stage", ["checkpoint", "post_init_weights", "end_weights"])
def test_a_weight_digest_that_is_missing_is_missing_evidence(tmp_path: Path, stage: str) -> None:
    landing = landed(tmp_path)
    rewrite_manifest(landing, lambda raw: raw["stages"].pop(stage))
    void(landing, "missing-evidence", stage)


def test_weights_that_changed_while_it_ran_are_void(tmp_path: Path) -> None:
    landing = landed(tmp_path)
    rewrite_manifest(landing, lambda raw: raw["stages"].update(end_weights="sha256:" + "0" * 64))
    void(landing, "weights-changed")


# freshness


@pytest.mark.parametrize(
    ("kind", "change", "code", "words"),
    [
        ("gone", {"gone": False}, "cannot-observe", "end of the process"),
        ("gone", {"seen_alive": False}, "cannot-observe", "not seen the process alive"),
        ("started", {"process": {
            "boot_id": "boot-0", "pid_namespace": "pid:[1]", "pid": 1, "start_tick": 1,
        }}, "not-fresh", "another process"),
    ],
)  # fmt: skip
def test_freshness_is_judged_from_the_ledger(
    tmp_path: Path, kind: str, change: dict[str, Any], code: str, words: str
) -> None:
    landing = landed(tmp_path)
    rewrite_entry(landing, kind, lambda body: body.update(change))
    void(landing, code, words)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nonce": ""}, "nonce"),
        ({"nonce": "b" * 16}, "nonce"),
        ({"imported_at_entry": ["torch"]}, "torch"),
        ({"predecessor_gone": False}, "still lived"),
    ],
)
def test_freshness_is_judged_from_the_manifest(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    landing = landed(tmp_path)
    rewrite_manifest(landing, lambda raw: raw["freshness"].update(change))
    void(landing, "not-fresh", words)


@pytest.mark.parametrize(("kind", "words"), [("started", "saw the process"), ("gone", "the end")])
def test_what_nobody_saw_cannot_be_observed(tmp_path: Path, kind: str, words: str) -> None:
    landing = landed(tmp_path)
    entries = [e for e in read_chain(landing, "c1") if e.kind != kind]
    found = summarise(landing, A.attempt, entries)
    assert found.cause is not None
    assert (found.state, found.cause.code) == ("VOID", "cannot-observe")
    assert words in found.cause.text


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
    pq.write_table(table.replace_schema_metadata({"fleet.record_format": "2"}), part)
    with pytest.raises(EvidenceError, match="record format '2'"):
        check_columns([part])


def test_a_manifest_that_lies_about_its_types_does_not_stop_the_ingest(tmp_path: Path) -> None:
    landing = landed(tmp_path)
    rewrite_manifest(landing, lambda raw: raw.update(unit="here"))
    with pytest.raises(EvidenceError):
        Manifest.from_bytes(landing.manifest(A.attempt).read_bytes())
    void(landing, "evidence-altered", "unit is no dict")
    with open_writer(tmp_path / "store.duckdb") as store:
        assert ingest(store, landing).attempts == 1
