"""A certificate's form, its verification offline, and the state of a landing that it is held to."""

from __future__ import annotations

import base64
import json
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from securesystemslib.signer import CryptoSigner

from fleet.contract.canonical import canonical_json, sha256, to_text
from fleet.errors import EvidenceError, UsageError
from fleet.evidence import signing
from fleet.evidence.issued import log_issue, log_revocation, read_log
from fleet.evidence.landing import Landing
from fleet.evidence.ledger import head_over, heads_of, landing_head
from fleet.evidence.statement import seconds, utc
from fleet.evidence.view import view
from fleet.judge import RULE_VERSION
from fleet.report.answers import Answers, known_contracts
from fleet.report.certificate import (
    Certificate,
    certify_row,
    evidence_of,
    read_certificate,
    root_over,
)
from fleet.report.derived import derived, rows_about
from fleet.report.verification import Against, Verification, verify
from fleet.store import queries
from tests.landing_builder import AttemptSpec, build_landing, other_row, other_slot

SIGNER = CryptoSigner(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
KEY = SIGNER.public_key
A = AttemptSpec("a" * 16)
B = other_slot(A, "b" * 16)
ODD = other_slot(B, "c" * 16, campaign="c2", edit=other_row(0, logits="odd"))
ID = to_text(A.contract_id)


def issued(landing: Landing, now_s: float | None = None, valid_days: int = 30) -> Certificate:
    """Of the one row that the landing has of ``toy``."""
    heads = heads_of(landing)
    with derived(landing, {ID}, heads, {}) as answers:
        (asked,) = known_contracts(answers.store)
        (row,) = rows_about(answers, asked)
        facts = queries.platforms(answers.store.con)
    at_s = time.time() if now_s is None else now_s
    return certify_row(row, asked, facts, landing, heads, {}, at_s, valid_days, RULE_VERSION)


def signed(landing: Landing, certificate: Certificate | None = None) -> bytes:
    """Signed and logged."""
    heads = heads_of(landing)
    data = signing.sign((certificate or issued(landing)).to_statement(), SIGNER)
    log_issue(landing, data, heads)
    return data


def checked(data: bytes, landing: Landing | None = None, **changes: Any) -> Verification:
    return verify(data, replace(Against(KEY, time.time(), landing=landing), **changes))


@pytest.fixture
def landing(tmp_path: Path) -> Landing:
    return build_landing(tmp_path / "landing", [A, B])


def test_it_holds_with_the_landing_and_is_not_checked_without(landing: Landing) -> None:
    data = signed(landing)
    assert (checked(data, landing).result, checked(data, landing).code) == ("VALID", 0)
    offline = checked(data)
    assert (offline.result, offline.code) == ("NOT_CHECKED", 3)
    assert "not checked for later FAIL" in offline.words
    document = json.loads(json.dumps(offline.to_json()))
    assert document["certificate"]["claim"]["verdict"] == "PASS"


def test_no_byte_of_a_certificate_can_change(landing: Landing) -> None:
    """Each place once, by one bit; and what is added or cut off."""
    data, chance = signed(landing), random.Random(1)
    flipped = (
        data[:at] + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :]
        for at in range(len(data))
    )
    for altered in (*flipped, data + b"\n", data + b" ", b" " + data, data[:-1], data[:-9]):
        try:
            found = checked(altered)
        except UsageError:
            continue
        assert (found.code, found.result in ("ALTERED", "WRONG_KEY")) == (3, True)


def test_an_independent_reader_of_dsse_and_in_toto_reads_it(landing: Landing) -> None:
    """The pre-authentication encoding is computed here, by hand."""
    envelope = json.loads(signed(landing))
    payload, kind = base64.b64decode(envelope["payload"]), envelope["payloadType"].encode()
    pae = b"DSSEv1 " + b" ".join(
        [str(len(kind)).encode(), kind, str(len(payload)).encode(), payload]
    )
    sig = base64.b64decode(envelope["signatures"][0]["sig"])
    Ed25519PrivateKey.from_private_bytes(bytes(range(32))).public_key().verify(sig, pae)
    statement = json.loads(payload)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://fleet.dev/attestation/certificate/v1"
    execution_id, platform = statement["subject"]
    assert execution_id == {
        "name": "execution-id", "digest": {"sha256": A.contract_id.hex()},
    }  # fmt: skip
    claim = statement["predicate"]["claim"]
    assert f"sha256:{platform['digest']['sha256']}" == claim["platform"]["digest"]
    assert canonical_json(statement) == payload


def test_the_root_is_over_the_manifests_in_the_landing(landing: Landing) -> None:
    found = issued(landing).evidence
    lines = "".join(
        f"{a} {to_text(sha256(landing.manifest(a).read_bytes()))}\n" for a in (A.attempt, B.attempt)
    )
    assert found["root"] == to_text(sha256(b"fleet-evidence-1\n" + lines.encode()))
    assert found["landing_head"] == landing_head(landing)
    lost = [{"attempt": "f" * 16, "state": "LOST"}]
    assert evidence_of(landing, lost)["attempts"][0]["manifest"] is None


def changed(certificate: Certificate, **claim: Any) -> Certificate:
    return replace(certificate, claim=dict(certificate.claim) | claim)


@pytest.mark.parametrize(
    "claim",
    [
        {"grade": "modules"}, {"records": 11}, {"scope": "same-class"}, {"power": None},
        {"bounds": {"record": 0.0, "process": 0.0}}, {"warnings": ["x"]}, {"reason": "fine"},
    ],
)  # fmt: skip
def test_whoever_signs_more_than_the_evidence_says_is_found_out(
    landing: Landing, claim: dict[str, Any]
) -> None:
    data = signed(landing, changed(issued(landing), **claim))
    found = checked(data, landing)
    assert (found.result, found.code) == ("ALTERED", 3)
    assert next(iter(claim)) in found.words


def test_a_pass_that_was_a_fail_all_along_is_a_fail(tmp_path: Path) -> None:
    landing = build_landing(tmp_path / "landing", [A, B, ODD])
    failed = issued(landing)
    assert failed.verdict == "FAIL"
    data = signed(landing, changed(failed, verdict="PASS"))
    assert (checked(data, landing).result, checked(data, landing).code) == ("FAIL", 1)
    honest = signed(landing)
    assert (checked(honest).code, checked(honest, landing).code) == (1, 1)


def test_a_rule_version_that_is_not_ours_is_held_to_what_rules_do_not_word(
    landing: Landing,
) -> None:
    old = issued(landing)
    old = replace(old, tool=dict(old.tool) | {"rule_version": 0})
    assert checked(signed(landing, changed(old, reason="older words")), landing).code == 0
    assert checked(signed(landing, changed(old, grade="modules")), landing).code == 3


def test_expiry_is_that_of_the_evidence_or_earlier(landing: Landing) -> None:
    now_s = time.time()
    assert seconds(issued(landing, now_s, 3).expires_at) == seconds(utc(now_s + 3 * 86400))
    accepted = issued(landing, now_s, 3000)
    assert seconds(accepted.expires_at) <= now_s + 30 * 86400
    data = signed(landing)
    for at_s in (now_s + 31 * 86400, now_s - 86400):
        assert checked(data, at_s=at_s).result == "EXPIRED"
    assert checked(data, at_s=now_s - 60).result == "NOT_CHECKED", "clocks may be apart a little"


def test_a_revoked_one_says_so_even_where_the_chain_does_not_check(landing: Landing) -> None:
    data = signed(landing)
    log_revocation(landing, to_text(sha256(data)), "c9", "it differs")
    assert (checked(data, landing).result, checked(data, landing).code) == ("REVOKED", 1)
    (chain,) = [
        p.parent for p in landing.ledger.glob("certificates-*/*.json")
        if b'"kind":"revoked"' in p.read_bytes()
    ]  # fmt: skip
    path = chain / "000000.json"
    raw = json.loads(path.read_bytes())
    path.write_bytes(canonical_json(raw | {"previous": "sha256:" + "0" * 64}))
    assert checked(data, landing).result == "REVOKED"


@pytest.mark.parametrize("heads", [{}, {"c1": [0, "x"]}, {"c1": [1, "x"]}, {"c1": [-2, "x"]}, 3])
def test_a_log_that_tells_of_another_state_is_not_believed(landing: Landing, heads: Any) -> None:
    data = signed(landing)
    (path,) = landing.ledger.glob("certificates-*/*.json")
    raw = json.loads(path.read_bytes())
    raw["body"]["heads"] = heads
    path.write_bytes(canonical_json(raw))
    assert checked(data, landing).code == 3


def test_lengths_in_the_log_are_held_to_the_heads_that_were_signed(landing: Landing) -> None:
    """The head covers no length: one that is shortened must not hide entries."""
    data = signed(landing)
    (path,) = landing.ledger.glob("certificates-*/*.json")
    raw = json.loads(path.read_bytes())
    for length in (0, 1, -1, 99):
        raw["body"]["heads"]["c1"][0] = length
        path.write_bytes(canonical_json(raw))
        signed_head = checked(data).to_json()["certificate"]["evidence"]["landing_head"]
        assert head_over(read_log(landing)[0].heads) == signed_head
        assert (checked(data, landing).code, checked(data, landing).result) == (3, "ALTERED")


def test_a_view_shows_what_the_landing_said_then(tmp_path: Path, landing: Landing) -> None:
    heads = heads_of(landing)
    build_landing(landing.root, [ODD])
    assert set(heads_of(landing)) == {"c1", "c2"}
    then = view(landing, {ID}, heads, tmp_path / "then")
    assert (heads_of(then), list(then.attempts())) == (heads, [A.attempt, B.attempt])
    now = view(landing, {ID}, heads_of(landing), tmp_path / "now")
    assert ODD.attempt in list(now.attempts())
    none = view(landing, {"sha256:" + "0" * 64}, heads_of(landing), tmp_path / "none")
    assert heads_of(none) == {}
    (landing.ledger / "c1" / "000000.json").write_bytes(b"{}")
    with pytest.raises(EvidenceError):
        last = max(landing.ledger.glob("c1/*.json"))
        last.unlink()
        view(landing, {ID}, heads, tmp_path / "lost")


def test_rows_that_nobody_planned_are_in_every_view(tmp_path: Path, landing: Landing) -> None:
    heads = heads_of(landing)
    stray = replace(ODD, attempt="e" * 16, campaign="c3", ends="unplanned")
    build_landing(landing.root, [stray])
    assert stray.attempt in list(view(landing, {ID}, heads, tmp_path / "view").attempts())


BROKEN: list[dict[str, Any]] = [
    {"claim": {}},
    {"claim": []},
    {"evidence": {}},
    {"issued_at": "yesterday"},
    {"tool": {}},
    {"more": 1},
]


@pytest.mark.parametrize("change", BROKEN)
def test_a_signed_statement_that_is_no_certificate_proves_nothing(
    landing: Landing, change: dict[str, Any]
) -> None:
    made = issued(landing).to_statement()
    made["predicate"] |= change
    found = checked(signing.sign(made, SIGNER))
    assert (found.result, found.code, found.certificate) == ("ALTERED", 3, None)


def test_subjects_and_root_are_those_of_the_claim(landing: Landing) -> None:
    made = issued(landing).to_statement()
    made["subject"][0]["digest"]["sha256"] = "00" * 32
    with pytest.raises(EvidenceError, match="subjects"):
        read_certificate(made)
    made = issued(landing).to_statement()
    made["predicate"]["evidence"]["attempts"] = []
    with pytest.raises(EvidenceError, match="root"):
        read_certificate(made)
    assert root_over([]) != issued(landing).evidence["root"]


def test_answers_over_a_view_are_those_of_the_landing(landing: Landing) -> None:
    with derived(landing, {ID}, heads_of(landing), {}) as answers:
        assert isinstance(answers, Answers)
        (asked,) = known_contracts(answers.store)
        assert [row.state for row in rows_about(answers, asked)] == ["PASS"]
