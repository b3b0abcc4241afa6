"""The closed words for how an attempt ended, and why.

*Differs* and *could not run* never share a word: none of these says that two runs differ.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

State = Literal["COMPLETE", "FAILED", "LOST", "VOID"]
Purpose = Literal["certify", "screen", "trace", "replay"]

RETRIED: frozenset[State] = frozenset({"FAILED", "LOST"})

CAUSES: dict[str, str] = {
    # VOID: the attempt contradicts its own contract or the protocol
    "setting-not-in-force": "a setting the contract asks for was not in force in the process",
    "undeclared-decoding": "a decoding rule was in force that the contract does not declare",
    "weights-not-of-checkpoint": "a loaded tensor is not the checkpoint's",
    "pinned-content-changed": "a pinned checkpoint, dataset, tokenizer, template or parser changed",
    "inputs-changed": "a sample's images gave other pixels when they were run than before",
    "not-fresh": "the process was not fresh",
    "cannot-observe": "a fact that the protocol needs could not be observed",
    "placement": "a tensor was not on the slot's device",
    "device-not-free": "another process held the device, before the replay or beside it",
    "device-fault": "the device reported an uncorrectable error during the replay",
    "clock-dependent-template": "a template reads the clock and the contract pins none",
    "sample-set": "the landed samples are not the planned samples, each once per arm",
    "missing-evidence": "a field that the grade needs is missing",
    "evidence-altered": "landed bytes do not match the manifest or the ledger",
    "not-accepted": "the ledger does not accept this attempt",
    "ledger-gap": "a planned attempt has no end in the ledger",
    "duplicate-attempt": "one attempt is offered as two",
    "weights-changed": "weights changed while the replay ran",
    "stack-differs": "the software in effect is not what was frozen as the stack",
    "retracted": "a signed retraction withdrew the attempt's evidence",
    "stress-not-applied": "what the set varies did not take the planned value in the process",
    # FAILED: it could not finish
    "out-of-memory": "the process ran out of memory",
    "disk-full": "the landing or a cache could not be written",
    "landing-unreachable": "what the process left could not be brought to the landing",
    "killed": "the process was killed by a signal",
    "engine-error": "the engine raised",
    "parser-error": "the arm's parser raised, or returned what no parser may",
    "load-error": "the model could not be loaded",
    "hang": "no end within the deadline; the process was killed and its death observed",
    "start": "the process did not start in time",
    "unschedulable": "no node offered the resources in time",
    # LOST: nobody knows
    "node-unreachable": "the node went away; whether the process lived on is unknown",
    "death-not-observed": "the process was told to end and its death was not observed",
    "driver-gone": "the driver ended before it recorded an end",
}


IN_LANDING: dict[str, Any] = {"in_landing": True}
"""Details of a cause that was found by reading what landed: it is not what was written."""


@dataclass(frozen=True)
class Cause:
    """Why an attempt did not complete."""

    code: str
    text: str
    details: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.code not in CAUSES:
            raise ValueError(f"unknown cause {self.code!r}")

    @property
    def is_tampering(self) -> bool:
        """Was what landed changed, dropped or put there by somebody else?"""
        return bool(self.details.get("in_landing"))

    def to_json(self) -> dict[str, Any]:
        """A JSON-able copy."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.code}: {self.text}"


def ran_to_its_end(state: State, cause: Cause | None) -> bool:
    """Did the process do all it was planned to do? One whose weights changed did."""
    return state == "COMPLETE" or (cause is not None and cause.code == "weights-changed")
