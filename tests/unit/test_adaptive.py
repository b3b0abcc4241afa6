"""A declared bound takes as many replays as it takes, and a difference ends the count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fleet.contract.load import load_contract
from fleet.contract.model import Require
from fleet.errors import ContractError
from fleet.judge.bounds import MIN_REPLAYS, fewest_replays, process_bound, replays_for
from fleet.judge.verdict import Verdict
from fleet.schedule.certify import certify
from tests.campaigns import (
    CONTRACT,
    ORDERED,
    RACY,
    FakeLauncher,
    planned_in,
    raises,
    write_configs,
    write_contract,
)
from tests.unit.evidence_builders import dataset, judged, replay

BOUND = "process_bound = 0.4\n"
FEWEST = 7


@pytest.mark.parametrize("bound", [0.499, 0.41, 0.4, 0.3, 0.2, 0.1, 0.05, 0.01, 0.001])
def test_the_number_of_replays_is_the_fewest_that_reach_the_bound(bound: float) -> None:
    fewest = replays_for(bound)
    reached, before = process_bound(fewest), process_bound(fewest - 1)
    assert reached is not None and reached <= bound
    assert fewest == MIN_REPLAYS or (before is not None and before > bound)


@pytest.mark.parametrize("bound", [0.0, 0.5, 1.0, -0.1])
def test_a_bound_that_is_no_minority_is_refused(bound: float) -> None:
    with pytest.raises(ValueError, match="minority"):
        replays_for(bound)


def test_the_larger_of_both_numbers_is_required() -> None:
    assert fewest_replays(Require()) == 2
    assert fewest_replays(Require(process_bound=0.4)) == FEWEST
    assert fewest_replays(Require(process_bound=0.4, replays=20)) == 20


@pytest.mark.parametrize("value", ["0.5", "0", "-1", '"0.3"', "true"])
def test_a_contract_with_an_impossible_bound_is_a_usage_error(tmp_path: Path, value: str) -> None:
    path = write_contract(tmp_path, "toy", CONTRACT + f"process_bound = {value}\n")
    with pytest.raises(ContractError, match="process_bound"):
        load_contract(str(path), [tmp_path])


def run(
    root: Path, text: str, launcher: FakeLauncher | None = None, **request: Any
) -> tuple[Verdict, FakeLauncher]:
    """The verdict on ``mine`` and what was started for it."""
    write_contract(write_configs(root / "configs"), "mine", text)
    asked, planned, places = planned_in(root, "mine", **request)
    launcher = launcher or FakeLauncher()
    answer = certify(asked, planned, places, launcher, lambda _: None)
    (verdict,) = answer.contracts
    launcher.tasks = [task for task in launcher.tasks if task.contract_name == "mine"]
    return verdict, launcher


@pytest.mark.parametrize(
    ("text", "request_"),
    [(CONTRACT + BOUND, {}), (CONTRACT, {"process_bound": 0.4})],
    ids=["of the contract", "of the command line"],
)
def test_replays_go_on_until_the_bound_is_reached_and_no_further(
    tmp_path: Path, text: str, request_: dict[str, Any]
) -> None:
    verdict, launcher = run(tmp_path, text, **request_)
    assert (verdict.verdict, len(launcher.tasks)) == ("PASS", FEWEST)
    assert verdict.bounds["process"] == process_bound(FEWEST)
    assert len({task.attempt for task in launcher.tasks}) == FEWEST


def test_a_number_on_the_command_line_takes_the_place_of_the_contracts(tmp_path: Path) -> None:
    verdict, launcher = run(tmp_path, CONTRACT, replays=4)
    assert (verdict.verdict, len(launcher.tasks)) == ("PASS", 4)


@pytest.mark.parametrize("fault", [RACY, ORDERED], ids=["race", "order"])
def test_two_replays_that_differ_end_it(tmp_path: Path, fault: str) -> None:
    verdict, launcher = run(tmp_path, CONTRACT + BOUND + fault)
    if fault == RACY:
        assert (verdict.verdict, len(launcher.tasks)) == ("FAIL", 2)
    else:  # a fault that every process makes alike
        assert (verdict.verdict, len(launcher.tasks)) == ("PASS", FEWEST)


def test_a_slot_that_is_lost_for_good_ends_it_without_a_pass(tmp_path: Path) -> None:
    controls = 4
    launcher = FakeLauncher({controls + 2: raises(ValueError("as planned"))})
    verdict, launcher = run(tmp_path, CONTRACT + BOUND, launcher)
    assert (verdict.verdict, len(launcher.tasks)) == ("VOID", 3)


def test_fewer_equal_replays_than_the_bound_takes_are_no_pass() -> None:
    replays = [replay(f"a{i}", dataset(), slot=i) for i in range(FEWEST)]
    require = Require(process_bound=0.4)
    short = judged(replays[:-1], require)
    assert (short.verdict, short.code) == ("VOID", "missing-evidence")
    assert "7 complete replays required for a process bound of 0.4, 6 on one unit" in short.reason
    assert judged(replays, require).verdict == "PASS"
