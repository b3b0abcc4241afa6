"""When a traced replay's hooks are in place: in every batch, and in no run that is to be bare."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fleet.evidence.parts import PartWriter
from fleet.evidence.trace import UNCHANGED, Call, calls_table
from fleet.replay.task import TraceOrder
from fleet.replay.trace.session import OWN_DIFFERENCE, UNDECIDED, TraceSession
from fleet.replay.trace.tracer import Tracer
from tests.unit.traced_net import Net

ROW: Any = SimpleNamespace(sample_id="s")


class Engine:
    """Gives these logits, one a run, and notes whether the model was hooked."""

    name = "stub"

    def __init__(self, model: torch.nn.Module, logits: Sequence[bytes]) -> None:
        self.model, self.logits, self.hooked = model, list(logits), list[bool]()

    def generate(self, rows: Sequence[Any]) -> list[Any]:
        self.hooked.append(any(m._forward_hooks for m in self.model.modules()))
        self.model(torch.ones(1, 4, dtype=torch.bfloat16))
        if not self.logits:
            raise ValueError("as planned")
        return [SimpleNamespace(steps=[SimpleNamespace(logits_sha256=self.logits.pop(0))])]


def opened(folder: Path, model: torch.nn.Module) -> tuple[TraceSession, list[Call]]:
    calls: list[Call] = []
    writer = PartWriter(folder, stem="trace", table=calls_table)
    tracer = Tracer(model, (), calls.append)
    return TraceSession(TraceOrder(), folder, tracer, None, writer), calls


@pytest.mark.parametrize(
    ("logits", "said", "hooked"),
    [
        (b"1123", UNCHANGED, [False, True, True, True]),
        (b"1213", UNDECIDED, [False, True, False, True]),
        (b"1234", OWN_DIFFERENCE, [False, True, False, True]),
    ],
)
def test_runs_to_compare_with_are_bare_and_every_batch_is_traced_once(
    logits: bytes, said: str, hooked: list[bool], tmp_path: Path
) -> None:
    engine: Any = Engine(Net(), [bytes([each]) for each in logits])
    session, calls = opened(tmp_path, engine.model)
    session.attach()  # whoever did so, a bare run comes first
    batches = 0
    while engine.logits:
        session.run(engine, "arm", batches, [ROW])
        batches += 1
    session.close()
    assert (session.hooks, engine.hooked) == (said, hooked)
    first = [(c.path, c.begin, c.end) for c in calls if c.batch == 0]
    assert first
    for batch in range(batches):
        assert [(c.path, c.begin, c.end) for c in calls if c.batch == batch] == first
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in engine.model.modules())


def test_what_a_batch_that_raised_had_seen_is_landed(tmp_path: Path) -> None:
    engine: Any = Engine(Net(), [b"1", b"1"])
    session, calls = opened(tmp_path, engine.model)
    session.run(engine, "arm", 0, [ROW])
    with pytest.raises(ValueError, match="as planned"):
        session.run(engine, "arm", 1, [ROW])
    assert {c.batch for c in calls} == {0, 1}
    session.close()
