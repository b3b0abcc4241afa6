"""One traced replay: hooks on, batches traced, files landed, coverage stated.

The first batch also runs without hooks, to see that they change no bit. Where the contract differs
from itself that cannot be decided, and is said so.
"""

from __future__ import annotations

import gc
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from fleet.contract.canonical import sha256, to_text
from fleet.errors import AttemptFailed
from fleet.evidence.landing import write_once
from fleet.evidence.parts import PartWriter
from fleet.evidence.trace import (
    MODULES,
    MODULES_FILE,
    UNCHANGED,
    WEIGHTS,
    WEIGHTS_FILE,
    Call,
    calls_table,
    to_table,
)
from fleet.replay.engines.protocol import Engine, Generation, Prepared
from fleet.replay.task import ReplayTask, TraceOrder
from fleet.replay.tensor_digests import share_of, where
from fleet.replay.trace.digesting import TensorDigests
from fleet.replay.trace.frozen import RandomState
from fleet.replay.trace.repeat import Repeater
from fleet.replay.trace.tracer import Tracer

OWN_DIFFERENCE = "undecidable: without hooks the contract differs from itself"
UNDECIDED = "traced logits differ from two equal untraced runs: the hooks, or a rare race"


@dataclass
class TraceSession:
    """Open it once the model is loaded, run every batch through it, close it."""

    order: TraceOrder
    folder: Path
    tracer: Tracer
    repeater: Repeater | None
    writer: PartWriter
    digests: str = "host"
    hooks: str = ""
    files: dict[str, str] = field(default_factory=dict)
    _attached: bool = False

    def run(
        self, engine: Engine, arm: str, ordinal: int, rows: Sequence[Prepared]
    ) -> list[Generation]:
        """Generate one batch with hooks in place; they stay there for the next."""
        if self.hooks or self.repeater is not None:
            return self._traced(engine, arm, ordinal, rows)
        self.detach()
        random_state = RandomState()
        bare = engine.generate(rows)
        random_state.restore()
        traced = self._traced(engine, arm, ordinal, rows)
        self.hooks = UNCHANGED
        if _logits(bare) != _logits(traced):
            after = RandomState()
            random_state.restore()
            self.detach()
            again = engine.generate(rows)
            after.restore()
            self.hooks = UNDECIDED if _logits(bare) == _logits(again) else OWN_DIFFERENCE
        return traced

    def _traced(
        self, engine: Engine, arm: str, ordinal: int, rows: Sequence[Prepared]
    ) -> list[Generation]:
        self.attach()
        self.tracer.start_batch(arm, ordinal, [row.sample_id for row in rows])
        try:
            return engine.generate(rows)
        finally:
            self.tracer.end_batch()

    def attach(self) -> None:
        """Put the hooks in place, once: hundreds cost as much as a step of a small batch."""
        if not self._attached:
            self._attached = True
            self.tracer.attach()
            if self.repeater is not None:
                self.repeater.attach()

    def detach(self) -> None:
        """Take them away, for a run that has to be bare."""
        self._attached = False
        if self.repeater is not None:
            self.repeater.detach()
        self.tracer.detach()

    def close(self) -> dict[str, Any]:
        """Take the hooks away and land what is left; what the manifest says of the trace."""
        self.detach()
        self.writer.flush()
        self.files |= {part.name: part.sha256 for part in self.writer.parts}
        self._land(MODULES_FILE, to_table(self.tracer.module_rows(), MODULES))
        self._land(WEIGHTS_FILE, to_table(self.tracer.weight_rows(), WEIGHTS))
        return {
            "files": self.files,
            "steps": self.order.steps,
            "hooks": self.hooks,
            "digests": self.digests,
            "repeats": self.repeater.results if self.repeater else [],
        }

    def _land(self, name: str, table: pa.Table) -> None:
        buffer = io.BytesIO()
        pq.write_table(table, buffer, compression="zstd")
        write_once(self.folder / name, buffer.getvalue())
        self.files[name] = to_text(sha256(buffer.getvalue()))


def open_session(
    task: ReplayTask, order: TraceOrder, engine: Engine, packed: Sequence[str]
) -> TraceSession:
    """Hash the weights and get ready.

    Raises:
        AttemptFailed: the engine has no modules.
    """
    model = getattr(engine, "model", None)
    if model is None:
        raise AttemptFailed("engine-error", f"the engine {engine.name} has no modules to trace")
    writer = PartWriter(task.folder, stem="trace", table=calls_table)

    def sink(call: Call) -> None:
        writer.add([call])

    gc.collect()  # what is loaded stays to the end: no collection in the trace has to walk it
    gc.freeze()
    digests, place = _digests(next(model().parameters()).device)
    tracer = Tracer(model(), packed, sink, order.steps, digests)
    repeater = Repeater(tracer, order.targets, order.repeats, order.zoom) if order.targets else None
    return TraceSession(order, task.folder, tracer, repeater, writer, place)


def _digests(device: torch.device) -> tuple[TensorDigests, str]:
    """What hashes, and where it does."""
    return TensorDigests(share_of(device)), where()


def _logits(made: Sequence[Generation]) -> list[list[bytes]]:
    return [[step.logits_sha256 for step in generation.steps] for generation in made]
