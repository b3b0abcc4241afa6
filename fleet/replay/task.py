"""What the driver hands to one fresh process: everything it may know, and nothing else.

Plain data, so that it can cross to any process. A task names one attempt; it is never reused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fleet.contract.model import Contract
from fleet.contract.parsers import NAMED, parser_file
from fleet.evidence.manifest import Process
from fleet.evidence.states import Purpose


@dataclass(frozen=True)
class Target:
    """One module call: the ``occurrence``-th of ``path`` in a step of a batch."""

    arm: str
    batch: int
    step: int
    path: str
    occurrence: int


@dataclass(frozen=True)
class TraceOrder:
    """What to trace. ``steps``: ``all``, ``prefill`` or a number. ``targets`` are calls to freeze
    and repeat ``repeats`` times; ``zoom``: record the operations inside them."""

    steps: str = "all"
    targets: tuple[Target, ...] = ()
    repeats: int = 0
    zoom: bool = False

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> TraceOrder:
        """Read what ``asdict`` gives."""
        return cls(**raw | {"targets": tuple(Target(**target) for target in raw["targets"])})


@dataclass(frozen=True)
class Device:
    """One NVIDIA device: a GPU, or an instance of one under MIG.

    ``idle_bytes``: memory in use when the campaign began, which is what a free device shows, of
    ``total_bytes``.
    """

    uuid: str
    name: str
    idle_bytes: int
    total_bytes: int


def fitting(devices: Sequence[Device], wanted: str | None) -> list[Device]:
    """Those that ``FLEET_DEVICE`` may mean: none for ``cpu``, the one of that UUID, or all."""
    return [each for each in devices if wanted in (None, each.uuid)]


def device_environment(device: Device | None) -> dict[str, str]:
    """What shows a process its slot's device and no other: by UUID, for an index may move."""
    return {"CUDA_VISIBLE_DEVICES": device.uuid if device else ""}


@dataclass(frozen=True)
class ReplayTask:
    """One attempt.

    ``contract`` is the model's JSON; ``digests`` the pinned content digests as ``sha256:<hex>``
    under checkpoint, dataset, tokenizer, chat_template and ``parser.<arm>``. ``sample_ids`` are the
    planned samples in dataset order; fewer than the dataset has only where no verdict is made.
    ``device``: the one device of the slot; None for the CPU. ``vary``: what the set of replays
    varies; ``varied``: what this one takes, nothing for the reference; ``contract`` keeps its own.
    ``landing``: a folder of the node; ``remote``: the URL that it mirrors, None for none.
    ``stack``: name, digest and content of the frozen software that must be in effect, if any.
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
    trace: TraceOrder | None = None
    device: Device | None = None
    vary: tuple[str, ...] = ()
    varied: dict[str, Any] = field(default_factory=dict)
    remote: str | None = None
    stack: dict[str, Any] | None = None

    def typed_contract(self) -> Contract:
        """The contract, validated again in the process that runs it."""
        return Contract.model_validate(self.contract)

    @property
    def traces_everything(self) -> bool:
        """A certification replay with every call of every step traced: it has the grade modules."""
        return self.purpose == "certify" and self.trace is not None and self.trace.steps == "all"

    @property
    def folder(self) -> Path:
        """Where this attempt lands."""
        return Path(self.landing) / "attempts" / self.attempt

    def reads(self) -> Iterator[Path]:
        """Folders that a replay reads, those included that links in a checkpoint lead to."""
        own = Path(self.contract_file)
        yield own.parent
        for spec in (arm["parser"] for arm in self.contract["arms"].values()):
            if spec not in NAMED:
                yield parser_file(spec, own).resolve().parent
        yield Path(self.dataset_file).parent
        if self.checkpoint is not None:
            folder = Path(self.checkpoint)
            yield folder
            yield from (f.resolve().parent for f in sorted(folder.rglob("*")) if f.is_symlink())

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
                "trace": TraceOrder.from_json(raw["trace"]) if raw["trace"] else None,
                "device": Device(**raw["device"]) if raw["device"] else None,
                "vary": tuple(raw["vary"]),
            }
        )
