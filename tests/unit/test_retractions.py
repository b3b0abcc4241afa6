"""Retractions: what a trusted key withdraws counts no more, and is never forgotten."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from securesystemslib.signer import CryptoSigner

from fleet.contract.canonical import canonical_json
from fleet.errors import UsageError
from fleet.evidence import ledger, retractions, signing
from fleet.evidence.landing import Landing
from fleet.evidence.statement import RETRACTION, statement
from fleet.evidence.states import Cause
from fleet.evidence.trusted import trusted_keys
from fleet.judge.rules import retraction_lines
from fleet.report.answers import Answers
from fleet.report.status import StatusRow, status_rows
from fleet.store.ingest import ingest
from fleet.store.open import open_reader, open_writer
from fleet.store.rebuild import rebuild
from tests.landing_builder import AttemptSpec, build_landing, other_row, other_slot

MINE = CryptoSigner(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
OTHER = CryptoSigner(Ed25519PrivateKey.from_private_bytes(bytes(32)))
TRUSTED = {MINE.public_key.keyid: "release team"}

A = AttemptSpec("a" * 16)
B = other_slot(A, "b" * 16)
ODD = other_slot(B, "c" * 16, edit=other_row(0, logits="odd"))
LATE = [replace(A, attempt=letter * 16, campaign="c2", slot=n) for n, letter in enumerate("de")]
LATE_ODD = replace(LATE[1], edit=other_row(0, logits="odd"))
LOST_ODD = replace(ODD, ends="given-up", state="LOST", cause=Cause("node-unreachable", "no answer"))


def landed(tmp_path: Path, *specs: AttemptSpec) -> Landing:
    return build_landing(tmp_path / "landing", specs)


def standing(landing: Landing, trusted: dict[str, str] = TRUSTED, name: str = "store") -> StatusRow:
    """Where ``toy`` stands for whoever trusts these keys."""
    store = landing.root.parent / f"{name}.duckdb"
    with open_writer(store) as writer:
        ingest(writer, landing)
    with open_reader(store, trusted) as reader:
        answers = Answers(reader, landing)
        (row,) = status_rows(answers, ["toy"], (), landing.root, time.time())
    assert row.verdict is not None
    return row


def retract(landing: Landing, spec: AttemptSpec, signer: CryptoSigner = MINE) -> None:
    retractions.record(landing, spec.attempt, "its host had a bad DIMM", signer, 1_700_000_000.0)


def test_a_retracted_difference_counts_no_more_and_the_verdict_tells_of_it(tmp_path: Path) -> None:
    landing = landed(tmp_path, A, B, ODD)
    assert standing(landing).state == "FAIL"
    retract(landing, ODD)
    row = standing(landing)
    verdict = row.verdict
    assert verdict is not None and row.state == "PASS"
    (told,) = verdict.retractions
    assert (told["attempt"], told["name"], told["ignored"]) == (ODD.attempt, "release team", None)
    assert (told["by"], told["at"]) == (MINE.public_key.keyid, "2023-11-14T22:13:20Z")
    assert told["reason"] == "its host had a bad DIMM"
    assert verdict.without_retractions is not None
    assert verdict.without_retractions["verdict"] == "FAIL"
    assert json.loads(json.dumps(row.to_json()))["retractions"] == [told]
    words = " ".join(retraction_lines(verdict))
    assert "was retracted" in words and "with what was retracted it would be FAIL" in words
    assert [a["attempt"][0] for a in verdict.attempts if a.get("retracted")] == ["c"]


def test_a_retracted_agreement_carries_no_pass(tmp_path: Path) -> None:
    landing = landed(tmp_path, A, B)
    assert standing(landing).state == "PASS"
    retract(landing, B)
    verdict = standing(landing).verdict
    assert verdict is not None and (verdict.verdict, verdict.code) == ("VOID", "retracted")
    assert verdict.without_retractions is not None
    assert verdict.without_retractions["verdict"] == "PASS"


def test_both_sides_of_a_difference_can_be_asked_for_and_only_one_stays(tmp_path: Path) -> None:
    landing = landed(tmp_path, A, B, *LATE[:1], LATE_ODD)
    assert standing(landing).state == "REGRESSED"
    retract(landing, LATE_ODD)
    assert standing(landing).state == "PASS"


def test_rows_of_a_lost_attempt_can_be_retracted_too(tmp_path: Path) -> None:
    landing = landed(tmp_path, A, B, LOST_ODD)
    assert standing(landing).state == "FAIL"
    retract(landing, LOST_ODD)
    assert standing(landing).state == "PASS"


def test_a_void_attempt_cannot_be_retracted_away(tmp_path: Path) -> None:
    void = other_slot(B, "c" * 16, state="VOID", cause=Cause("placement", "elsewhere"))
    landing = landed(tmp_path, A, B, void)
    assert standing(landing).state == "VOID"
    retract(landing, void)
    assert standing(landing).state == "VOID"


@pytest.mark.parametrize(
    ("signer", "trusted", "why"),
    [
        (OTHER, TRUSTED, "not among the trusted"),
        (MINE, {}, "not among the trusted"),
        (MINE, {OTHER.public_key.keyid: "somebody"}, "not among the trusted"),
    ],
)
def test_a_key_that_nobody_declared_withdraws_nothing(
    tmp_path: Path, signer: CryptoSigner, trusted: dict[str, str], why: str
) -> None:
    landing = landed(tmp_path, A, B, ODD)
    retract(landing, ODD, signer)
    row = standing(landing, trusted)
    assert row.verdict is not None and row.state == "FAIL"
    (told,) = row.verdict.retractions
    assert why in told["ignored"] and why in " ".join(retraction_lines(row.verdict))
    assert row.verdict.without_retractions is None


def edited(landing: Landing, change: Any) -> None:
    """The record in the landing, as somebody without the key would write it."""
    (chain,) = ledger.retraction_chains(landing)
    path = ledger.chain_folder(landing, chain) / "000000.json"
    raw = json.loads(path.read_bytes())
    change(raw)
    path.write_bytes(canonical_json(raw))


def of_another(raw: dict[str, Any]) -> None:
    raw["attempt"] = A.attempt


def unsigned(raw: dict[str, Any]) -> None:
    raw["body"] = {"reason": "because", "by": MINE.public_key.keyid}


def another_reason(raw: dict[str, Any]) -> None:
    envelope = json.loads(raw["body"]["envelope"])
    payload = signing.unverified(raw["body"]["envelope"].encode())
    payload["predicate"]["reason"] = "another"
    signed = json.loads(signing.sign(payload, OTHER))
    signed["signatures"] = envelope["signatures"]
    raw["body"]["envelope"] = (canonical_json(signed) + b"\n").decode()


def claimed_key(raw: dict[str, Any]) -> None:
    """Signed by another key that says it is the trusted one."""
    payload = signing.unverified(raw["body"]["envelope"].encode())
    payload["predicate"]["public_key"] = OTHER.public_key.keyval["public"]
    signed = json.loads(signing.sign(payload, OTHER))
    signed["signatures"][0]["keyid"] = MINE.public_key.keyid
    raw["body"]["envelope"] = (canonical_json(signed) + b"\n").decode()


def other_bytes(raw: dict[str, Any]) -> None:
    payload = signing.unverified(raw["body"]["envelope"].encode())
    payload["subject"][0]["digest"]["sha256"] = "00" * 32
    raw["body"]["envelope"] = signing.sign(payload, MINE).decode()


def other_kind(raw: dict[str, Any]) -> None:
    payload = signing.unverified(raw["body"]["envelope"].encode())
    raw["body"]["envelope"] = signing.sign(payload | {"predicateType": "x"}, MINE).decode()


def garbage(raw: dict[str, Any]) -> None:
    raw["body"]["envelope"] = "\ud7ff{"


@pytest.mark.parametrize(
    "change", [of_another, unsigned, another_reason, claimed_key, other_bytes, other_kind, garbage]
)
def test_a_record_that_is_not_what_it_claims_changes_no_verdict_and_is_told(
    tmp_path: Path, change: Any
) -> None:
    landing = landed(tmp_path, A, B, ODD)
    retract(landing, ODD)
    edited(landing, change)
    row = standing(landing)
    assert row.verdict is not None and row.state == "FAIL"
    assert [bool(told["ignored"]) for told in row.verdict.retractions] == [True]


def test_every_verdict_of_the_execution_id_shows_it_on_whatever_platform(tmp_path: Path) -> None:
    there = [
        replace(s, campaign="c2", attempt=letter * 16, unit="u2", facts=(("os", "Other"),))
        for s, letter in ((A, "d"), (B, "e"))
    ]
    landing = landed(tmp_path, A, B, ODD, *there)
    retract(landing, ODD)
    standing_rows = tmp_path / "two.duckdb"
    rebuild(standing_rows, landing)
    with open_reader(standing_rows, TRUSTED) as store:
        rows = status_rows(Answers(store, landing), ["toy"], (), tmp_path, time.time())
    assert len(rows) == 2
    for row in rows:
        assert row.verdict is not None and len(row.verdict.retractions) == 1


def test_a_rebuild_gives_the_same_verdict_and_a_retraction_takes_no_byte_away(
    tmp_path: Path,
) -> None:
    landing = landed(tmp_path, A, B, ODD)
    before = {p: p.read_bytes() for p in landing.root.rglob("*") if p.is_file()}
    retract(landing, ODD)
    assert all(p.read_bytes() == data for p, data in before.items())
    first = standing(landing)
    rebuild(tmp_path / "again.duckdb", landing)
    again = standing(landing, name="again")
    assert first.to_json() | {"age_s": 0} == again.to_json() | {"age_s": 0}
    untrusting = standing(landing, {}, "again")
    assert untrusting.state == "FAIL", "the store itself trusts nobody"


def test_the_head_of_the_landing_covers_it_and_it_is_no_campaign(tmp_path: Path) -> None:
    landing = landed(tmp_path, A, B)
    head = ledger.landing_head(landing)
    retract(landing, B)
    assert ledger.landing_head(landing) != head
    assert ledger.campaigns(landing) == ["c1"]


def test_a_retraction_of_another_landing_is_none_here(tmp_path: Path) -> None:
    elsewhere = build_landing(
        tmp_path / "elsewhere", [A, replace(B, edit=other_row(1, logits="x"))]
    )
    retract(elsewhere, B)
    landing = landed(tmp_path, A, B)
    (chain,) = ledger.retraction_chains(elsewhere)
    shutil.copytree(elsewhere.ledger / chain, landing.ledger / chain)
    row = standing(landing)
    assert row.verdict is not None and row.state == "PASS"
    assert "other bytes" in row.verdict.retractions[0]["ignored"]


def test_a_chain_that_lost_its_record_is_warned_of(tmp_path: Path) -> None:
    landing = landed(tmp_path, A, B, ODD)
    retract(landing, ODD)
    (chain,) = ledger.retraction_chains(landing)
    (ledger.chain_folder(landing, chain) / "000000.json").write_bytes(b"{")
    with open_writer(tmp_path / "s.duckdb") as store:
        warnings = ingest(store, landing).warnings
    assert any(chain in words for words in warnings)
    assert standing(landing).state == "FAIL"


def test_an_attempt_that_is_not_there_or_no_reason_is_a_usage_error(tmp_path: Path) -> None:
    landing = landed(tmp_path, A, B)
    for attempt, reason, words in (("f" * 16, "x", "an attempt"), (A.attempt, " ", "--reason")):
        with pytest.raises(UsageError, match=words):
            retractions.record(landing, attempt, reason, MINE, 0.0)
    assert ledger.retraction_chains(landing) == []


def test_the_predicate_is_a_statement_about_the_attempt_and_what_it_left(tmp_path: Path) -> None:
    landing = landed(tmp_path, A, B)
    retract(landing, B)
    (chain,) = ledger.retraction_chains(landing)
    (entry,) = ledger.read_chain(landing, chain)
    payload = signing.open_envelope(entry.body["envelope"].encode(), MINE.public_key).payload
    digest = retractions.left_by(landing, B.attempt)
    assert digest is not None
    predicate = payload["predicate"]
    assert payload == statement(RETRACTION, {B.attempt: digest}, predicate)
    assert set(predicate) == {"attempt", "reason", "at", "public_key"}


# whose keys count


def test_keys_are_declared_in_the_config_path_or_in_the_file_that_is_named(tmp_path: Path) -> None:
    one, two = "ab" * 32, "cd" * 32
    for folder, text in (
        ("first", f"{one} mine\n"),
        ("second", f"# c\n\n{one} x\n{two} two # c\n"),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "keys").write_text(text)
    search = [tmp_path / "first", tmp_path / "second", tmp_path / "none"]
    assert trusted_keys(None, search) == {one: "mine", two: "two"}
    assert trusted_keys(tmp_path / "first" / "keys", search) == {one: "mine"}
    assert trusted_keys(None, []) == {}


@pytest.mark.parametrize("text", ["abcd me", "AB" * 32 + " me", "ab" * 32, "*", "any key"])
def test_a_line_that_names_no_key_is_a_usage_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "keys").write_text(f"# mine\n{text}\n")
    with pytest.raises(UsageError, match="line 2"):
        trusted_keys(None, [tmp_path])
