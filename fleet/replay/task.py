"""What the driver hands to one fresh process: everything it may know, and nothing else.

Plain data, so that it can cross to any process. A task names one attempt; it is never reused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fleet.contract.model import Contract
from fleet.evidence.manifest import Process
from fleet.evidence.states import Purpose


@dataclass(frozen=True)
class ReplayTask:
    """One attempt.

    ``contract`` is the model's JSON; ``digests`` the pinned content digests as ``sha256:<hex>``
    under checkpoint, dataset, tokenizer, chat_template and ``parser.<arm>``. ``sample_ids`` are the
    planned samples in dataset order; fewer than the dataset has only for ``fleet replay``.
    """

    attempt: str
    campaign: str
    slot: int
    purpose: Purpose
    contract_name: str
    contract_file: str
    contract: dict[str, Any]
    execution_id: str
    digests: dict[str, str]
    checkpoint: str | None
    dataset_file: str
    sample_ids: Sequence[str]
    arms: tuple[str, ...]
    landing: str
    scratch: str
    node_label: str
    predecessor: Process | None = None

    def typed_contract(self) -> Contract:
        """The contract, validated again in the process that runs it."""
        return Contract.model_validate(self.contract)

    @property
    def folder(self) -> Path:
        """Where this attempt lands."""
        return Path(self.landing) / "attempts" / self.attempt

    def to_json(self) -> dict[str, Any]:
        """JSON-able form, the inverse of :meth:`from_json`."""
        return asdict(self) | {"sample_ids": tuple(self.sample_ids)}

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> ReplayTask:
        """Read :meth:`to_json`."""
        predecessor = Process(**raw["predecessor"]) if raw["predecessor"] else None
        return cls(
            **raw
            | {
                "sample_ids": tuple(raw["sample_ids"]),
                "arms": tuple(raw["arms"]),
                "predecessor": predecessor,
            }
        )
