"""Whether a campaign fits on its disks: estimates against bytes that landed, and the one error."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from fleet.cli import run
from fleet.errors import StoreError
from fleet.evidence.landing import Landing
from fleet.evidence.parts import PartWriter
from fleet.replay.task import ReplayTask, TraceOrder
from fleet.schedule.certify import run_request
from fleet.schedule.driver import Campaign
from fleet.schedule.plan import Slot
from fleet.schedule.resolve import Resolved
from fleet.schedule.room import Need, landed_bytes, needs, require_room
from fleet.store import queries
from fleet.store.open import open_reader
from tests.campaigns import FakeLauncher, planned_in, write_configs, write_contract, write_dataset
from tests.contract_text import contract_text
from tests.landing_builder import make_record


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def with_free(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**12, 0, free))


def planned(root: Path, text: str | None = None) -> tuple[ReplayTask, Resolved, Landing]:
    """The task of a replay of ``toy``, and an empty landing."""
    write_configs(root / "configs")
    if text is not None:
        write_contract(root / "configs", "toy", text)
    _, plan, places = planned_in(root)
    (toy,) = plan.named
    landing = Landing.open(places.landing, create=True)
    campaign = Campaign(landing, FakeLauncher(), {"toy": toy}, places.scratch)
    return campaign.task(Slot(0, "toy", 0, "named"), toy, "0" * 16), toy, landing


@pytest.mark.parametrize(("steps", "prompt", "count"), [(1, 50, 40), (16, 50, 400), (64, 900, 300)])
def test_the_formula_is_above_what_lands_and_not_far(
    tmp_path: Path, steps: int, prompt: int, count: int
) -> None:
    draw = random.Random(steps)
    text = contract_text("wide", extra="replays = 2\n").replace(
        "max_new_tokens = 4", f"max_new_tokens = {steps}"
    )
    lines = [f'{{"id": "s{i}", "question": "{"q" * prompt}", "answer": "A"}}' for i in range(count)]
    write_dataset(tmp_path / "configs", "wide", "\n".join(lines).encode() + b"\n")
    task, toy, landing = planned(tmp_path, text)
    writer = PartWriter(tmp_path / "rows")
    for i in range(count):
        for arm in task.arms:
            ids = [draw.randrange(150_000) for _ in range(steps)]
            asked = "".join(draw.choices("abcdefghijklmnopqrstuvwxyz ", k=prompt))
            row = make_record("a" * 16, arm, i, f"s{i}", prompt=asked, tokens=ids, logits=arm)
            tops = tuple(tuple(draw.randrange(2**16) for _ in range(8)) for _ in ids)
            writer.add([replace(row, top_ids=tops, top_bits=tops, seconds=draw.random())])
    writer.flush()
    landed = sum(part.num_bytes for part in writer.parts)
    estimate = landed_bytes(task, toy, [], landing)
    assert landed <= estimate <= 3 * landed


def test_an_earlier_replay_is_the_measure(tmp_path: Path) -> None:
    write_configs(tmp_path / "configs")
    request, plan, places = planned_in(tmp_path)
    run_request(request, plan, places, FakeLauncher(), lambda _: None)
    task, toy, landing = planned(tmp_path)
    with open_reader(places.store) as store:
        known = queries.summaries(store.con, execution_id=toy.execution_id)
    folder = landing.attempt(known[-1].attempt)
    landed = sum(p.stat().st_size for p in folder.glob("*.parquet"))
    assert landed < landed_bytes(task, toy, known, landing) < landed + 20_000
    other = replace(task, execution_id="sha256:" + "0" * 64)
    assert landed_bytes(other, toy, known, landing) == landed_bytes(task, toy, [], landing)


def test_a_trace_takes_more_where_there_is_a_model(tmp_path: Path) -> None:
    task, toy, landing = planned(tmp_path)
    traced = replace(task, trace=TraceOrder())
    assert landed_bytes(traced, toy, [], landing) == landed_bytes(task, toy, [], landing)


def test_every_slot_counts(tmp_path: Path) -> None:
    task, toy, landing = planned(tmp_path)
    store, scratch = tmp_path / "fleet.duckdb", tmp_path / "scratch"
    one = {n.what: n.num_bytes for n in needs([(task, toy)], [], landing, store, scratch)}
    ten = {n.what: n.num_bytes for n in needs([(task, toy)] * 10, [], landing, store, scratch)}
    assert ten["landing"] == 10 * one["landing"]
    assert ten["store"] > one["store"]
    assert one["scratch"] == 0, "a synthetic engine compiles nothing"


def test_folders_of_one_disk_are_added_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [Need("landing", tmp_path / "a" / "b", 600), Need("store", tmp_path, 500)]
    with_free(monkeypatch, 1100)
    require_room(wanted)
    with_free(monkeypatch, 1099)
    with pytest.raises(StoreError) as raised:
        require_room(wanted)
    assert str(raised.value) == (
        f"{tmp_path}/a/b: expected room for about 1.1 kB (landing 600 bytes, store 500 bytes), "
        "got 1.1 kB free\n"
        "  next: free space, or move --landing, --store or FLEET_CACHE to another disk"
    )


def test_a_campaign_that_cannot_fit_is_one_error_and_plans_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from contextlib import nullcontext

    for name in ("FLEET_STORE", "FLEET_LANDING", "FLEET_CONFIGS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FLEET_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    write_configs(tmp_path / "configs")
    launcher = FakeLauncher()
    monkeypatch.setattr("fleet.schedule.cluster.RayCluster", lambda *given: nullcontext(launcher))
    with_free(monkeypatch, 100_000)
    assert run(["certify", "toy"]) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("error")) == ("", 1)
    assert "expected room for about" in err
    assert "got 100.0 kB free" in err
    assert launcher.tasks == []
    assert not list(Path("var/landing").glob("ledger/*"))
