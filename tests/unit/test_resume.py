"""A driver that ended without a word, and the one after it under the same id: what was done stays
done, what was open is given up and tried anew, and nothing is run twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.errors import AttemptFailed, CannotRunError, UsageError
from fleet.evidence.landing import Landing
from fleet.evidence.ledger import Entry, chain_folder, ends, read_chain
from fleet.evidence.summarise import summarise
from fleet.replay.task import Target, TraceOrder
from fleet.schedule.driver import AttemptEnd, Campaign
from fleet.schedule.plan import Slot, Work
from tests.campaigns import (
    CONTRACT,
    QUICK,
    FakeLauncher,
    places_in,
    planned_in,
    raises,
    write_configs,
    write_contract,
)

ID = "nightly-1"
SLOTS = [Slot(i, "toy", i, "named") for i in range(3)]


@pytest.fixture(autouse=True)
def configs(tmp_path: Path) -> None:
    write_configs(tmp_path / "configs")


def drive(
    root: Path, launcher: FakeLauncher, slots: Sequence[Slot] = SLOTS, **fields: object
) -> list[AttemptEnd]:
    _, planned, places = planned_in(root, purpose="replay")
    contracts = {r.name: r for r in planned.named}
    landing = Landing.open(places.landing, create=True)
    campaign = Campaign(landing, launcher, contracts, places.scratch, QUICK, id=ID, **fields)  # type: ignore[arg-type]
    return campaign.run(slots)


def chain(root: Path) -> list[Entry]:
    return read_chain(Landing.open(places_in(root).landing), ID)


def cut(root: Path, kind: str, number: int) -> None:
    """As if the driver had been killed just after the n-th entry of a kind."""
    folder = chain_folder(Landing.open(places_in(root).landing), ID)
    last = [e for e in chain(root) if e.kind == kind][number]
    for path in folder.iterdir():
        if int(path.stem) > last.seq:
            path.unlink()


@pytest.mark.parametrize(
    ("kind", "number", "run_again"),
    [("controls", 0, 3), ("planned", 0, 3), ("started", 1, 2), ("gone", 1, 2), ("accepted", 1, 1)],
)
def test_a_restarted_driver_runs_what_is_missing_and_nothing_else(
    tmp_path: Path, kind: str, number: int, run_again: int
) -> None:
    drive(tmp_path, FakeLauncher())
    before = {e.attempt for e in chain(tmp_path) if e.kind == "planned"}
    cut(tmp_path, kind, number)
    launcher = FakeLauncher()
    found = drive(tmp_path, launcher)
    assert len(launcher.tasks) == run_again
    assert sorted((end.slot.replay, end.state) for end in found) == [
        (i, "COMPLETE") for i in range(3)
    ]
    entries = chain(tmp_path)
    assert [e.kind for e in entries].count("resumed") == 1
    landing = Landing.open(places_in(tmp_path).landing)
    told = {
        a: end and (end.kind, end.body.get("cause", {}).get("code")) for a, end in ends(entries)
    }
    assert None not in told.values()
    for attempt, end in told.items():
        if end == ("accepted", None):
            assert summarise(landing, attempt, entries).state == "COMPLETE"
        else:
            assert (attempt in before, end) == (True, ("given_up", "driver-gone"))


def test_a_campaign_that_is_done_is_not_run_again(tmp_path: Path) -> None:
    first = drive(tmp_path, FakeLauncher())
    launcher, said = FakeLauncher(), list[str]()
    again = drive(tmp_path, launcher, on_event=said.append)
    assert launcher.tasks == []
    assert [end.attempt for end in again] == [end.attempt for end in first]
    assert said == [f"3 of 3 replays of {ID} are there already"]


def test_an_id_names_one_plan(tmp_path: Path) -> None:
    drive(tmp_path, FakeLauncher())
    write_contract(tmp_path / "configs", "toy", CONTRACT.replace("seed = 0", "seed = 1"))
    before = len(chain(tmp_path))
    with pytest.raises(UsageError, match="--campaign-id"):
        drive(tmp_path, FakeLauncher())
    assert len(chain(tmp_path)) == before


def test_a_process_that_outlived_its_driver_keeps_the_next_one_off(tmp_path: Path) -> None:
    launcher = FakeLauncher()
    drive(tmp_path, launcher)
    cut(tmp_path, "started", 1)
    pid = [e for e in chain(tmp_path) if e.kind == "started"][1].body["process"]["pid"]
    with pytest.raises(CannotRunError, match=f"process {pid} lives on test-node"):
        drive(tmp_path, FakeLauncher(lives_on={pid}))
    assert drive(tmp_path, FakeLauncher())[-1].state == "COMPLETE"


def test_a_failed_replay_is_tried_again_by_the_next_driver(tmp_path: Path) -> None:
    launcher = FakeLauncher(script={1: raises(AttemptFailed("killed", "signal 9"))})
    assert [e.state for e in drive(tmp_path, launcher)] == ["COMPLETE", "FAILED", "COMPLETE"]
    launcher = FakeLauncher()
    drive(tmp_path, launcher)
    assert [task.slot for task in launcher.tasks] == [1]


def test_a_unit_that_went_away_ends_the_campaign_instead_of_waiting_for_each_slot(
    tmp_path: Path,
) -> None:
    launcher = FakeLauncher()

    def dies(task: object) -> None:
        launcher.down.add("test-node")
        raise AttemptFailed("node-unreachable", "gone")

    launcher.script, launcher.observed = {1: dies}, {1: (True, False)}
    _, planned, places = planned_in(tmp_path, purpose="replay")
    campaign = Campaign(
        Landing.open(places.landing, create=True), launcher,
        {r.name: r for r in planned.named}, places.scratch, replace(QUICK, retries=3), id=ID,
    )  # fmt: skip
    found = campaign.run(SLOTS)
    assert [(e.slot.replay, e.state) for e in found] == [(0, "COMPLETE"), (1, "LOST")]
    assert campaign.unit_is_down
    assert len(launcher.tasks) == 2


def test_slots_that_are_fed_run_after_those_that_were_planned(tmp_path: Path) -> None:
    more = [[Slot(3, "toy", 3, "named")], [Slot(4, "toy", 4, "named")], []]
    launcher = FakeLauncher()
    found = drive(tmp_path, launcher, feed=lambda: more.pop(0))
    assert [end.slot.replay for end in found] == [0, 1, 2, 3, 4]
    assert more == []


# what follows from the slots of a plan


REPEAT = Work(
    "trace",
    ("s0",),
    ("current",),
    TraceOrder(targets=(Target("current", 0, 0, "m", 0),), repeats=2),
)


def followed(root: Path, launcher: FakeLauncher) -> list[AttemptEnd]:
    """A driver that asks for a repeat of a frozen call once everything else ran, as the tracer
    does, unless one is there."""
    _, planned, places = planned_in(root, purpose="replay")
    landing = Landing.open(places.landing, create=True)
    contracts = {r.name: r for r in planned.named}
    campaign = Campaign(landing, launcher, contracts, places.scratch, QUICK, id=ID)

    def follow(ends: Sequence[AttemptEnd]) -> list[Slot]:
        there = any(end.slot.work is not None and end.slot.work.repeats_a_call for end in ends)
        return [] if there or len(ends) < len(SLOTS) else [Slot(3, "toy", 0, "named", REPEAT)]

    return campaign.run(SLOTS, follow=follow)


def test_what_was_to_follow_is_run_by_the_next_driver_when_all_else_is_there(
    tmp_path: Path,
) -> None:
    followed(tmp_path, FakeLauncher())
    cut(tmp_path, "accepted", 2)  # killed before the repeat was planned
    launcher = FakeLauncher()
    ends_ = followed(tmp_path, launcher)
    assert [task.purpose for task in launcher.tasks] == ["trace"]
    assert len(ends_) == len(SLOTS) + 1


def test_a_repeat_that_is_there_is_not_asked_for_again(tmp_path: Path) -> None:
    followed(tmp_path, FakeLauncher())
    again = FakeLauncher()
    ends_ = followed(tmp_path, again)
    assert again.tasks == []
    assert ends_[0].slot.work == REPEAT
    assert [end.slot.work for end in ends_[1:]] == [None] * len(SLOTS)
