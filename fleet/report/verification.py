"""``fleet certificate verify``: does a certificate hold, and as far as what could be looked at?

Offline: signature, form, subject, expiry. With the landing: it is the one that the certificate was
issued from and has lost nothing; manifests, log and later evidence are looked at, and the verdict
is derived again, as of then (every field must be equal) and as of now (it must still be a PASS).
Without, a later FAIL cannot be excluded, and that is said (law 10). Holds no verdict rule.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from fleet.contract.canonical import sha256, to_text
from fleet.errors import EvidenceError, NoEnvelope, UsageError
from fleet.evidence import signing
from fleet.evidence.issued import Issued, read_log
from fleet.evidence.landing import Landing
from fleet.evidence.ledger import head_over, heads_of, landing_head
from fleet.evidence.statement import seconds
from fleet.judge import RULE_VERSION
from fleet.judge.present import CLOCK_SKEW_S
from fleet.report.answers import Answers
from fleet.report.certificate import Certificate, claim_of, manifest_of, read_certificate
from fleet.report.derived import derived, rows_about
from fleet.store import queries

if TYPE_CHECKING:
    from securesystemslib.signer import SSlibKey

Result = Literal[
    "VALID", "FAIL", "REVOKED", "VOID", "EXPIRED", "ALTERED", "WRONG_KEY", "WRONG_SUBJECT",
    "RETRACTED", "NOT_CURRENT", "NOT_CHECKED",
]  # fmt: skip
CODES: Mapping[Result, int] = {"VALID": 0, "FAIL": 1, "REVOKED": 1}
"""Everything else is 3: nothing is established."""

NOT_CHECKED = "not checked for later FAIL: pass --landing"
AMONG_RULES = ("contract", "execution_id", "verdict", "grade", "scope", "vary", "traced", "roots")
"""What is compared of a claim that another version of the rules made: words may have changed."""


@dataclass(frozen=True)
class Verification:
    """``passed``: what was looked at and held; ``words``: what settled the result."""

    result: Result
    words: str
    passed: tuple[str, ...]
    certificate: Certificate | None

    @property
    def code(self) -> int:
        """0 a PASS that still holds, 1 a FAIL or revoked, 3 anything that is neither."""
        return CODES.get(self.result, 3)

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        return {
            "schema": 1,
            "result": self.result,
            "words": self.words,
            "exit_code": self.code,
            "passed": list(self.passed),
            "certificate": self.certificate and self.certificate.to_predicate(),
        }


@dataclass(frozen=True)
class Against:
    """What a certificate is held against. ``subject``: a digest that must be one of its subjects;
    ``log_head``: what the head of the landing must be, learned elsewhere."""

    key: SSlibKey
    at_s: float
    subject: str | None = None
    landing: Landing | None = None
    log_head: str | None = None
    trusted: Mapping[str, str] = field(default_factory=dict)


class Settled(Exception):
    """The first finding that settles the result."""

    def __init__(self, result: Result, words: str) -> None:
        super().__init__(result, words)
        self.result: Result = result
        self.words = words


def verify(data: bytes, against: Against) -> Verification:
    """Hold a certificate's bytes against all that was given.

    Raises:
        UsageError: the bytes are no envelope at all.
    """
    passed: list[str] = []
    certificate: Certificate | None = None
    try:
        certificate = _opened(data, against.key)
        passed.append(f"signed by key {against.key.keyid}")
        passed.extend(_offline(certificate, against))
        passed.extend(_with_landing(data, certificate, against))
        result, words = _standing(certificate, against)
    except Settled as settled:
        result, words = settled.result, settled.words
    return Verification(result, words, tuple(passed), certificate)


def _opened(data: bytes, key: SSlibKey) -> Certificate:
    try:
        return read_certificate(signing.open_envelope(data, key).payload)
    except NoEnvelope as error:
        fix = "fleet certificate issue CONTRACT --output FILE makes one"
        raise UsageError("certificate", "", "a DSSE envelope", "something else", fix) from error
    except EvidenceError as error:
        raise Settled(
            "WRONG_KEY" if error.code == "wrong-key" else "ALTERED", error.text
        ) from error


def _offline(certificate: Certificate, against: Against) -> Iterator[str]:
    told = certificate.claim["execution_id"], certificate.platform
    if against.subject is not None:
        if against.subject not in told:
            raise Settled("WRONG_SUBJECT", f"it is about {' on '.join(told)}")
        yield f"about {against.subject}"
    if seconds(certificate.issued_at) > against.at_s + CLOCK_SKEW_S:
        raise Settled("EXPIRED", f"issued at {certificate.issued_at}, which is yet to come")
    if seconds(certificate.expires_at) <= against.at_s:
        raise Settled("EXPIRED", f"expired at {certificate.expires_at}")
    yield f"within its validity, until {certificate.expires_at}"
    if certificate.verdict == "VOID":
        raise Settled("VOID", str(certificate.claim["reason"]))


def _standing(certificate: Certificate, against: Against) -> tuple[Result, str]:
    """What is left to say when nothing spoke against it."""
    reason = str(certificate.claim["reason"])
    if certificate.verdict == "FAIL":
        return "FAIL", reason
    return ("NOT_CHECKED", NOT_CHECKED) if against.landing is None else ("VALID", reason)


def _with_landing(data: bytes, certificate: Certificate, against: Against) -> Iterator[str]:
    landing = against.landing
    if landing is None:
        return
    issued = _logged(data, landing)
    yield "in the log of this landing"
    if against.log_head is not None and landing_head(landing) != against.log_head:
        raise Settled("NOT_CURRENT", f"the landing is at {landing_head(landing)}, not at that head")
    if issued.revocations:
        raise Settled("REVOKED", f"revoked: {issued.revocations[0].reason}")
    yield "not revoked"
    _require_manifests(certificate, landing)
    yield f"{len(certificate.evidence['attempts'])} manifests under its root"
    try:
        _now(certificate, landing, against)
        yield "no later FAIL and no retraction of its evidence"
        yield _as_issued(certificate, issued, landing)
    except EvidenceError as error:
        raise Settled("ALTERED", error.text) from error


def _logged(data: bytes, landing: Landing) -> Issued:
    digest = to_text(sha256(data))
    found = next((each for each in read_log(landing) if each.digest == digest), None)
    if found is None:
        words = "this landing's log does not hold it: another landing, or one that lost entries"
        raise Settled("NOT_CURRENT", words)
    return found


def _require_manifests(certificate: Certificate, landing: Landing) -> None:
    for each in certificate.evidence["attempts"]:
        if manifest_of(landing, each["attempt"]) != each["manifest"]:
            raise Settled("ALTERED", f"the manifest of attempt {each['attempt']} is another one")


def _now(certificate: Certificate, landing: Landing, against: Against) -> None:
    """By all evidence there is, under the keys that whoever verifies trusts."""
    asked = certificate.asked()
    with derived(landing, {asked.execution_id}, heads_of(landing), against.trusted) as answers:
        rows = [r for r in rows_about(answers, asked) if certificate.is_about(r)]
        _require_kept(certificate, answers)
    words = [r.verdict.verdict for r in rows if r.verdict is not None]
    if "FAIL" in words and certificate.verdict == "PASS":
        failed = next(r for r in rows if r.verdict is not None and r.verdict.verdict == "FAIL")
        raise Settled("FAIL", f"a later FAIL: {failed.verdict and failed.verdict.reason}")
    if certificate.verdict not in words:
        found = ", ".join(words) or "nothing"
        raise Settled("NOT_CURRENT", f"today's evidence says {found}, not {certificate.verdict}")


def _require_kept(certificate: Certificate, answers: Answers) -> None:
    """Evidence that was withdrawn since carries nothing any more."""
    mine = {each["attempt"] for each in certificate.evidence["attempts"]}
    before = {each["attempt"] for each in certificate.claim["retractions"] if not each["ignored"]}
    known = queries.summaries(answers.store.con)
    gone = sorted(s.attempt for s in known if s.retracted and s.attempt in mine - before)
    if gone:
        raise Settled("RETRACTED", f"its evidence was retracted: attempt {', '.join(gone)}")


def _as_issued(certificate: Certificate, issued: Issued, landing: Landing) -> str:
    """The verdict as of the state it was issued over: every field as it was signed."""
    if head_over(issued.heads) != certificate.evidence["landing_head"]:
        raise EvidenceError("evidence-altered", "the log tells of another state than it was issued")
    asked = certificate.asked()
    ids, trusted = {asked.execution_id}, certificate.trusted_keys
    with derived(landing, ids, issued.heads, trusted) as answers:
        facts = queries.platforms(answers.store.con)
        rows = [r for r in rows_about(answers, asked) if certificate.is_about(r)]
    traced = certificate.claim["traced"]
    row = next((r for r in rows if r.verdict and r.verdict.traced == traced), None)
    if row is None:
        raise EvidenceError("evidence-altered", "the evidence gives no such verdict any more")
    again = claim_of(row, asked, facts)
    same_rules = certificate.tool["rule_version"] == RULE_VERSION
    keys = sorted({*again, *certificate.claim}) if same_rules else AMONG_RULES
    odd = [key for key in keys if _json(again.get(key)) != _json(certificate.claim.get(key))]
    if odd:
        words = f"the evidence gives another {', '.join(odd)}"
        failed = again["verdict"] == "FAIL" != certificate.verdict
        raise Settled("FAIL" if failed else "ALTERED", words)
    return f"{len(keys)} fields derived again from the evidence, all equal"


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
