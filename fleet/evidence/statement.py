"""The in-toto statement inside every envelope: what it is about, and what is said of it.

Subjects are resource descriptors (in-toto attestation framework, statement v1): an execution id and
a platform of a certificate, an attempt of a retraction. Knows no key and no verdict.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from fleet.contract.canonical import from_text, to_text
from fleet.errors import EvidenceError

STATEMENT = "https://in-toto.io/Statement/v1"
CERTIFICATE = "https://fleet.dev/attestation/certificate/v1"
RETRACTION = "https://fleet.dev/attestation/retraction/v1"
"""Predicate types. The number rises when a reader of the one before would misunderstand."""

TIME = "%Y-%m-%dT%H:%M:%SZ"


def statement(
    kind: str, subjects: Mapping[str, str], predicate: Mapping[str, Any]
) -> dict[str, Any]:
    """A statement; ``subjects``: name -> digest as text."""
    return {
        "_type": STATEMENT,
        "subject": [
            {"name": name, "digest": {"sha256": from_text(digest).hex()}}
            for name, digest in subjects.items()
        ],
        "predicateType": kind,
        "predicate": dict(predicate),
    }


def read_statement(payload: Mapping[str, Any], kind: str) -> tuple[dict[str, str], dict[str, Any]]:
    """Subjects and predicate of a statement of this kind.

    Raises:
        EvidenceError: it is no statement, or of another kind or version.
    """
    try:
        found = payload["_type"], payload["predicateType"]
        if found != (STATEMENT, kind):
            raise ValueError(f"{found[1]} in {found[0]}")
        subjects = {
            str(s["name"]): to_text(bytes.fromhex(s["digest"]["sha256"]))
            for s in payload["subject"]
        }
        predicate = payload["predicate"]
        if set(payload) != {"_type", "predicateType", "subject", "predicate"}:
            raise ValueError(f"keys {sorted(payload)}")
        if not isinstance(predicate, dict) or len(subjects) != len(payload["subject"]):
            raise ValueError("its predicate is no object, or a subject is named twice")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EvidenceError("evidence-altered", f"not a statement of {kind}: {error}") from error
    return subjects, predicate


def utc(at_s: float) -> str:
    """A time as statements write it, to the second."""
    return datetime.fromtimestamp(at_s, UTC).strftime(TIME)


def seconds(text: str) -> float:
    """The inverse of :func:`utc`.

    Raises:
        ValueError: it is no time in that form.
    """
    return datetime.strptime(text, TIME).replace(tzinfo=UTC).timestamp()
