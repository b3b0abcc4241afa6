"""What a lost unit, a full disk and an interrupt do to a campaign and to a night: the right cause,
no process left alive, a bound on every wait and on every retry. The launcher is a fake."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleet.errors import AttemptFailed, CannotRunError
from fleet.evidence.landing import Landing
from fleet.evidence.ledger import Entry, campaigns, ends, read_chain
from fleet.replay.task import Device, ReplayTask
from fleet.schedule.board import MOST_LOSSES, Board
from fleet.schedule.dispatch import Night, Waits
from fleet.schedule.driver import Campaign
from fleet.schedule.launcher import Place, Problem
from fleet.schedule.plan import Slot
from tests.campaigns import (
    CONTROLS,
    QUICK,
    FakeLauncher,
    FakeRunning,
    places_in,
    planned_in,
    raises,
    write_configs,
)
from tests.unit.test_dispatch import LEFT, LIMITS, RIGHT, WAITS, item

SLOTS = [Slot(i, "toy", i, "named") for i in range(2)]
DIED = AttemptFailed("killed", "ActorDiedError: its node has died")
UNREACHABLE = AttemptFailed("node-unreachable", "ActorUnavailableError: socket closed")


@pytest.fixture(autouse=True)
def configs(tmp_path: Path) -> None:
    write_configs(tmp_path / "configs")


def campaign(root: Path, launcher: FakeLauncher, **fields: Any) -> Campaign:
    _, planned, places = planned_in(root, purpose="replay")
    landing = Landing.open(places.landing, create=True)
    return Campaign(
        landing, launcher, {r.name: r for r in planned.named}, places.scratch, QUICK, **fields
    )


def chain(root: Path) -> list[Entry]:
    landing = Landing.open(places_in(root).landing)
    (name,) = campaigns(landing)
    return read_chain(landing, name)


@pytest.mark.parametrize(
    ("failed", "gone", "up", "told"),
    [
        (DIED, True, True, ("FAILED", "killed")),
        (DIED, False, True, ("LOST", "death-not-observed")),
        (DIED, False, False, ("LOST", "node-unreachable")),
        (UNREACHABLE, True, True, ("FAILED", "killed")),
        (UNREACHABLE, False, False, ("LOST", "node-unreachable")),
    ],
)
def test_state_and_cause_follow_from_what_was_seen_of_the_death(
    tmp_path: Path, failed: AttemptFailed, gone: bool, up: bool, told: tuple[str, str]
) -> None:
    launcher = FakeLauncher(script={0: raises(failed)}, observed={0: (True, gone)})
    launcher.down = set() if up else {"test-node"}
    (first, *_) = campaign(tmp_path, launcher).run(SLOTS)
    assert (first.state, first.cause and first.cause.code) == told
    assert first.cause is not None and first.cause.text == failed.text


class OnDevices(FakeLauncher):
    def places(self) -> Sequence[Place]:
        return [Place(label, Device("GPU-1", "NVIDIA X", 0, 2**30), 8) for label in self.labels]


def test_a_replay_that_prepared_when_its_unit_went_away_was_not_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Campaign, "_on_device", lambda self, slot: True)
    launcher = OnDevices(script={0: raises(DIED)}, observed={0: (True, False), 1: (True, False)})
    launcher.down = {"test-node"}
    found = campaign(tmp_path, launcher).run(SLOTS)
    told = [(end.state, end.cause and end.cause.code) for end in found]
    assert told == [("LOST", "node-unreachable")] * 2
    assert [end and end.kind for _, end in ends(chain(tmp_path))] == ["given_up"] * 2


@pytest.mark.parametrize("kind", ["planned", "started", "go", "gone", "accepted"])
def test_a_landing_without_room_for_the_ledger_leaves_no_process_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    create = Landing.create

    def full(self: Landing, name: str, data: bytes) -> None:
        if f'"kind":"{kind}"'.encode() in data:
            monkeypatch.setattr(Landing, "create", no_room)
            no_room(self, name, data)
        create(self, name, data)

    def no_room(self: Landing, name: str, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)

    launcher = FakeLauncher()
    monkeypatch.setattr(Landing, "create", full)
    with pytest.raises(OSError, match="No space left"):
        campaign(tmp_path, launcher).run(SLOTS)
    started = {task.attempt for task in launcher.tasks}
    assert started == {attempt for what, attempt in launcher.did if what in ("kill", "end")}
    monkeypatch.undo()
    again = campaign(tmp_path, FakeLauncher(), id=chain(tmp_path)[0].campaign).run(SLOTS)
    assert [end.state for end in again] == ["COMPLETE"] * 2
    assert all(end is not None for _, end in ends(chain(tmp_path)))


def test_one_that_starts_while_its_campaign_is_stopped_is_ended_with_it(tmp_path: Path) -> None:
    launcher = FakeLauncher()
    made = campaign(tmp_path, launcher)
    launcher.at_start = {0: lambda _: made.stop()}
    with pytest.raises(KeyboardInterrupt):
        made.run(SLOTS)
    assert ("go", launcher.tasks[0].attempt) not in launcher.did
    ((_, end),) = ends(chain(tmp_path))
    assert end is not None and end.body["cause"]["code"] == "driver-gone"
    assert chain(tmp_path)[-1].kind == "closed"


def test_a_unit_whose_processes_nobody_can_look_at_any_more_is_gone_on_with(
    tmp_path: Path,
) -> None:
    """Its machine was booted anew, so a pid of the boot before proves nothing."""
    made = campaign(tmp_path, FakeLauncher(), id="n1")
    made.launcher.script = {0: raises(KeyboardInterrupt())}  # type: ignore[attr-defined]

    class NewBoot(FakeLauncher):
        def wait_gone(self, *_: object) -> None:
            return None

    with pytest.raises(KeyboardInterrupt):
        made.run(SLOTS)
    landing = Landing.open(places_in(tmp_path).landing)
    for path in sorted((landing.ledger / "n1").iterdir()):
        if b'"kind":"gone"' in path.read_bytes():
            keep = int(path.stem)
    for path in (landing.ledger / "n1").iterdir():
        if int(path.stem) >= keep:
            path.unlink()
    found = campaign(tmp_path, NewBoot(), id="n1").run(SLOTS)
    assert [end.state for end in found] == ["COMPLETE"] * 2
    gone = [e.body["gone"] for e in chain(tmp_path) if e.kind == "gone"]
    assert gone == [False, True, True]


# nights


def night(root: Path, launcher: FakeLauncher, items: list[Any], **fields: Any) -> Night:
    _, planned, places = planned_in(root, purpose="certify")
    contracts = {r.name: r for r in (*planned.named, *planned.controls)}
    landing = Landing.open(places.landing, create=True)
    units = fields.pop("units", (LEFT, RIGHT))
    return Night(
        "n1", landing, launcher, contracts, items, units, 1000.0, places.scratch,
        limits=LIMITS, **{"waits": WAITS} | fields,
    )  # fmt: skip


def planned(root: Path, unit: str) -> list[tuple[str, str]]:
    entries = read_chain(Landing.open(places_in(root).landing), f"n1.{unit}")
    return [(e.body["contract"], e.body["role"]) for e in entries if e.kind == "planned"]


def test_a_node_that_lists_its_contracts_carries_the_controls_too(tmp_path: Path) -> None:
    narrow = replace(LEFT, contracts=("toy",))
    items = [item(narrow, name, role="control") for name in CONTROLS] + [item(narrow)]
    end = night(tmp_path, FakeLauncher(labels=("left",)), items, units=(narrow,)).run()
    expected = [(name, "control") for name in CONTROLS for _ in range(2)]
    assert planned(tmp_path, "left") == [*expected, ("toy", "named"), ("toy", "named")]
    assert end.left_out == ()


class ComesBack(FakeLauncher):
    """Its node is back as soon as it was found to be down."""

    def is_up(self) -> bool:
        found = not self.down
        self.down.clear()
        return found


def test_what_takes_down_every_unit_that_begins_it_is_left_out_in_the_end(tmp_path: Path) -> None:
    launcher = ComesBack(labels=("left",))

    def down(_: ReplayTask) -> None:
        launcher.down.add("left")
        raise DIED

    launcher.script = {i: down for i in range(100)}
    end = night(tmp_path, launcher, [item(LEFT)], units=(LEFT,)).run()
    assert [(left.contract, left.code) for left in end.left_out] == [("toy", "units-lost")]
    assert planned(tmp_path, "left") == [("toy", "named")] * MOST_LOSSES


def test_losses_are_of_a_set_wherever_it_was_begun() -> None:
    board = Board([item(LEFT), item(LEFT, "other")], 100)
    for unit in (LEFT, RIGHT, LEFT):
        board.take(LEFT)
        board.give_back(unit, [item(LEFT)], item(LEFT))
    taken = board.take(LEFT)
    assert taken is not None and taken.contract == "other"
    assert board.take(LEFT) is None
    assert [(left.contract, left.code) for left in board.rest()] == [("toy", "units-lost")]


def test_a_unit_that_went_away_while_it_was_asked_is_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = ComesBack(labels=("left",))
    asked: list[int] = []

    def dies(_: Campaign) -> Sequence[Problem]:
        asked.append(1)
        if len(asked) == 1:
            launcher.down.add("left")
            raise CannotRunError("preflight", "", "a process", "ActorDiedError", "fleet doctor")
        return ()

    monkeypatch.setattr("fleet.schedule.dispatch.problems", dies)
    end = night(tmp_path, launcher, [item(LEFT)], units=(LEFT,)).run()
    assert (len(asked), end.left_out) == (2, ())
    assert planned(tmp_path, "left") == [("toy", "named")] * 2


class Hangs(FakeLauncher):
    """A process that never answers its first question, until the launcher is stopped."""

    def __init__(self) -> None:
        super().__init__(labels=("left",))
        self.waiting, self.stopped = threading.Event(), threading.Event()

    def start(self, *given: Any) -> FakeRunning:
        self.waiting.set()
        assert self.stopped.wait(20)
        raise AttemptFailed("start", "the driver was interrupted")

    def stop(self) -> None:
        self.stopped.set()

    def units(self) -> Sequence[Place]:
        if self.waiting.is_set():
            raise KeyboardInterrupt
        return super().units()


def test_an_interrupt_does_not_wait_for_what_is_starting(tmp_path: Path) -> None:
    waits = Waits(look_every_s=0.02, await_unit_s=0.3, stop_s=20)
    begun_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        night(tmp_path, Hangs(), [item(LEFT)], units=(LEFT,), waits=waits).run()
    assert time.monotonic() - begun_s < 10
    entries = read_chain(Landing.open(places_in(tmp_path).landing), "n1.left")
    assert [(e.kind, e.body.get("state")) for e in entries[-2:]] == [
        ("given_up", "LOST"), ("closed", None),
    ]  # fmt: skip
    assert entries[-2].body["cause"]["code"] == "driver-gone"
