"""Every error this package raises on purpose, drawn as a tree.

    FleetError
    |- UsageError            what the user gave cannot be used: exit 2, one message, no traceback
    |  |- ContractError      a contract TOML, or what it refers to
    |  |- DatasetError       a dataset TOML or its JSONL
    |  |- FleetFileError     a fleet TOML
    |  |- PolicyError        a policy TOML
    |  |- StackError         a stack TOML, or the environment that it names
    |  |- CheckpointError    a checkpoint that is missing, incomplete or of a refused kind
    |  |- CannotRunError     a contract that this machine cannot run, with the reason
    |  `- StoreError         a store or a landing that cannot be opened, written or understood
    |     |- StoreBusy       another process has the store open
    |     `- LandingUnreachable  object storage that does not answer, or refuses
    |- NotIngested           replays ran and landed, and the store could not take them in: exit 3
    |- CampaignStopped       replays ran, and the landing went away: exit 3
    |- ParserFault          a parser raised, or returned what no parser may
    |- DeviceDigestsUnavailable  a device that cannot digest its tensors: the host does it
    |- EvidenceError         landed evidence contradicts itself (becomes VOID, never an exit code)
    |  `- NoEnvelope         bytes that are no signed envelope at all
    `- AttemptEnded          a replay that ended before COMPLETE; carries its cause
       |- AttemptVoid        it contradicts its own contract or the protocol
       `- AttemptFailed      it could not finish

Errors cross process borders (Ray pickles them), so every class keeps all its state in ``args``.
"""

from __future__ import annotations

from typing import Any


class FleetError(Exception):
    """Base of all errors that this package raises on purpose."""


class UsageError(FleetError):
    """Input that cannot be used.

    Args:
        where: file, table or option that holds the fault.
        key: the key, line or field inside it ("" when the whole of ``where`` is meant).
        expected: what would have been right.
        got: what was found.
        fix: the next command or edit.
    """

    def __init__(self, where: str, key: str, expected: str, got: str, fix: str) -> None:
        super().__init__(where, key, expected, got, fix)
        self.where, self.key, self.expected, self.got, self.fix = where, key, expected, got, fix

    def __str__(self) -> str:
        place = f"{self.where}: {self.key}" if self.key else self.where
        return f"{place}: expected {self.expected}, got {self.got}\n  next: {self.fix}"


class ContractError(UsageError):
    """A contract file, or something it names, is wrong."""


class DatasetError(UsageError):
    """A dataset is wrong: digest, line, identifiers."""


class FleetFileError(UsageError):
    """A fleet file is wrong: key, node, contract."""


class PolicyError(UsageError):
    """A policy file is wrong: key, rule, contract, fleet."""


class StackError(UsageError):
    """A stack file is wrong, or the environment that it names cannot be used."""


class CheckpointError(UsageError):
    """A checkpoint is missing, incomplete or of a kind that is refused."""


class CannotRunError(UsageError):
    """The contract is well formed, but this machine cannot run it."""


class StoreError(UsageError):
    """A store or landing cannot be opened, written, or was written by newer code."""


class StoreBusy(StoreError):
    """Another process has the store open; it may help to wait."""


class LandingUnreachable(StoreError):
    """The object storage of a landing does not answer, or refuses."""


class NotIngested(FleetError):
    """Replays ran and landed, and the store could not take them in. ``args`` = (text,)."""


class CampaignStopped(FleetError):
    """Replays ran, and then the landing could not be written any more. ``args`` = (text,)."""


class ParserFault(FleetError):
    """A parser raised, or returned what no parser may. ``args`` = (text,)."""


class DeviceDigestsUnavailable(FleetError):
    """A device cannot be asked for digests of its tensors. ``args`` = (reason,)."""


class EvidenceError(FleetError):
    """Landed evidence contradicts itself or the ledger. ``args`` = (code, text)."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(code, text)
        self.code, self.text = code, text

    def __str__(self) -> str:
        return f"{self.code}: {self.text}"


class NoEnvelope(EvidenceError):
    """Bytes that are no envelope at all, unlike one that was altered."""


class AttemptEnded(FleetError):
    """An attempt ended before COMPLETE.

    Args:
        code: one of ``fleet.evidence.states.CAUSES``.
        text: one sentence for a person.
        details: JSON-able facts.
    """

    def __init__(self, code: str, text: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(code, text, details or {})
        self.code, self.text, self.details = code, text, details or {}

    def __str__(self) -> str:
        return f"{self.code}: {self.text}"


class AttemptVoid(AttemptEnded):
    """The attempt contradicts its own contract or the protocol."""


class AttemptFailed(AttemptEnded):
    """The attempt could not finish."""
