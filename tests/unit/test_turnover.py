"""Slot turnover: on a device the next replay prepares beside the one that runs, and waits for its
token until that one was seen gone.

Which slots overlap is the driver's; that a prepared process proves its turn is the replay's.
Without a GPU the driver is told that its slots are on one; the replays are real processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from fleet.errors import AttemptFailed
from fleet.evidence.landing import Landing
from fleet.evidence.ledger import campaigns, read_chain
from fleet.evidence.manifest import Manifest
from fleet.evidence.summarise import summarise
from fleet.replay.task import Device
from fleet.schedule.driver import Campaign, Limits
from fleet.schedule.launcher import Place
from fleet.schedule.plan import Slot
from tests.campaigns import QUICK, FakeLauncher, places_in, planned_in, raises, write_configs
from tests.process_launcher import ProcessLauncher

GPU = Device("GPU-1", "NVIDIA X", 0, 2**30)


@dataclass
class OnDevices(FakeLauncher):
    """Its units are devices of nodes with so many CPUs."""

    cpus: int = 8

    def places(self) -> Sequence[Place]:
        return [Place(label, GPU, self.cpus) for label in self.labels]


@pytest.fixture
def on_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The contract of these tests needs no device, so it is said to have one."""
    monkeypatch.setattr(Campaign, "_on_device", lambda self, slot: True)


def campaign(root: Path, launcher: FakeLauncher | ProcessLauncher, **fields: object) -> Campaign:
    write_configs(root / "configs")
    _, planned, places = planned_in(root, purpose="replay")
    contracts = {r.name: r for r in planned.named}
    landing = Landing.open(places.landing, create=True)
    return Campaign(landing, launcher, contracts, places.scratch, **{"limits": QUICK} | fields)  # type: ignore[arg-type]


SLOTS = [Slot(i, "toy", i, "named") for i in range(3)]


def did(launcher: FakeLauncher) -> list[str]:
    """What was asked of the processes, each by its place among those that were started."""
    order = [task.attempt for task in launcher.tasks]
    return [f"{what} {order.index(attempt)}" for what, attempt in launcher.did]


def test_on_a_device_the_next_replay_prepares_while_one_runs(
    tmp_path: Path, on_devices: None
) -> None:
    launcher = OnDevices()
    ends = campaign(tmp_path, launcher).run(SLOTS)
    assert [end.state for end in ends] == ["COMPLETE"] * 3
    assert did(launcher) == [
        "prepare 0", "go 0", "prepare 1", "end 0", "go 1", "prepare 2", "end 1", "go 2", "end 2",
    ]  # fmt: skip
    assert [t.predecessor and t.predecessor.start_tick for t in launcher.tasks] == [
        None, *(int(t.attempt, 16) for t in launcher.tasks[:2]),
    ]  # fmt: skip


def one_by_one(launcher: FakeLauncher) -> bool:
    return did(launcher) == [f"{what} {i}" for i in range(3) for what in ("prepare", "go", "end")]


def test_on_the_cpu_nothing_prepares_beside_a_replay(tmp_path: Path) -> None:
    launcher = OnDevices()  # the contract's own engine needs no device
    campaign(tmp_path, launcher).run(SLOTS)
    assert one_by_one(launcher)


def test_it_can_be_told_not_to(tmp_path: Path, on_devices: None) -> None:
    launcher = OnDevices()
    campaign(tmp_path, launcher, limits=replace(QUICK, overlap=False)).run(SLOTS)
    assert one_by_one(launcher)


def test_a_node_without_the_processors_for_two_runs_one(tmp_path: Path, on_devices: None) -> None:
    launcher = OnDevices(cpus=1)
    campaign(tmp_path, launcher).run(SLOTS)
    assert one_by_one(launcher)


def test_what_is_run_again_comes_after_the_one_that_is_prepared(
    tmp_path: Path, on_devices: None
) -> None:
    launcher = OnDevices(script={0: raises(AttemptFailed("killed", "gone"))})
    ends = campaign(tmp_path, launcher, limits=replace(QUICK, retries=1)).run(SLOTS[:2])
    assert [(end.slot.index, end.state) for end in ends] == [
        (0, "FAILED"), (1, "COMPLETE"), (0, "COMPLETE"),
    ]  # fmt: skip
    assert launcher.tasks[2].predecessor is not None
    assert launcher.tasks[2].predecessor.start_tick == int(launcher.tasks[1].attempt, 16)


def test_one_that_cannot_start_leaves_the_running_one_alone(
    tmp_path: Path, on_devices: None
) -> None:
    launcher = OnDevices(at_start={1: raises(AttemptFailed("start", "no answer"))})
    ends = campaign(tmp_path, launcher).run(SLOTS)
    assert sorted((end.slot.index, end.state) for end in ends) == [
        (0, "COMPLETE"), (1, "LOST"), (2, "COMPLETE"),
    ]  # fmt: skip


@pytest.mark.parametrize("where", ["script", "at_start"])
def test_an_interrupt_ends_the_running_and_the_prepared_one(
    tmp_path: Path, on_devices: None, where: str
) -> None:
    number = {"script": 0, "at_start": 2}[where]
    launcher = OnDevices(**{where: {number: raises(KeyboardInterrupt())}})  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        campaign(tmp_path, launcher).run(SLOTS)
    landing = Landing.open(places_in(tmp_path).landing)
    (name,) = campaigns(landing)
    chain = read_chain(landing, name)
    planned = {e.attempt for e in chain if e.kind == "planned"}
    ended = [e.attempt for e in chain if e.kind in ("accepted", "given_up")]
    assert sorted(ended) == sorted(planned)
    assert chain[-1].kind == "closed"
    assert {a for what, a in launcher.did if what == "end"} == {
        a for what, a in launcher.did if what == "prepare"
    }


def roots(root: Path, overlap: bool, **faults: str) -> tuple[set[str], list[Manifest], Landing]:
    numbered = {int(number.removeprefix("at_")): fault for number, fault in faults.items()}
    launcher = ProcessLauncher(cpus=8, faults=numbered)
    ends = campaign(root, launcher, limits=Limits(60, 60, 20, 0, overlap)).run(SLOTS)
    landing = Landing.open(places_in(root).landing)
    manifests = [Manifest.from_bytes(landing.manifest(end.attempt).read_bytes()) for end in ends]
    return {m.roots["logits"] for m in manifests if m.roots}, manifests, landing


def test_overlap_on_and_off_give_equal_roots_and_each_process_proves_its_turn(
    tmp_path: Path, on_devices: None
) -> None:
    off, alone, _ = roots(tmp_path / "off", overlap=False)
    on, beside, landing = roots(tmp_path / "on", overlap=True, at_0="slow_load", at_1="slow_load")
    assert len(on) == 1 and on == off
    assert [m.freshness["predecessor_gone"] for m in beside] == [None, True, True]
    assert [m.freshness["predecessor_seen_alive"] for m in beside] == [None, True, True]
    assert [m.freshness["predecessor_seen_alive"] for m in alone] == [None, False, False]
    chain = read_chain(landing, *campaigns(landing))
    given = {e.attempt: e.body["token"] for e in chain if e.kind == "go"}
    assert given == {m.attempt: m.freshness["token"] for m in beside}
    assert len(set(given.values())) == 3
    assert all(m.volatile["waited_s"] > 0 for m in beside[1:])


def test_preparing_that_ends_the_attempt_is_its_manifest(tmp_path: Path, on_devices: None) -> None:
    _, manifests, _ = roots(tmp_path, overlap=True, at_1="no_nonce")
    assert [m.state for m in manifests] == ["COMPLETE", "VOID", "COMPLETE"]
    assert manifests[1].cause is not None and manifests[1].cause.code == "not-fresh"
    assert not manifests[1].parts


def test_a_token_that_came_while_the_replay_before_lived_is_void(
    tmp_path: Path, on_devices: None
) -> None:
    _, (first, second, _), landing = roots(tmp_path, overlap=True)
    chain = read_chain(landing, *campaigns(landing))
    assert summarise(landing, second.attempt, chain).state == "COMPLETE"
    go = next(e for e in chain if e.kind == "go" and e.attempt == second.attempt)
    late = [
        replace(e, seq=go.seq + 1) if (e.kind, e.attempt) == ("gone", first.attempt) else e
        for e in chain
    ]
    for entries, words in (
        (late, "while the replay before it lived"),
        ([e for e in chain if (e.kind, e.attempt) != ("gone", first.attempt)], "before it lived"),
        ([e for e in chain if e.attempt != first.attempt], "after the end of another replay"),
    ):
        found = summarise(landing, second.attempt, entries)
        assert found.cause is not None
        assert (found.state, found.cause.code) == ("VOID", "not-fresh")
        assert words in found.cause.text
