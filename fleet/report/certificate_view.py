"""What a person sees of certificates: one, its verification, and the log of a landing.

Knows no rule; every word about a verdict comes from the judge.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from fleet.contract.vary import in_words
from fleet.errors import EvidenceError
from fleet.evidence import signing
from fleet.evidence.issued import Issued
from fleet.report import screen
from fleet.report.certificate import Certificate, read_certificate
from fleet.report.verification import Verification


def certificate_lines(certificate: Certificate) -> Iterator[str]:
    """What is claimed, of what, on what evidence, until when."""
    claim, evidence, tool = certificate.claim, certificate.evidence, certificate.tool
    bounds = claim["bounds"]
    low = (claim["power"] or {}).get("low")
    yield f"{claim['contract']}: {claim['reason']}"
    yield f"  execution id  {claim['execution_id']}"
    yield f"  platform      {certificate.platform} ({claim['platform']['label']})"
    yield f"  verdict       {certificate.verdict}{', low power' if low else ''}"
    grade, vary = claim["grade"] or "-", in_words(tuple(claim["vary"])) or "exact repeat"
    required = claim["required"]["grade"]
    yield f"  grade, scope  {grade} of {required} required, {claim['scope']}, {vary}"
    yield f"  n, bounds     {claim['records']} records; {_bounds(bounds)}"
    num = len(evidence["attempts"])
    yield f"  evidence      {num} attempts, root {evidence['root']}"
    yield f"  ledger        landing {evidence['landing_head']}, log {evidence['log_head']}"
    yield f"  validity      {certificate.issued_at} to {certificate.expires_at}"
    yield f"  made by       fleet {tool['version']}, rules {tool['rule_version']}"
    for each in claim["retractions"]:
        yield f"  {each['words']}"


def _bounds(bounds: dict[str, Any]) -> str:
    if bounds.get("record") is None:
        return "no bound without a PASS"
    process = bounds.get("process")
    told = "not bounded" if process is None else f"<= {process:.3%}"
    return f"record <= {bounds['record']:.3%}, process {told}"


def print_certificate(console: Console, data: bytes) -> None:
    """As it reads; nothing of it was checked.

    Raises:
        EvidenceError: it is no certificate.
    """
    certificate = read_certificate(signing.unverified(data))
    for line in certificate_lines(certificate):
        screen.verbatim(console, line)
    screen.verbatim(console, f"  key           {signing.signed_by(data)} (signature not checked)")


def print_verification(console: Console, found: Verification) -> None:
    """The certificate, what held, and what settled it."""
    if found.certificate is not None:
        for line in certificate_lines(found.certificate):
            screen.verbatim(console, line)
    for words in found.passed:
        screen.verbatim(console, f"  ok: {words}")
    style = {0: "green", 1: "red"}.get(found.code, "yellow")
    screen.verbatim(console, Text(f"{found.result}: {found.words}", style=style))


def log_document(log: Iterable[Issued]) -> dict[str, Any]:
    """One entry per certificate of a landing's log."""
    return {"schema": 1, "certificates": [_entry(each) for each in log]}


def _entry(issued: Issued) -> dict[str, Any]:
    body: dict[str, Any] = {"certificate": issued.digest, "key": None, "contract": None}
    body |= {"platform": None, "vary": None, "verdict": None, "issued_at": None, "expires_at": None}
    body["revocations"] = [each.to_json() for each in issued.revocations]
    try:
        found = read_certificate(signing.unverified(issued.envelope))
    except EvidenceError:
        return body
    told = {key: found.claim[key] for key in ("contract", "vary", "verdict")}
    times = {"issued_at": found.issued_at, "expires_at": found.expires_at}
    key = signing.signed_by(issued.envelope)
    return body | told | times | {"platform": found.platform, "key": key}


def print_log(console: Console, entries: Sequence[dict[str, Any]]) -> None:
    """One line per certificate."""
    names = ("certificate", "contract", "verdict", "issued", "expires", "revoked", "platform")
    table = screen.table(console, "certificates (signatures not checked)", *names)
    for each in entries:
        table.add_row(
            _short(each["certificate"]), Text(each["contract"] or "unreadable"),
            each["verdict"] or "-", each["issued_at"] or "-", each["expires_at"] or "-",
            "yes" if each["revocations"] else "-", _short(each["platform"] or "-"),
        )  # fmt: skip
    console.print(table)


def _short(digest: str) -> str:
    return digest.removeprefix("sha256:")[:12]
