"""A certificate: what was claimed of one contract on one platform, on what evidence, until when.

PASS, FAIL and VOID alike; the word is in the claim. A claim is all that a verdict says except the
time, so that whoever has the landing derives it again and compares every field. Holds no rule: it
writes down a row of ``fleet status``. Knows no key.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import fleet
from fleet.contract.canonical import canonical_json, sha256, to_text
from fleet.contract.model import Require
from fleet.errors import EvidenceError
from fleet.evidence.landing import Landing
from fleet.evidence.ledger import CERTIFICATES, Heads, head_over
from fleet.evidence.statement import CERTIFICATE, read_statement, seconds, statement, utc
from fleet.judge.present import DAY_S
from fleet.report.answers import Asked
from fleet.report.status import StatusRow

EXECUTION_ID, PLATFORM = "execution-id", "platform"
FROM_VERDICT = (
    "verdict", "code", "reason", "layer", "layers", "scope", "vary", "traced", "records",
    "mismatches", "arms", "bounds", "power", "envelope", "roots", "units", "first_broken_grade",
    "first_difference", "culprit", "fault", "warnings", "campaign", "retractions",
    "without_retractions",
)  # fmt: skip
"""Fields of a verdict that a claim takes over as they are."""


@dataclass(frozen=True)
class Certificate:
    """A certificate's predicate, checked for its form. Digests are ``sha256:<hex>`` text."""

    claim: Mapping[str, Any]
    evidence: Mapping[str, Any]
    issued_at: str
    expires_at: str
    trusted_keys: Mapping[str, str]
    tool: Mapping[str, Any]

    @property
    def verdict(self) -> str:
        """PASS, FAIL or VOID."""
        return str(self.claim["verdict"])

    @property
    def platform(self) -> str:
        """Digest of the platform."""
        return str(self.claim["platform"]["digest"])

    def asked(self) -> Asked:
        """What the judge was asked."""
        claim = self.claim
        require = Require.model_validate_json(json.dumps(claim["required"]))
        name, execution_id = str(claim["contract"]), str(claim["execution_id"])
        return Asked(name, execution_id, require, None, str(claim["dtype"]))

    def is_about(self, row: StatusRow) -> bool:
        """Is the row of its platform and claim, however it was traced?"""
        vary = tuple(self.claim["vary"])
        same = row.verdict is not None and row.verdict.vary == vary
        return same and row.platform == self.platform

    def to_predicate(self) -> dict[str, Any]:
        """The inverse of :func:`read_certificate`."""
        return {
            "claim": dict(self.claim),
            "evidence": dict(self.evidence),
            "issued_at": self.issued_at,
            "expires_at": self.expires_at,
            "trusted_keys": dict(self.trusted_keys),
            "tool": dict(self.tool),
        }

    def to_statement(self) -> dict[str, Any]:
        """As it is signed."""
        subjects = {EXECUTION_ID: self.claim["execution_id"], PLATFORM: self.platform}
        return statement(CERTIFICATE, subjects, self.to_predicate())


def claim_of(row: StatusRow, asked: Asked, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The claim of a row, as JSON reads it; ``facts``: platform digest -> what it stands for."""
    assert row.verdict is not None
    verdict = row.verdict.to_json()
    body = {key: verdict[key] for key in FROM_VERDICT} | {
        "contract": asked.name,
        "execution_id": asked.execution_id,
        "dtype": asked.dtype,
        "required": asked.require.model_dump(mode="json"),
        "grade": row.verdict.attained_grade,
        "platform": {
            "digest": row.platform,
            "label": row.platform_label,
            "facts": facts.get(row.platform),
        },
    }
    found: dict[str, Any] = json.loads(canonical_json(body))
    return found


def certify_row(
    row: StatusRow,
    asked: Asked,
    facts: Mapping[str, Any],
    landing: Landing,
    heads: Heads,
    trusted: Mapping[str, str],
    now_s: float,
    valid_days: int,
    rule_version: int,
) -> Certificate:
    """The certificate of a row that was derived from the landing at these heads.

    A PASS expires when its evidence does, however many days were asked for.
    """
    assert row.verdict is not None
    until_s = now_s + valid_days * DAY_S
    accepted = row.verdict.accepted_at_s
    if row.verdict.verdict == "PASS" and accepted is not None:
        until_s = min(until_s, accepted + asked.require.valid_days * DAY_S)
    return Certificate(
        claim=claim_of(row, asked, facts),
        evidence=evidence_of(landing, row.verdict.attempts)
        | {"landing_head": head_over(heads), "log_head": head_over(_log(heads))},
        issued_at=utc(now_s),
        expires_at=utc(until_s),
        trusted_keys=dict(trusted),
        tool={"name": "fleet", "version": fleet.__version__, "rule_version": rule_version},
    )


def _log(heads: Heads) -> Heads:
    return {name: head for name, head in heads.items() if name.startswith(CERTIFICATES)}


def evidence_of(landing: Landing, attempts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The attempts behind a verdict with the digests of their manifests, and one root over them."""
    listed = [
        {
            "attempt": a["attempt"],
            "state": a["state"],
            "manifest": manifest_of(landing, a["attempt"]),
        }
        for a in sorted(attempts, key=lambda a: str(a["attempt"]))
    ]
    return {"attempts": listed, "root": root_over(listed)}


def manifest_of(landing: Landing, attempt: str) -> str | None:
    """Digest of a manifest; None for an attempt that left none."""
    path = landing.manifest(attempt)
    return to_text(sha256(path.read_bytes())) if path.exists() else None


def root_over(listed: Iterable[Mapping[str, Any]]) -> str:
    """SHA-256 over attempt ids and manifest digests, sorted by attempt."""
    lines = sorted(f"{each['attempt']} {each['manifest'] or 'none'}\n" for each in listed)
    return to_text(sha256(b"fleet-evidence-1\n" + "".join(lines).encode()))


def read_certificate(payload: Mapping[str, Any]) -> Certificate:
    """The certificate of a statement.

    Raises:
        EvidenceError: it is none, of another version, or contradicts its own subjects or root.
    """
    subjects, predicate = read_statement(payload, CERTIFICATE)
    try:
        found = Certificate(**predicate)
        found.asked()
        seconds(found.issued_at), seconds(found.expires_at)
        rule = found.tool["rule_version"], found.evidence["landing_head"]
        told = {EXECUTION_ID: found.claim["execution_id"], PLATFORM: found.platform}
        if subjects != told or found.verdict not in ("PASS", "FAIL", "VOID") or None in rule:
            raise ValueError("its subjects are not those of its claim")
        if missing := {*FROM_VERDICT, "grade"} - set(found.claim):
            raise ValueError(f"its claim lacks {', '.join(sorted(missing))}")
        if found.evidence["root"] != root_over(found.evidence["attempts"]):
            raise ValueError("its root is not that of its attempts")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise EvidenceError("evidence-altered", f"no certificate: {error}") from error
    return found
