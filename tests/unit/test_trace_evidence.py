"""What a traced replay lands, how it reads back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from fleet.errors import EvidenceError
from fleet.evidence.landing import Landing, file_sha256
from fleet.evidence.manifest import Manifest
from fleet.evidence.parts import PartWriter
from fleet.evidence.trace import CALLS, CALLS_1, Call, Trace, calls_table, read_trace, to_table
from fleet.judge.tracing.localise import localise
from fleet.replay.task import Target, TraceOrder
from fleet.replay.trace.repeat import Repeater
from fleet.replay.trace.session import UNCHANGED, TraceSession
from fleet.replay.trace.tracer import Tracer
from tests.landing_builder import AttemptSpec, build_landing
from tests.unit.traced_net import Net

ATTEMPT = "a" * 16


class NetEngine:
    """An engine of one net: a batch is two forwards."""

    name = "net"

    def __init__(self, net: Net) -> None:
        self.net = net

    def generate(self, rows: Sequence[Any]) -> list[Any]:
        for value in (1.0, 2.0):
            self.net(torch.full((1, 4), value).bfloat16())
        return []


@pytest.fixture
def landed(tmp_path: Path) -> tuple[Landing, list[Call], dict[str, Any]]:
    """A landing whose one attempt was traced, its calls, and the manifest's words on them."""
    landing = build_landing(tmp_path, [AttemptSpec(ATTEMPT)])
    net, calls, order = Net(), list[Call](), TraceOrder()
    writer = PartWriter(landing.attempt(ATTEMPT), 2, stem="trace", table=calls_table)

    def sink(call: Call) -> None:
        calls.append(call)
        writer.add([call])

    tracer = Tracer(net, (), sink)
    repeater = Repeater(tracer, [Target("arm", 0, 1, "linear", 0)], 5)
    session = TraceSession(order, landing.attempt(ATTEMPT), tracer, repeater, writer)
    assert session.run(NetEngine(net), "arm", 0, []) == []  # type: ignore[arg-type]
    told = session.close()
    path = landing.manifest(ATTEMPT)
    manifest = Manifest.from_bytes(path.read_bytes())
    path.chmod(0o644)
    path.write_bytes(replace(manifest, traced=True, trace=told).to_bytes())
    return landing, calls, told


def read(landing: Landing) -> Trace:
    found = read_trace(landing, ATTEMPT)
    assert found is not None
    return found


def test_a_trace_reads_back_as_it_was_seen(landed: Any) -> None:
    landing, calls, told = landed
    found = read(landing)
    assert found.calls == tuple(calls) and len(calls) == 6
    assert len([name for name in told["files"] if name.startswith("trace-0")]) > 1
    assert list(found.repeats) == told["repeats"] and found.repeats[0]["repeats"] == 5
    assert found.modules["linear"].fired == 2 and found.modules["silent"].fired == 0
    assert found.modules[""].own_sha256 == calls[-1].own_sha256 is not None
    assert set(found.weights) == {"linear.weight", "linear.bias"}
    assert {c.in_sha256 for c in found.calls if c.path == "constant"} == {None}
    assert set(found.logits) and all(found.logits.values())


def test_equal_traces_read_back_do_not_part(landed: Any) -> None:
    landing, *_ = landed
    found = localise([read(landing), read(landing)])
    assert not found.differs and found.counts["UNKNOWN"] == 2


def damaged(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(bytes(data))


def other_columns(path: Path) -> None:
    table = pq.read_table(path).drop_columns([CALLS.names[0]])
    path.chmod(0o644)
    pq.write_table(table, path)


@pytest.mark.parametrize("name", ["trace-00000", "trace-modules", "trace-weights"])
@pytest.mark.parametrize("edit", [damaged, Path.unlink])
def test_an_edited_or_missing_file_is_refused(
    landed: Any, name: str, edit: Callable[[Path], None]
) -> None:
    landing, *_ = landed
    path = landing.attempt(ATTEMPT) / f"{name}.parquet"
    path.parent.chmod(0o755)
    edit(path)
    with pytest.raises(EvidenceError, match=f"evidence-altered: {name}.parquet"):
        read_trace(landing, ATTEMPT)


def name_again(landing: Landing, told: dict[str, Any], path: Path) -> None:
    """The manifest names the file as it is now."""
    files = told["files"] | {path.name: file_sha256(path)}
    manifest = Manifest.from_bytes(landing.manifest(ATTEMPT).read_bytes())
    changed = replace(manifest, trace=told | {"files": files})
    landing.manifest(ATTEMPT).write_bytes(changed.to_bytes())


def test_a_trace_of_format_1_reads_back_and_its_in_roots_are_checked(landed: Any) -> None:
    landing, calls, told = landed
    path = landing.attempt(ATTEMPT) / "trace-00000.parquet"
    path.chmod(0o644)
    first = calls[: pq.read_metadata(path).num_rows]
    assert len({call.in_sha256 for call in first}) > 1
    pq.write_table(to_table(first, CALLS_1), path)
    name_again(landing, told, path)
    assert read(landing).calls == tuple(calls)
    other = next(c for c in calls if c.in_sha256 not in (None, first[0].in_sha256))
    first[0] = replace(first[0], in_sha256=other.in_sha256)
    pq.write_table(to_table(first, CALLS_1), path)
    name_again(landing, told, path)
    with pytest.raises(EvidenceError, match=r"evidence-altered: trace-00000\.parquet: an in-root"):
        read_trace(landing, ATTEMPT)


def test_other_columns_are_refused_even_when_the_digest_fits(landed: Any) -> None:
    landing, _, told = landed
    path = landing.attempt(ATTEMPT) / "trace-00000.parquet"
    other_columns(path)
    name_again(landing, told, path)
    with pytest.raises(EvidenceError, match="not the columns of a trace"):
        read_trace(landing, ATTEMPT)


def test_an_untraced_attempt_has_no_trace(tmp_path: Path) -> None:
    landing = build_landing(tmp_path, [AttemptSpec(ATTEMPT)])
    assert read_trace(landing, ATTEMPT) is None
    assert read_trace(landing, "b" * 16) is None


def test_the_first_batch_shows_that_hooks_change_no_bit(tmp_path: Path) -> None:
    net, calls = Net(), list[Call]()
    writer = PartWriter(tmp_path, stem="trace", table=calls_table)
    session = TraceSession(TraceOrder(), tmp_path, Tracer(net, (), calls.append), None, writer)
    session.run(NetEngine(net), "arm", 0, [])  # type: ignore[arg-type]
    assert session.hooks == UNCHANGED and len(calls) == 6
