"""A landing of the product's writers in which one thing was changed, and the summary of it.

Where the worker itself is meant to have done it, manifest and ledger vouch for the changed rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fleet.contract.canonical import canonical_json, sha256, to_text
from fleet.evidence.landing import Landing, file_sha256
from fleet.evidence.ledger import START, chain_folder, read_chain
from fleet.evidence.manifest import Part
from fleet.evidence.summarise import summarise
from fleet.evidence.summary import AttemptSummary
from tests.landing_builder import (
    AttemptSpec,
    build_landing,
)

A = AttemptSpec("a" * 16)
ARMS = ["controlled", "current"]
Change = Callable[[dict[str, Any]], None]


def landed(tmp_path: Path, spec: AttemptSpec = A) -> Landing:
    return build_landing(tmp_path / "landing", [spec])


def summary(landing: Landing, attempt: str = A.attempt) -> AttemptSummary:
    return summarise(landing, attempt, read_chain(landing, "c1"))


def void(landing: Landing, code: str, *words: str) -> AttemptSummary:
    found = summary(landing)
    assert found.cause is not None
    assert (found.state, found.cause.code) == ("VOID", code), found.cause
    for word in words:
        assert word in found.cause.text
    assert (found.arms, found.roots, found.power) == ({}, {}, None)
    return found


def rewrite_entry(landing: Landing, kind: str, change: Change) -> None:
    """Change an entry's body and make the chain whole again, as a forger with time would."""
    folder, head = chain_folder(landing, "c1"), START
    for path in sorted(folder.glob("*.json")):
        raw = json.loads(path.read_bytes()) | {"previous": head}
        if raw["kind"] == kind:
            change(raw["body"])
        path.write_bytes(canonical_json(raw))
        head = to_text(sha256(path.read_bytes()))


def rewrite_manifest(landing: Landing, change: Change, accept: bool = True) -> None:
    """Change the manifest; the ledger accepts the changed one unless told otherwise."""
    path = landing.manifest(A.attempt)
    raw = json.loads(path.read_bytes())
    change(raw)
    path.write_bytes(canonical_json(raw))
    if accept:
        digest = to_text(sha256(path.read_bytes()))
        rewrite_entry(landing, "accepted", lambda body: body.update(manifest_sha256=digest))


def vouch(landing: Landing) -> None:
    """Manifest and ledger name the parts as they are on disk now, and the roots of their rows."""
    paths = landing.parts(A.attempt)

    def change(raw: dict[str, Any]) -> None:
        raw["parts"] = [vars(Part(p.name, 0, p.stat().st_size, file_sha256(p))) for p in paths]

    rewrite_manifest(landing, change)
