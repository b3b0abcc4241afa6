"""What execution ids stand for, as a landing keeps it: ``contracts/<execution id hex>.json``.

An id is the digest of what it stands for, so each file is held against its own name. Knows no
ledger and no verdict: which ids were planned it is told.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleet.contract.canonical import canonical_json
from fleet.contract.execution_id import id_of, unflat
from fleet.evidence.landing import Landing


@dataclass(frozen=True)
class KeptContracts:
    """``bodies`` that check, by execution id; ``faults``: id -> which file is not what it must be,
    or is gone."""

    bodies: dict[bytes, dict[str, Any]] = field(default_factory=dict)
    faults: dict[bytes, str] = field(default_factory=dict)


def read_contracts(landing: Landing, planned: Iterable[bytes]) -> KeptContracts:
    """What every planned id stands for."""
    found = KeptContracts()
    for digest in sorted(set(planned)):
        path = landing.contract(digest)
        body = _body(path, digest)
        if body is not None:
            found.bodies[digest] = body
        else:
            odd = "not what its name is the digest of" if path.exists() else "gone"
            found.faults[digest] = f"contracts/{path.name}: {odd}"
    return found


def _body(path: Path, digest: bytes) -> dict[str, Any] | None:
    """None when the file is not there, or not what the id stands for."""
    try:
        data = path.read_bytes()
        body = json.loads(data)
        same = id_of(body["execution_part"], unflat(body["digests"])) == digest
        return body if same and canonical_json(body) == data else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
