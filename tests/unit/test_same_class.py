"""A claim about several units: a replay on each at a time, on its own, and the controls with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fleet.errors import CannotRunError, ContractError
from fleet.evidence.landing import Landing
from fleet.evidence.ledger import Entry, campaigns, read_chain
from fleet.report.answers import Answers, CampaignAnswer
from fleet.report.status import status_rows
from fleet.schedule.certify import certify
from fleet.schedule.driver import Limits
from fleet.store.open import open_reader
from tests.campaigns import (
    CONTRACT,
    QUICK,
    RACY,
    FakeLauncher,
    places_in,
    planned_in,
    raises,
    write_configs,
    write_contract,
)

TEXT = CONTRACT + 'scope = "same-class"\n'
CONTROLS = 4
"""Attempts of the controls, which come first."""


def two(**changes: Any) -> FakeLauncher:
    return FakeLauncher(labels=("left", "right"), **changes)


def run(root: Path, launcher: FakeLauncher, text: str = TEXT, **request: Any) -> CampaignAnswer:
    write_contract(write_configs(root / "configs"), "mine", text)
    asked, planned, places = planned_in(root, "mine", **request)
    return certify(asked, planned, places, launcher, lambda _: None)


def mine(launcher: FakeLauncher) -> list[Any]:
    return [task for task in launcher.tasks if task.contract_name == "mine"]


def entries(root: Path) -> list[Entry]:
    landing = Landing.open(places_in(root).landing)
    (campaign,) = campaigns(landing)
    return read_chain(landing, campaign)


def test_two_units_replay_at_a_time_and_agree(tmp_path: Path) -> None:
    launcher = two()
    (verdict,) = run(tmp_path, launcher).contracts
    assert (verdict.verdict, verdict.scope) == ("PASS", "same-class")
    assert [unit["replays"] for unit in verdict.units] == [1, 1]
    one, other = mine(launcher)
    assert (one.node_label, other.node_label) == ("left", "right")
    assert launcher.did.index(("go", other.attempt)) < launcher.did.index(("end", one.attempt))
    told = [
        (e.kind, e.attempt) for e in entries(tmp_path) if e.attempt in (one.attempt, other.attempt)
    ]
    assert told == [
        ("planned", one.attempt), ("started", one.attempt),
        ("planned", other.attempt), ("started", other.attempt),
        ("go", one.attempt), ("go", other.attempt),
        ("gone", one.attempt), ("accepted", one.attempt),
        ("gone", other.attempt), ("accepted", other.attempt),
    ]  # fmt: skip


def test_controls_run_through_the_same_units(tmp_path: Path) -> None:
    launcher = two()
    answer = run(tmp_path, launcher)
    assert [control.mismatches for control in answer.controls] == [(), ()]
    labels = [t.node_label for t in launcher.tasks if t.contract_name != "mine"]
    assert labels == ["left", "right"] * 2


def test_four_replays_are_two_on_each_and_each_has_its_own_predecessor(tmp_path: Path) -> None:
    launcher = two()
    (verdict,) = run(tmp_path, launcher, replays=4).contracts
    assert [unit["replays"] for unit in verdict.units] == [2, 2]
    first, second, third, fourth = mine(launcher)
    numbers = {task.attempt: number for number, task in enumerate(launcher.tasks)}
    for earlier, later in ((first, third), (second, fourth)):
        assert later.node_label == earlier.node_label
        assert later.predecessor.start_tick == int(earlier.attempt, 16)
    assert numbers[fourth.attempt] == len(launcher.tasks) - 1


def test_two_units_that_differ_are_a_fail_of_the_class(tmp_path: Path) -> None:
    (verdict,) = run(tmp_path, two(), TEXT + RACY).contracts
    assert (verdict.verdict, verdict.scope) == ("FAIL", "same-class")
    assert [unit["classes"] for unit in verdict.units] == [1, 1]


def test_a_replay_that_failed_is_tried_again_where_it_was(tmp_path: Path) -> None:
    launcher = two(script={CONTROLS + 1: raises(ValueError("as planned"))})
    (verdict,) = run(tmp_path, launcher, limits=Limits(retries=1)).contracts
    assert verdict.verdict == "PASS"
    assert [task.node_label for task in mine(launcher)] == ["left", "right", "right"]


@pytest.mark.parametrize("number", [CONTROLS, CONTROLS + 1])
def test_an_interrupt_leaves_an_end_for_each_of_those_that_ran(tmp_path: Path, number: int) -> None:
    launcher = two(script={number: raises(KeyboardInterrupt())})
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, launcher)
    ends = {e.attempt: e.kind for e in entries(tmp_path) if e.kind in ("accepted", "given_up")}
    one, other = (task.attempt for task in mine(launcher))
    assert (ends[one], ends[other]) == (
        ("given_up", "given_up") if number == CONTROLS else ("accepted", "given_up")
    )


def test_one_unit_cannot_show_it_and_says_so_before_anything_runs(tmp_path: Path) -> None:
    launcher = FakeLauncher()
    with pytest.raises(CannotRunError, match=r"require.scope.*two units.*one: test-node"):
        run(tmp_path, launcher)
    assert not launcher.tasks
    assert not places_in(tmp_path).landing.exists()


def test_it_stands_beside_no_variation(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="beside vary"):
        run(tmp_path, two(), TEXT + 'vary = ["order"]\n')


def test_an_odd_number_of_replays_still_needs_both_units(tmp_path: Path) -> None:
    launcher = two(observed={CONTROLS + 1: (True, False)})
    (verdict,) = run(tmp_path, launcher, limits=QUICK).contracts
    assert (verdict.verdict, verdict.code) != ("PASS", None)
    assert verdict.verdict == "VOID"


def test_the_command_line_may_ask_for_it(tmp_path: Path) -> None:
    (verdict,) = run(tmp_path, two(), CONTRACT, scope="same-class").contracts
    assert (verdict.verdict, verdict.scope) == ("PASS", "same-class")


def test_a_varied_claim_about_several_units_is_refused_from_there_too(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="beside vary"):
        run(tmp_path, two(), CONTRACT, scope="same-class", claims=(("order",),))


def test_controls_of_an_earlier_campaign_are_held_against_what_that_one_asked(
    tmp_path: Path,
) -> None:
    """On one unit then, on two now: the first campaign's PASS stands."""
    (first,) = run(tmp_path, FakeLauncher(labels=("left",)), CONTRACT).contracts
    assert (first.verdict, first.scope) == ("PASS", "same-unit")
    write_contract(tmp_path / "configs", "second", TEXT.replace("seed = 0", "seed = 1"))
    asked, planned, places = planned_in(tmp_path, "second")
    assert certify(asked, planned, places, two(), lambda _: None).exit_code() == 0
    with open_reader(places.store) as store:
        answers = Answers(store, Landing.open(places.landing))
        rows = status_rows(answers, ["mine", "second"], places.search, places.cache, 0.0)
    assert [(row.contract, row.verdict and row.verdict.verdict) for row in rows] == [
        ("mine", "PASS"), ("second", "PASS"),
    ]  # fmt: skip
