"""``fleet certificate`` and ``fleet retract``: everything that signs. Thin, as other verbs are.

A private key comes from a file or ``FLEET_SIGNING_KEY``; none is made but by ``keygen``. Holds no
rule: issuing, verifying and retracting are their rooms'.
"""

from __future__ import annotations

import os
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fleet.errors import EvidenceError, UsageError
from fleet.options import LANDING, Form, Json, Where, grouped
from fleet.report.screen import emit, out, progress

if TYPE_CHECKING:
    from fleet.evidence.landing import Landing

certificate_app = typer.Typer(
    help="Make keys; issue, verify, show or list certificates.", no_args_is_help=True
)

CertificateFile = Annotated[Path, typer.Argument(help="A certificate's file.")]
PrivateKey = Annotated[
    Path | None, typer.Option(help="Private key as PEM; else FLEET_SIGNING_KEY holds it.")
]
CODES = {"PASS": 0, "FAIL": 1}


@certificate_app.command("keygen")
@grouped
def keygen(
    out_file: Annotated[Path, typer.Option("--out", help="New file; FILE.pub goes beside it.")],
    where: Where,
    name: Annotated[str, typer.Option(help="Whose key it is.")] = "NAME",
) -> None:
    """Make an Ed25519 key pair, and print the line that declares it trusted. Replaces nothing."""
    from fleet.evidence.signing import generate

    key = generate(out_file)
    print(f"{out_file}: the private key; {out_file}.pub: the public one")
    print(f"{key.keyid} {name}")


@certificate_app.command("issue")
@grouped
def issue(
    contract: Annotated[str, typer.Argument(help="Name of a contract with evidence.")],
    where: Where,
    key: PrivateKey = None,
    platform: Annotated[str | None, typer.Option(help="Digest of one, or its beginning.")] = None,
    vary: Annotated[
        str | None, typer.Option(help="What replays varied, joined by commas, or none.")
    ] = None,
    valid_days: Annotated[
        int | None, typer.Option(min=1, help="Expires then; a PASS no later than its evidence.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="New file; the screen if left out.")] = None,
) -> None:
    """Sign what the evidence says of a contract: PASS, FAIL or VOID. Exits by that word."""
    from fleet.contract.vary import parse_claims
    from fleet.evidence.landing import Landing
    from fleet.evidence.signing import KEY_VARIABLE, signer_of
    from fleet.report.certificate_view import certificate_lines
    from fleet.report.issue import Wanted, issue

    places = where.places()
    signer = signer_of(key, os.environ.get(KEY_VARIABLE))
    claim = None if vary is None else parse_claims([vary])[0]
    _require_new(output)
    with progress("deriving the verdict from the landing"):
        source = where.pulled()
        landing = Landing.open(source.root, create=True, remote=source.remote)
        wanted = Wanted(contract, platform, claim, valid_days)
        found, envelope = issue(
            wanted, landing, places.search, places.cache, places.trusted, signer, time.time()
        )
    if output is None:
        print(envelope.decode(), end="")
    else:
        output.write_bytes(envelope)
        print("\n".join((*certificate_lines(found), f"  written to {output}")))
    raise typer.Exit(CODES.get(found.verdict, 3))


def _require_new(output: Path | None) -> None:
    if output is not None and (output.exists() or not output.parent.is_dir()):
        expected = "a new file in an existing folder"
        raise UsageError("--output", "", expected, str(output), "name another one")


@certificate_app.command("verify")
@grouped
def verify(
    file: CertificateFile,
    where: Where,
    form: Form,
    key: Annotated[Path, typer.Option(help="Public key, as PEM, of whoever should have signed.")],
    at: Annotated[str | None, typer.Option(help="ISO time with a zone; now if left out.")] = None,
    contract: Annotated[
        str | None, typer.Option(help="It must be about this contract, as it is here.")
    ] = None,
    subject: Annotated[
        str | None, typer.Option(help="It must be about this execution id or platform.")
    ] = None,
    log_head: Annotated[
        str | None, typer.Option(help="The landing's head must be this, learned elsewhere.")
    ] = None,
) -> None:
    """Hold a certificate against a key, a time and, where there is a landing, all its evidence."""
    from fleet.evidence.signing import public_key
    from fleet.report.certificate_view import print_verification
    from fleet.report.verification import Against, verify

    places = where.places()
    data = _read(file)
    found_key = public_key(key)
    at_s = time.time() if at is None else _time(at)
    with progress("verifying") as say:
        if contract is not None:
            from fleet.schedule.resolve import resolve_contract

            if subject is not None:
                raise UsageError("--contract", "", "either it or --subject", "both", "drop one")
            subject = resolve_contract(contract, places.search, places.cache, say).execution_id
        landing = _landing(where)
        if log_head is not None and landing is None:
            raise UsageError("--log-head", "", "a landing", "none", "pass --landing too")
        against = Against(found_key, at_s, subject, landing, log_head, places.trusted)
        found = verify(data, against)
    form.show(found.to_json(), print_verification, found)
    raise typer.Exit(found.code)


def _landing(where: Where) -> Landing | None:
    """The landing that was named, or is where one would be; None for no landing."""
    if where.landing == LANDING and not (Path(LANDING) / "FORMAT.json").exists():
        return None
    return where.pulled()


def _time(text: str) -> float:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise UsageError("--at", "", "an ISO time with a zone", repr(text), "2027-01-31T12:00:00Z")
    return found.timestamp()


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        got = error.strerror or str(error)
        raise UsageError(str(file), "", "a certificate", got, "name its file") from error


@certificate_app.command("show")
@grouped
def show(file: CertificateFile, where: Where, as_json: Json = False) -> None:
    """Print a certificate; checks nothing of it."""
    from fleet.evidence import signing
    from fleet.report.certificate import read_certificate
    from fleet.report.certificate_view import print_certificate

    data = _read(file)
    try:
        if as_json:
            predicate = read_certificate(signing.unverified(data)).to_predicate()
            return emit({"schema": 1, "key": signing.signed_by(data)} | predicate)
        with out() as console:
            print_certificate(console, data)
    except EvidenceError as error:
        fix = "fleet certificate verify FILE --key PUBLIC says more"
        raise UsageError(str(file), "", "a certificate", error.text, fix) from error


@certificate_app.command("list")
@grouped
def show_log(where: Where, form: Form) -> None:
    """Every certificate of the landing's log, and which are revoked."""
    from fleet.evidence.issued import read_log
    from fleet.report.certificate_view import log_document, print_log

    document = log_document(read_log(where.pulled()))
    form.show(document, print_log, document["certificates"])


@grouped
def retract(
    attempt: Annotated[str, typer.Argument(help="Attempt id, or an unambiguous beginning.")],
    reason: Annotated[str, typer.Option(help="Why its evidence is withdrawn.")],
    where: Where,
    form: Form,
    key: PrivateKey = None,
) -> None:
    """Withdraw an attempt's evidence by a signed record; nothing is removed, verdicts show it."""
    from fleet.evidence.landing import Landing
    from fleet.evidence.retractions import record
    from fleet.evidence.signing import KEY_VARIABLE, signer_of
    from fleet.report.retract import attempt_of, print_retracted, told
    from fleet.schedule.certify import ingest_and_publish

    places = where.places()
    signer = signer_of(key, os.environ.get(KEY_VARIABLE))
    with progress("recording the retraction"):
        source = where.pulled()
        landing = Landing.open(source.root, create=True, remote=source.remote)
        made = record(landing, attempt_of(landing, attempt), reason, signer, time.time())
        ingest_and_publish(where.store, landing)
    found = told(made, places.trusted)
    form.show(found.to_json(), print_retracted, found)
