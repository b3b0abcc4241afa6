"""One attempt, checked against its ledger and boiled down to what the judge reads.

Everything is re-derived from landed bytes: part digests, sample set, NULLs, row digests and roots.
What does not hold turns the state into VOID with its cause; nothing is repaired. Knows no other
attempt (law 2) and no verdict.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from fleet.evidence.manifest import Process
from fleet.evidence.states import Cause, Purpose, State

STAGE_COLUMNS: tuple[str, ...] = (
    "raw_record_sha256",
    "prompt_sha256",
    "prompt_ids_sha256",
    "attention_mask_sha256",
    "settings_sha256",
    "logits_sha256",
    "tokens_sha256",
    "prediction_sha256",
)
"""Row digests whose column digest (over an arm's rows in dataset order) a summary carries; those of
:data:`fleet.evidence.images.DIGEST_COLUMNS` too, where samples have images."""


@dataclass(frozen=True)
class ArmSummary:
    """One arm of one attempt.

    ``roots``: grade -> sha256 text, only for a COMPLETE attempt. ``columns``: one digest per entry
    of :data:`STAGE_COLUMNS`, likewise. Counts are records.
    """

    rows: int
    correct: int
    unparsed: int
    truncated: int
    roots: dict[str, str]
    columns: dict[str, str]


@dataclass(frozen=True)
class Power:
    """How much a set of equal records can prove (law 8). Counts are records unless named.

    Inputs are distinct by their ids and pixels: what the model saw, whatever the record was called.
    """

    records: int
    distinct_inputs: int
    distinct_outputs: int
    duplicates: int
    decode_steps: int
    ended_at_step_1: int
    unparsed: int
    truncated: int
    nonfinite: int
    exact_ties: int
    smallest_margin: float | None


@dataclass(frozen=True)
class Withdrawal:
    """A retraction as a reader sees it. ``by``: the id of its key, ``name``: what the reader calls
    that key; ``ignored``: why it does not count, None when it does."""

    attempt: str
    reason: str
    by: str
    name: str
    at: str
    ignored: str | None

    def in_words(self) -> str:
        """For a person."""
        who = f"key {self.by[:12]}" + (f" ({self.name})" if self.name else "")
        if self.ignored is None:
            return f"attempt {self.attempt} was retracted {self.at} by {who}: {self.reason}"
        return f"retraction of attempt {self.attempt} ignored: {self.ignored} ({who}, {self.at})"

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        return asdict(self)


@dataclass(frozen=True)
class AttemptSummary:
    """What the judge knows of one attempt. Digests are ``sha256:<hex>`` text.

    ``accepted_at_s`` is the time of the ledger's *accepted* entry, None when not accepted.
    ``stages``: checkpoint, post_init_weights, end_weights, effective, effective_end digests.
    ``unit`` is the unit's identity, ``platform`` the class key. ``trace``: coverage of a replay
    that was certified with every call traced; ``gap``: why it is not complete, or None; ``doubt``:
    why its hooks may have changed what they watched, or None. ``varied``: what it took in place of
    the contract's own values; ``effective`` and its digests leave out what follows from that.
    ``pruned``: its rows are gone, by a decision that the ledger holds; all else is as it was.
    ``stack``: the digest of the software stack that it was sent to, "" for the unit's own.
    ``withdrawals``: retractions of it, as whoever reads it sees them; none is ever stored here.
    ``night``: the one that its campaign was a unit's part of, "" for a campaign of its own.
    """

    attempt: str
    campaign: str
    slot: int
    purpose: Purpose
    contract: str
    execution_id: str
    platform: str
    unit: str
    state: State
    cause: Cause | None
    accepted_at_s: float | None
    traced: bool
    vary: tuple[str, ...]
    num_samples: int
    rows: int
    arms: dict[str, ArmSummary]
    roots: dict[str, str]
    stages: dict[str, str]
    process: Process | None
    power: Power | None
    envelope: dict[str, Any]
    warnings: tuple[str, ...] = ()
    effective: dict[str, Any] = field(default_factory=dict)
    trace: dict[str, Any] = field(default_factory=dict)
    varied: dict[str, Any] = field(default_factory=dict)
    pruned: bool = False
    night: str = ""
    stack: str = ""
    withdrawals: tuple[Withdrawal, ...] = ()

    @cached_property
    def objections(self) -> dict[str, Cause | None]:
        """The judge's note, by required grade: a verdict asks many times. No evidence, and empty in
        every copy."""
        return {}

    @property
    def is_reference(self) -> bool:
        """Did it take the contract's own values?"""
        return not self.varied

    @property
    def retracted(self) -> bool:
        """Was its evidence withdrawn, by a key that counts?"""
        return any(each.ignored is None for each in self.withdrawals)

    def to_json(self) -> dict[str, Any]:
        """JSON-able form, the inverse of :meth:`from_json`."""
        return asdict(replace(self, withdrawals=()))

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> AttemptSummary:
        """Read :meth:`to_json`."""
        return cls(
            **raw
            | {
                "cause": Cause(**raw["cause"]) if raw["cause"] else None,
                "vary": tuple(raw["vary"]),
                "arms": {name: ArmSummary(**arm) for name, arm in raw["arms"].items()},
                "process": Process(**raw["process"]) if raw["process"] else None,
                "power": Power(**raw["power"]) if raw["power"] else None,
                "warnings": tuple(raw["warnings"]),
                "withdrawals": (),
            }
        )
