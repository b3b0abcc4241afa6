"""A later FAIL revokes the certificates of what it contradicts, at the end of a campaign.

Every PASS certificate in the landing's log of the same execution id, platform and claim, judged by
what was required when it was issued. Doing it twice records nothing more. Holds no rule.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from fleet.errors import EvidenceError, FleetError
from fleet.evidence import signing
from fleet.evidence.issued import Issued, log_revocation, read_log
from fleet.evidence.landing import Landing
from fleet.judge.verdict import Verdict
from fleet.report.answers import Answers
from fleet.report.certificate import Certificate, read_certificate
from fleet.report.derived import rows_about
from fleet.store.open import Store


def revoke(
    landing: Landing, store: Store, campaign: str, only: Collection[str]
) -> list[tuple[Issued, Certificate]]:
    """Record the revocations that are due, and return what was revoked.

    Args:
        landing: its log, and where they are recorded.
        store: brought up to that landing.
        campaign: the one that ended.
        only: execution ids to look at.
    """
    answers = Answers(store, landing)
    found = []
    for issued, certificate in _in_force(landing, only):
        failed = _failed(answers, certificate)
        if failed is not None:
            log_revocation(landing, issued.digest, campaign, failed.reason)
            found.append((issued, certificate))
    return found


def _in_force(landing: Landing, only: Collection[str]) -> Iterator[tuple[Issued, Certificate]]:
    """What is in the log and no certificate revokes nothing and cannot be revoked; whoever signed
    the others, a FAIL contradicts them."""
    for issued in read_log(landing):
        try:
            certificate = read_certificate(signing.unverified(issued.envelope))
        except EvidenceError:
            continue
        about = certificate.claim["execution_id"] in only
        if about and certificate.verdict == "PASS" and not issued.revocations:
            yield issued, certificate


def _failed(answers: Answers, certificate: Certificate) -> Verdict | None:
    rows = rows_about(answers, certificate.asked())
    verdicts = (row.verdict for row in rows if certificate.is_about(row))
    return next((v for v in verdicts if v is not None and v.verdict == "FAIL"), None)


def revoke_and_tell(
    landing: Landing, store: Store, campaign: str, only: Collection[str], say: Callable[[str], None]
) -> None:
    """What cannot be recorded is due again next time; who verifies with the landing sees it too."""
    try:
        revoked = revoke(landing, store, campaign, only)
    except (FleetError, OSError) as error:
        return say(f"certificates could not be revoked: {error}")
    for issued, certificate in revoked:
        say(f"certificate {issued.digest} of {certificate.claim['contract']} is revoked")
