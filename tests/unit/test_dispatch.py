"""A night over many units: who runs what, a unit that goes away and one that comes back, a driver
that is killed, an interrupt. The launcher is a fake; replays run in this process."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from fleet.errors import AttemptFailed
from fleet.evidence.landing import Landing
from fleet.evidence.ledger import NIGHT, chain_folder, ends, read_chain
from fleet.replay.task import ReplayTask
from fleet.schedule.board import Board
from fleet.schedule.dispatch import Night, Waits, campaign_id
from fleet.schedule.driver import AttemptEnd, Limits
from fleet.schedule.launcher import Place
from fleet.schedule.night_terms import Item, Unit
from fleet.schedule.plan import Role, Slot
from tests.campaigns import FakeLauncher, places_in, planned_in, write_configs, write_contract

LIMITS = Limits(5, 5, 5, 0)
WAITS = Waits(look_every_s=0.02, await_unit_s=0.3, stop_s=5)
LEFT, RIGHT, FAR = (Unit(name, name, "CPU") for name in ("left", "right", "far"))
OTHER = Unit("gpu", "gpu", "NVIDIA X")


def item(
    unit: Unit, contract: str = "toy", seconds: float = 1.0, role: Role = "named",
    reason: str = "never-tested", replays: tuple[int, ...] = (0, 1),
) -> Item:  # fmt: skip
    slots = tuple(Slot(0, contract, i, role, None, (), unit.name) for i in replays)
    return Item(unit, contract, (), role, reason, 0.0, seconds, "assumed", slots)  # type: ignore[arg-type]


# who may take what


def test_a_unit_takes_its_own_in_order_and_then_the_longest_of_its_kind() -> None:
    items = [
        item(LEFT, "a"), item(LEFT, "b"), item(RIGHT, "c", 1), item(RIGHT, "d", 5),
        item(OTHER, "e", 9), item(RIGHT, "f", 20, role="control"),
        item(RIGHT, "g", 30, reason="look"),
    ]  # fmt: skip
    board = Board(items, 100)
    taken = [board.take(LEFT) for _ in range(5)]
    assert [i and i.contract for i in taken] == ["a", "b", "d", "c", None]
    assert [i and i.contract for i in (board.take(RIGHT), board.take(OTHER))] == ["f", "e"]


def test_what_would_end_after_the_budget_is_not_begun() -> None:
    now = [0.0]
    board = Board([item(LEFT, "a", 10), item(LEFT, "b", 3)], 10, clock=lambda: now[0])
    now[0] = 5.0
    first, second = board.take(LEFT), board.take(LEFT)
    assert first is not None and first.contract == "b"
    assert second is None
    assert [(each.contract, each.code) for each in board.rest()] == [("a", "budget")]


def test_a_unit_that_may_not_run_a_contract_does_not_take_it() -> None:
    board = Board([item(LEFT, "a"), item(LEFT, "b")], 100)
    narrow = Unit("right", "right", "CPU", contracts=("b",))
    first, second = board.take(narrow), board.take(narrow)
    assert (first and first.contract, second) == ("b", None)


# whole nights


CONTRACTS = ("toy", "second", "third")


@pytest.fixture(autouse=True)
def configs(tmp_path: Path) -> None:
    folder = write_configs(tmp_path / "configs")
    for name in CONTRACTS[1:]:
        write_contract(folder, name)


def landing(root: Path) -> Landing:
    return Landing.open(places_in(root).landing, create=True)


def night(
    root: Path, launcher: FakeLauncher, items: list[Item], units: tuple[Unit, ...] = (LEFT, RIGHT),
    budget_s: float = 1000.0, waits: Waits = WAITS,
) -> Night:  # fmt: skip
    _, planned, places = planned_in(root, *CONTRACTS, purpose="replay")
    return Night(
        "n1", landing(root), launcher, {r.name: r for r in planned.named}, items, units,
        budget_s, places.scratch, limits=LIMITS, waits=waits,
    )  # fmt: skip


def ran(root: Path) -> Counter[tuple[str, str, int, str]]:
    """(unit, contract, replay, how its attempt ended)."""
    found: Counter[tuple[str, str, int, str]] = Counter()
    here = landing(root)
    for unit in (LEFT, RIGHT, FAR):
        entries = read_chain(here, campaign_id("n1", unit))
        planned = {e.attempt: e.body for e in entries if e.kind == "planned"}
        for attempt, end in ends(entries):
            assert end is not None
            body = planned[attempt]
            found[unit.name, body["contract"], body["replay"], end.body["state"]] += 1
    return found


def test_units_run_at_a_time_each_under_a_campaign_of_its_own(tmp_path: Path) -> None:
    both = threading.Barrier(2, timeout=20)
    met: list[str] = []

    def meet(task: ReplayTask) -> None:
        both.wait()
        met.append(task.node_label)

    launcher = FakeLauncher(labels=("left", "right"), at_start={0: meet, 1: meet})
    end = night(tmp_path, launcher, [item(LEFT, "toy"), item(RIGHT, "second")]).run(["campaign"])
    assert sorted(met) == ["left", "right"]
    assert end.campaigns == {"left": "n1.left", "right": "n1.right"}
    assert end.left_out == ()
    assert ran(tmp_path) == {
        ("left", "toy", 0, "COMPLETE"): 1, ("left", "toy", 1, "COMPLETE"): 1,
        ("right", "second", 0, "COMPLETE"): 1, ("right", "second", 1, "COMPLETE"): 1,
    }  # fmt: skip
    told = [e.kind for e in read_chain(landing(tmp_path), f"{NIGHT}n1")]
    assert told == ["night", "closed"]


def test_a_unit_that_is_done_takes_what_another_has_not_begun(tmp_path: Path) -> None:
    launcher = FakeLauncher(labels=("left", "right"))
    items = [item(LEFT, name) for name in CONTRACTS]
    night(tmp_path, launcher, items).run()
    found = ran(tmp_path)
    assert sum(found.values()) == 6
    assert {unit for unit, *_ in found} == {"left", "right"}
    for name in CONTRACTS:  # a set stays together
        assert len({unit for unit, contract, *_ in found if contract == name}) == 1


def dying(launcher: FakeLauncher, label: str) -> Callable[[ReplayTask], None]:
    def die(task: ReplayTask) -> None:
        if task.node_label == label:
            launcher.down.add(label)
            launcher.labels = tuple(each for each in launcher.labels if each != label)
            raise AttemptFailed("node-unreachable", "gone")

    return die


def test_the_work_of_a_unit_that_went_away_is_done_by_another_of_its_kind(tmp_path: Path) -> None:
    launcher = FakeLauncher(labels=("left", "right"))
    die = dying(launcher, "right")
    launcher.script = {i: die for i in range(20)}
    items = [item(LEFT, "toy"), item(RIGHT, "second"), item(RIGHT, "third")]
    end = night(tmp_path, launcher, items).run()
    found = ran(tmp_path)
    complete = {key[:3] for key in found if key[3] == "COMPLETE"}
    assert complete == {("left", name, i) for name in CONTRACTS for i in range(2)}
    assert [key for key in found if key[0] == "right"] == [("right", "second", 0, "FAILED")]
    assert end.left_out == ()


def test_what_only_a_lost_unit_could_run_is_left_out_and_said(tmp_path: Path) -> None:
    launcher = FakeLauncher(labels=("left",))
    items = [item(LEFT, "toy"), item(OTHER, "second")]
    end = night(tmp_path, launcher, items, (LEFT, OTHER)).run()
    assert [(each.contract, each.code) for each in end.left_out] == [("second", "no-unit")]
    told = read_chain(landing(tmp_path), f"{NIGHT}n1")
    assert [e.kind for e in told] == ["night", "left_out", "closed"]


def test_a_unit_that_comes_back_goes_on_under_its_campaign(tmp_path: Path) -> None:
    launcher = FakeLauncher(labels=("right",))

    def away(task: ReplayTask) -> None:
        launcher.down.add("right")
        launcher.labels = ()
        threading.Timer(0.2, back).start()
        raise AttemptFailed("node-unreachable", "gone")

    def back() -> None:
        launcher.down.clear()
        launcher.labels = ("right",)

    launcher.script = {1: away}
    waits = Waits(look_every_s=0.02, await_unit_s=20, stop_s=5)
    night(tmp_path, launcher, [item(RIGHT, "toy")], waits=waits).run()
    assert ran(tmp_path) == {
        ("right", "toy", 0, "COMPLETE"): 1, ("right", "toy", 1, "COMPLETE"): 1,
        ("right", "toy", 1, "FAILED"): 1,
    }  # fmt: skip
    kinds = [e.kind for e in read_chain(landing(tmp_path), "n1.right")]
    assert (kinds.count("campaign"), kinds.count("resumed")) == (1, 1)


def test_a_restarted_driver_goes_on_with_the_plan_it_finds(tmp_path: Path) -> None:
    launcher = FakeLauncher(labels=("left", "right"))
    items = [item(LEFT, "toy"), item(RIGHT, "second")]
    night(tmp_path, launcher, items).run()
    here = landing(tmp_path)
    for name, keep in ((f"{NIGHT}n1", "night"), ("n1.right", "accepted")):
        last = next(e for e in read_chain(here, name) if e.kind == keep)
        for path in chain_folder(here, name).iterdir():
            if int(path.stem) > last.seq:
                path.unlink()
    again = FakeLauncher(labels=("left", "right"))
    night(tmp_path, again, [item(LEFT, "third")]).run()  # the plan of that night stands
    assert [(t.contract_name, t.node_label) for t in again.tasks] == [("second", "right")]


def test_controls_that_are_there_are_told_to_what_follows_from_them(tmp_path: Path) -> None:
    """A repeat of what a traced control showed runs last: it may be what a killed driver missed."""
    items = [item(LEFT, "toy", role="control"), item(LEFT, "second")]
    launcher = FakeLauncher(labels=("left",))
    night(tmp_path, launcher, items).run()
    again, told = FakeLauncher(labels=("left",)), list[AttemptEnd]()
    second = night(tmp_path, again, items)
    second.following = lambda _: lambda ends: (told.extend(ends), [])[1]
    second.run()
    assert again.tasks == []
    assert [(end.slot.contract, end.slot.role) for end in told] == [("toy", "control")] * 2


class Interrupted(FakeLauncher):
    """The driver is interrupted at its second look at the units, once a replay runs on each."""

    looks = 0

    def units(self) -> Sequence[Place]:
        self.looks += 1
        if self.looks == 2:
            RUNNING.wait()
            raise KeyboardInterrupt
        return super().units()


RUNNING = threading.Barrier(3, timeout=20)


def test_an_interrupt_ends_what_runs_on_every_unit(tmp_path: Path) -> None:
    launcher = Interrupted(labels=("left", "right"))

    def killed(task: ReplayTask) -> None:
        RUNNING.wait()
        until = time.monotonic() + 20
        while ("kill", task.attempt) not in launcher.did and time.monotonic() < until:
            time.sleep(0.01)
        raise AttemptFailed("killed", "signal 9")

    launcher.script = {0: killed, 1: killed}
    with pytest.raises(KeyboardInterrupt):
        night(tmp_path, launcher, [item(LEFT, "toy"), item(RIGHT, "second")]).run()
    assert {key[3] for key in ran(tmp_path)} == {"FAILED"}
    for unit in (LEFT, RIGHT):
        entries = read_chain(landing(tmp_path), campaign_id("n1", unit))
        assert [e.body["cause"]["code"] for e in entries if e.kind == "given_up"] == ["driver-gone"]
        assert entries[-1].kind == "closed"
