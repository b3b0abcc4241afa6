"""The manifest closes an attempt: written last, once, and never changed.

Knows no verdict. Keeps law 2: it states what one process did and nothing about any other.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any, get_args

from fleet.contract.canonical import canonical_json, sha256
from fleet.errors import EvidenceError
from fleet.evidence.states import Cause, Purpose, State

MANIFEST_FORMAT = 2
_WHERE_VARIED = ("varied", "stress")


@dataclass(frozen=True)
class Part:
    """One Parquet part: file name inside the attempt's folder, rows, size, SHA-256 as text."""

    name: str
    rows: int
    num_bytes: int
    sha256: str


@dataclass(frozen=True)
class Process:
    """A process identity that survives pid reuse: pid plus start tick, inside one boot."""

    boot_id: str
    pid_namespace: str
    pid: int
    start_tick: int


@dataclass(frozen=True)
class Manifest:
    """What one process did. Digests are ``sha256:<hex>`` text.

    ``trace``: ``files`` (name -> digest), ``coverage``, ``hooks``, ``repeats``; empty if untraced.
    ``varied``: what this replay took in place of the contract's own values, as planned; ``stress``:
    counters that prove it, one table per varied name. Both are absent where they are empty.
    """

    attempt: str
    campaign: str
    slot: int
    purpose: Purpose
    contract: str
    execution_id: str
    state: State
    cause: Cause | None
    num_samples: int
    arms: tuple[str, ...]
    parts: tuple[Part, ...]
    roots: dict[str, str]
    arm_roots: dict[str, dict[str, str]]
    stages: dict[str, str]
    platform: dict[str, Any]
    platform_sha256: str
    unit: dict[str, Any]
    process: Process
    freshness: dict[str, Any]
    effective: dict[str, Any]
    effective_end: dict[str, Any]
    census: dict[str, Any]
    envelope: dict[str, Any]
    logs: dict[str, str]
    warnings: tuple[str, ...] = ()
    traced: bool = False
    vary: tuple[str, ...] = ()
    volatile: dict[str, Any] = field(default_factory=dict)
    trace: dict[str, Any] = field(default_factory=dict)
    varied: dict[str, Any] = field(default_factory=dict)
    stress: dict[str, Any] = field(default_factory=dict)
    format: int = MANIFEST_FORMAT

    def to_bytes(self) -> bytes:
        """Canonical JSON; that of an exact repeat has no key of a varied one."""
        body = asdict(self)
        return canonical_json({k: v for k, v in body.items() if v or k not in _WHERE_VARIED})

    @property
    def digest(self) -> bytes:
        """SHA-256 of :meth:`to_bytes`; the ledger's *accepted* entry holds it."""
        return sha256(self.to_bytes())

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Read a manifest.

        Raises:
            EvidenceError: when it is not one, or was written by newer code.
        """
        try:
            raw = json.loads(data)
            if raw.get("format") != MANIFEST_FORMAT:
                raise EvidenceError(
                    "evidence-altered", f"manifest.json: format {raw.get('format')!r}"
                )
            known = {f.name for f in fields(cls)}
            odd = set(raw) ^ known - {key for key in _WHERE_VARIED if key not in raw}
            if odd or any(not raw.get(key, True) for key in _WHERE_VARIED):
                raise EvidenceError("evidence-altered", f"manifest.json: keys {sorted(odd)}")
            raw = {key: {} for key in _WHERE_VARIED} | raw
            _require_types(raw)
            cause = Cause(**raw["cause"]) if raw["cause"] is not None else None
            return cls(
                **raw
                | {
                    "cause": cause,
                    "arms": tuple(raw["arms"]),
                    "parts": tuple(Part(**part) for part in raw["parts"]),
                    "process": Process(**raw["process"]),
                    "warnings": tuple(raw["warnings"]),
                    "vary": tuple(raw["vary"]),
                }
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise EvidenceError(
                "evidence-altered", f"manifest.json: not a manifest: {error}"
            ) from error


_TYPES: dict[str, type] = {"str": str, "int": int, "bool": bool, "dict": dict}


def _require_types(raw: dict[str, Any]) -> None:
    """The JSON type of every plain field, so that no reader meets a list where a table belongs."""
    for f in fields(Manifest):
        wanted = _TYPES.get(str(f.type).partition("[")[0])
        if wanted is not None and type(raw[f.name]) is not wanted:
            raise TypeError(f"{f.name} is no {wanted.__name__}")
    for name, words in (("state", get_args(State)), ("purpose", get_args(Purpose))):
        if raw[name] not in words:
            raise TypeError(f"{name} is none of {', '.join(words)}")
