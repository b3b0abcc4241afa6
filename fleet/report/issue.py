"""``fleet certificate issue``: find the claim, derive its verdict from the landing, sign, log.

The store is not asked: a certificate rests on evidence that was read for it. It is logged before
anybody gets it, so that a later FAIL finds it. Holds no rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fleet.contract.model import GRADES
from fleet.contract.vary import claim as claim_words
from fleet.contract.vary import in_words
from fleet.errors import FleetError, UsageError
from fleet.evidence import signing
from fleet.evidence.issued import log_issue
from fleet.evidence.landing import Landing
from fleet.evidence.ledger import heads_of
from fleet.evidence.view import plans
from fleet.judge import RULE_VERSION
from fleet.report.answers import Answers, Asked, known_contracts
from fleet.report.certificate import Certificate, certify_row
from fleet.report.derived import derived, rows_about
from fleet.report.status import StatusRow
from fleet.report.today import Today
from fleet.store import queries

if TYPE_CHECKING:
    from securesystemslib.signer import CryptoSigner

STATUS = "fleet status"


@dataclass(frozen=True)
class Wanted:
    """What to certify. ``platform``: the beginning of a digest; ``vary``: None for the contract's
    own claim; ``valid_days``: None for as long as the contract says."""

    contract: str
    platform: str | None = None
    vary: tuple[str, ...] | None = None
    valid_days: int | None = None


def issue(
    wanted: Wanted,
    landing: Landing,
    search: Sequence[Path],
    cache: Path,
    trusted: Mapping[str, str],
    signer: CryptoSigner,
    now_s: float,
) -> tuple[Certificate, bytes]:
    """A certificate and its envelope, logged in the landing.

    Raises:
        UsageError: no such contract, platform or claim, or several.
        FleetError: nothing was tested, or what was has expired.
    """
    ids = {
        str(e.body.get("execution_id"))
        for own in plans(landing).values()
        for e in own
        if e.body.get("contract") == wanted.contract
    }
    if not ids:
        raise _usage(wanted.contract, "a contract with evidence in this landing", "none", STATUS)
    heads = heads_of(landing)
    with derived(landing, ids, heads, trusted) as answers:
        asked = _asked(answers, wanted, search, cache)
        row = _row(rows_about(answers, asked), wanted, asked)
        facts = queries.platforms(answers.store.con)
    if row.state == "STALE":
        raise FleetError(f"{asked.name}: its PASS is STALE: fleet certify {asked.name}")
    found = certify_row(
        row, asked, facts, landing, heads, trusted, now_s,
        wanted.valid_days or asked.require.valid_days, RULE_VERSION,
    )  # fmt: skip
    envelope = signing.sign(found.to_statement(), signer)
    log_issue(landing, envelope, heads)
    return found, envelope


def _asked(answers: Answers, wanted: Wanted, search: Sequence[Path], cache: Path) -> Asked:
    """The contract as its file says today, where the evidence is about that."""
    name = wanted.contract
    ours = [a for a in known_contracts(answers.store) if a.name == name]
    bodies = {
        (row.name, row.execution_id): row.body for row in queries.contracts(answers.store.con)
    }
    current, note = Today(bodies, search, cache).about(ours, name)
    if len(current) > 1:
        got = ", ".join(a.execution_id for a in current)
        raise _usage(name, "one execution id", got, "a config path with its contract")
    if not current:
        raise FleetError(f"{name}: {note}: fleet certify {name}")
    if current[0].expect is not None:
        raise _usage(name, "a contract that promises something", "a control", STATUS)
    return current[0]


def _row(rows: Sequence[StatusRow], wanted: Wanted, asked: Asked) -> StatusRow:
    """The one row that was meant. Traced and untraced replays of one claim stand in two: a FAIL is
    never passed over, then what reaches the highest grade is taken."""
    vary = claim_words(asked.require.vary) if wanted.vary is None else wanted.vary
    mine = [r for r in rows if r.verdict is not None and r.verdict.vary == vary]
    tested = [r for r in mine if r.state != "UNTESTED" and r.platform]
    if not tested:
        raise FleetError(f"{asked.name}, {in_words(vary)}: UNTESTED: fleet certify {asked.name}")
    beginning = "sha256:" + (wanted.platform or "").removeprefix("sha256:")
    here = [r for r in tested if r.platform.startswith(beginning)]
    places = dict.fromkeys(f"{r.platform} ({r.platform_label})" for r in (here or tested))
    if len(places) > 1 or not here:
        raise _usage("--platform", "the digest of one platform", ", ".join(places), "name one")
    return min(here, key=_precedence)


def _precedence(row: StatusRow) -> tuple[bool, int]:
    verdict = row.verdict
    assert verdict is not None
    grade = verdict.attained_grade
    return verdict.verdict != "FAIL", -(GRADES.index(grade) if grade in GRADES else -1)


def _usage(key: str, expected: str, got: str, fix: str) -> UsageError:
    return UsageError("certificate issue", key, expected, got, fix)
