"""From landed bytes to a summary: ledger, manifest and freshness each have their cause, and none
lets a wrong attempt through."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleet.contract.canonical import sha256, to_text
from fleet.errors import EvidenceError
from fleet.evidence.landing import Landing
from fleet.evidence.ledger import Entry, chain_folder, read_chain
from fleet.evidence.manifest import Manifest, Process
from fleet.evidence.states import Cause
from fleet.evidence.summarise import summarise
from fleet.evidence.summary import STAGE_COLUMNS, AttemptSummary
from fleet.store.ingest import ingest
from fleet.store.open import open_writer
from tests.landing_builder import (
    AttemptSpec,
    build_landing,
)
from tests.unit.forged_landing import (
    ARMS,
    A,
    Change,
    landed,
    rewrite_entry,
    rewrite_manifest,
    summary,
    void,
)

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
    void(landing, "evidence-altered", "manifest.json is gone")


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


def test_a_manifest_that_lies_about_its_types_does_not_stop_the_ingest(tmp_path: Path) -> None:
    landing = landed(tmp_path)
    rewrite_manifest(landing, lambda raw: raw.update(unit="here"))
    with pytest.raises(EvidenceError):
        Manifest.from_bytes(landing.manifest(A.attempt).read_bytes())
    void(landing, "evidence-altered", "unit is no dict")
    with open_writer(tmp_path / "store.duckdb") as store:
        assert ingest(store, landing).attempts == 1


# freshness

FREE = {"uuid": "GPU-1", "not_free": None, "seen_at_s": 1.5}


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
        ({"token": "of another"}, "another token"),
        ({"token": None}, "another token"),
        ({"device_in_use_before_token": True}, "before the token"),
        ({"device": FREE | {"seen_at_s": 0.5}}, "before it was seen free"),
        ({"device": FREE | {"seen_at_s": 2.5}}, "before it was seen free"),
        ({"predecessor": vars(Process("boot-0", "pid:[1]", 7, 7))}, "after the end of another"),
    ],
)
def test_freshness_is_judged_from_the_manifest(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    landing = landed(tmp_path)
    rewrite_manifest(landing, lambda raw: raw["freshness"].update(change))
    void(landing, "not-fresh", words)


def test_a_device_that_was_not_free_is_void(tmp_path: Path) -> None:
    landing = landed(tmp_path)
    busy = FREE | {"not_free": "processes [7] compute on it"}
    rewrite_manifest(landing, lambda raw: raw["freshness"].update(device=busy))
    void(landing, "device-not-free", "processes [7]")


def test_a_token_that_the_ledger_never_gave_is_void(tmp_path: Path) -> None:
    landing = landed(tmp_path)
    entries = [e for e in read_chain(landing, "c1") if e.kind != "go"]
    found = summarise(landing, A.attempt, entries)
    assert found.cause is not None
    assert (found.state, found.cause.code) == ("VOID", "not-fresh")


def test_evidence_from_before_there_were_tokens_has_none_in_the_ledger_either(
    tmp_path: Path,
) -> None:
    landing = landed(tmp_path)
    rewrite_manifest(landing, lambda raw: raw["freshness"].pop("token"))
    entries = [e for e in read_chain(landing, "c1") if e.kind != "go"]
    assert summarise(landing, A.attempt, entries).state == "COMPLETE"


@pytest.mark.parametrize(("kind", "words"), [("started", "saw the process"), ("gone", "the end")])
def test_what_nobody_saw_cannot_be_observed(tmp_path: Path, kind: str, words: str) -> None:
    landing = landed(tmp_path)
    entries = [e for e in read_chain(landing, "c1") if e.kind != kind]
    found = summarise(landing, A.attempt, entries)
    assert found.cause is not None
    assert (found.state, found.cause.code) == ("VOID", "cannot-observe")
    assert words in found.cause.text
