"""From a fleet's TOML and what has landed to a plan, and from a plan to verdicts."""

from __future__ import annotations

import json
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleet.cli import run
from fleet.errors import AttemptFailed, ContractError
from fleet.evidence.landing import Landing
from fleet.evidence.ledger import Entry, campaigns, read_chain
from fleet.replay.task import ReplayTask
from fleet.report.night_answer import NightAnswer, print_answer
from fleet.report.night_view import print_night
from fleet.schedule.history import held_s, looks_of, seen_units
from fleet.schedule.night_terms import Item, NightPlan
from fleet.schedule.nightly import NightRequest, Planned, plan_and_run, plan_campaign
from tests.campaigns import (
    CONTRACT,
    CONTROLS,
    QUICK,
    RACY,
    FakeLauncher,
    places_in,
    raises,
    write_configs,
    write_contract,
)
from tests.unit.screens import shown
from tests.unit.test_units import decided, landed, specs

DAY_S = 86400.0


def write_fleet(root: Path, *labels: str, contracts: str = '"toy", "other"') -> None:
    nodes = "".join(f'[[nodes]]\nlabel = "{label}"\n' for label in labels)
    path = root / "configs" / "fleets" / "rack.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"[night]\nbudget_minutes = 100\ncontracts = [{contracts}]\n{nodes}")


def planned(root: Path, now_s: float | None = None, **request: object) -> NightPlan:
    asked = NightRequest("rack", **request)  # type: ignore[arg-type]
    return plan_campaign(asked, places_in(root), now_s or time.time()).plan


def named(plan: NightPlan) -> list[Item]:
    return [item for item in plan.items if item.role == "named"]


@pytest.fixture
def night(tmp_path: Path, campaigned: Path) -> Path:
    """Evidence of toy, other and own on ``test-node``, and a fleet of that node."""
    for name in ("configs", "var"):
        shutil.copytree(campaigned / name, tmp_path / name)
    write_fleet(tmp_path, "test-node")
    return tmp_path


def test_a_plan_needs_neither_a_cluster_nor_a_store_and_writes_nothing(tmp_path: Path) -> None:
    write_configs(tmp_path / "configs")
    write_fleet(tmp_path, "left", "right", contracts='"toy"')
    before = sorted(tmp_path.rglob("*"))
    found = planned(tmp_path)
    assert [(i.contract, i.reason, i.estimate) for i in named(found)] == [
        ("toy", "never-tested", "assumed"),
    ]  # fmt: skip
    controls = [i.contract for i in found.items if i.role == "control"]
    assert sorted(controls) == sorted(CONTROLS * 2)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_fresh_pass_is_left_alone_then_refreshed_then_stale(night: Path) -> None:
    now_s = time.time()
    assert named(planned(night, now_s)) == []
    assert {left.code for left in planned(night, now_s).left_out} == {"current"}
    later = [{i.reason for i in named(planned(night, now_s + days * DAY_S))} for days in (16, 31)]
    assert later == [{"refresh"}, {"stale"}]


def test_a_replay_takes_what_it_took_and_another_node_of_the_class_is_taken_for_it(
    night: Path,
) -> None:
    write_fleet(night, "test-node", "new")
    found = planned(night, time.time() + 31 * DAY_S)
    assert {(i.reason, i.estimate) for i in named(found)} == {("stale", "measured")}
    assert all(0 < i.seconds < 60 for i in found.items)
    assert {i.unit.name for i in named(found)} == {"test-node", "new"}


def test_a_contract_that_changed_was_never_tested(night: Path) -> None:
    changed = CONTRACT.replace("max_new_tokens = 4", "max_new_tokens = 3")
    write_contract(night / "configs", "toy", changed)
    (item,) = named(planned(night))
    assert (item.contract, item.reason, item.estimate) == ("toy", "never-tested", "measured")


def test_a_node_that_nobody_has_seen_was_never_tested(night: Path) -> None:
    write_fleet(night, "elsewhere")
    assert {i.reason for i in named(planned(night))} == {"never-tested"}


def test_a_quarantined_unit_gets_its_look(tmp_path: Path) -> None:
    root = landed(tmp_path, specs())
    write_configs(root / "configs")
    assert [(d.kind, d.unit, d.contract) for d in decided(root)] == [
        ("quarantined", "unit-0", "toy"),
    ]  # fmt: skip
    assert looks_of(Landing.open(places_in(root).landing)) == {"unit-0": ("toy",)}
    write_fleet(root, "unit-0", "unit-1", "unit-2", contracts='"toy"')
    found = planned(root)
    assert [(i.reason, len(i.slots)) for i in found.items if i.unit.name == "unit-0"] == [
        ("look", 2),
    ]  # fmt: skip
    others = [i for i in found.items if i.unit.name != "unit-0"]
    assert [i.reason for i in others if i.role == "named"] == ["never-tested"]
    assert "looks at quarantined units" in shown(print_night, found)


def test_a_replay_holds_its_unit_from_when_the_one_before_was_gone() -> None:
    def entry(seq: int, kind: str, attempt: str, at_s: float, **body: object) -> Entry:
        return Entry("c", seq, kind, attempt, at_s, body, "")  # type: ignore[arg-type]

    chain = [
        entry(0, "planned", "a", 0.0), entry(1, "go", "a", 2.0, after=None),
        entry(2, "planned", "b", 3.0), entry(3, "gone", "a", 10.0),
        entry(4, "accepted", "a", 11.0), entry(5, "go", "b", 12.0, after="a"),
        entry(6, "gone", "b", 20.0), entry(7, "accepted", "b", 21.0),
        entry(8, "planned", "c", 22.0), entry(9, "given_up", "c", 30.0),
    ]  # fmt: skip
    assert held_s(chain) == {"a": 11.0, "b": 11.0}


def test_units_that_were_seen_carry_their_node(night: Path) -> None:
    (seen,) = seen_units(places_in(night))
    assert (seen.node, seen.name) == ("test-node", "test-node")
    assert seen.platform.startswith("sha256:")


# running


def night_run(
    root: Path, launcher: FakeLauncher, **request: object
) -> tuple[Planned, NightAnswer | None]:
    asked = NightRequest("rack", limits=QUICK, **request)  # type: ignore[arg-type]
    return plan_and_run(asked, places_in(root), launcher, lambda _: None)


def test_a_night_is_a_campaign_a_unit_with_its_controls(tmp_path: Path) -> None:
    write_configs(tmp_path / "configs")
    write_fleet(tmp_path, "test-node", contracts='"toy"')
    told, answer = night_run(tmp_path, FakeLauncher(), campaign="night-1")
    assert answer is not None
    assert [(row.contract, row.state) for row in answer.rows] == [("toy", "PASS")]
    assert [(unit, c.mismatches) for unit, c in answer.controls] == [("test-node", ())] * 2
    assert (answer.exit_code(), answer.left_out) == (0, ())
    landing = Landing.open(places_in(tmp_path).landing)
    assert campaigns(landing) == ["night-1.test-node"]
    ran = [
        e.body["contract"] for e in read_chain(landing, "night-1.test-node") if e.kind == "planned"
    ]
    assert ran == [slot.contract for slot in told.plan.slots]
    document = answer.to_json()
    assert document["units"] == {"test-node": "night-1.test-node"}
    assert [c["verdict"] for c in document["contracts"]] == ["PASS"]
    assert "control control-clean-synthetic on test-node: behaves" in shown(print_answer, answer)


def test_a_night_of_that_id_is_gone_on_with_and_says_what_is_there(tmp_path: Path) -> None:
    write_configs(tmp_path / "configs")
    write_fleet(tmp_path, "test-node", contracts='"toy"')
    night_run(tmp_path, FakeLauncher(), campaign="night-1")
    again, said = FakeLauncher(), list[str]()
    asked = NightRequest("rack", limits=QUICK, campaign="night-1")
    _, answer = plan_and_run(asked, places_in(tmp_path), again, said.append)
    assert again.tasks == []
    assert answer is not None
    assert [(row.contract, row.state) for row in answer.rows] == [("toy", "PASS")]
    assert "3 of 3 sets are there already" in said


def test_a_control_that_does_not_behave_on_a_unit_costs_the_night_its_0(tmp_path: Path) -> None:
    write_configs(tmp_path / "configs")
    write_fleet(tmp_path, "test-node", contracts='"toy"')
    killed = raises(AttemptFailed("killed", "signal 9"))
    launcher = FakeLauncher(script={3: killed})
    _, answer = night_run(tmp_path, launcher)
    assert answer is not None
    assert [bool(c.mismatches) for _, c in answer.controls] == [False, True]
    assert answer.exit_code() == 3
    assert [row.state for row in answer.rows] == ["VOID"]


def test_a_night_with_nothing_due_runs_nothing(night: Path) -> None:
    launcher = FakeLauncher()
    told, answer = night_run(night, launcher)
    assert (answer, launcher.tasks, told.plan.is_covered) == (None, [], True)


def test_units_that_the_fleet_does_not_expect_are_not_used(tmp_path: Path) -> None:
    write_configs(tmp_path / "configs")
    write_fleet(tmp_path, "left", contracts='"toy"')
    launcher = FakeLauncher(labels=("test-node",))
    told, answer = night_run(tmp_path, launcher)
    assert (answer, launcher.tasks) == (None, [])
    assert told.notes == (
        "unit test-node: not of this fleet, and not used", "node left: 1 of 1 units missing",
    )  # fmt: skip
    assert [left.why for left in told.plan.left_out] == ["no unit of its class is there"]
    assert not told.plan.is_covered


@pytest.mark.parametrize("name", ["a/b", "decisions-x", "planned-x", ".hidden", "a b"])
def test_an_id_that_is_no_folder_of_a_campaign_is_refused(
    capfd: pytest.CaptureFixture[str], name: str
) -> None:
    assert run(["campaign", "rack", "--dry-run", "--campaign-id", name]) == 2
    assert "--campaign-id" in capfd.readouterr().err


def test_a_contract_that_is_not_there_is_refused(tmp_path: Path) -> None:
    write_configs(tmp_path / "configs")
    write_fleet(tmp_path, "left", contracts='"tyo"')
    with pytest.raises(ContractError, match='did you mean "toy"'):
        planned(tmp_path)


# a claim about several units


SAME_CLASS = CONTRACT + 'scope = "same-class"\n'


def two_units(root: Path, launcher: FakeLauncher, text: str = SAME_CLASS) -> NightAnswer:
    write_contract(write_configs(root / "configs"), "mine", text)
    write_fleet(root, "left", "right", contracts='"mine"')
    _, answer = night_run(root, launcher, campaign="night-1")
    assert answer is not None
    return answer


def pair(**changes: Any) -> FakeLauncher:
    return FakeLauncher(labels=("left", "right"), **changes)


def fails_on(label: str, contract: str) -> dict[int, Callable[[ReplayTask], None]]:
    def fail(task: ReplayTask) -> None:
        if (task.node_label, task.contract_name) == (label, contract):
            raise AttemptFailed("killed", "signal 9")

    return dict.fromkeys(range(10), fail)


def test_replays_of_a_night_on_two_units_are_one_claim_about_their_class(tmp_path: Path) -> None:
    answer = two_units(tmp_path, pair())
    (row,) = answer.rows
    assert (row.state, answer.exit_code()) == ("PASS", 0)
    verdict = row.verdict
    assert verdict is not None and verdict.campaign == "night-1"
    assert (verdict.scope, [unit["replays"] for unit in verdict.units]) == ("same-class", [1, 1])
    assert {a["campaign"] for a in verdict.attempts} == {"night-1.left", "night-1.right"}
    assert sorted(unit for unit, _ in answer.controls) == ["left", "left", "right", "right"]
    assert all(not control.mismatches for _, control in answer.controls)


def test_replays_of_a_night_on_two_units_that_differ_are_a_fail(tmp_path: Path) -> None:
    answer = two_units(tmp_path, pair(), SAME_CLASS + RACY)
    assert [(row.state, row.verdict and row.verdict.scope) for row in answer.rows] == [
        ("FAIL", "same-class"),
    ]  # fmt: skip
    assert answer.exit_code() == 1


@pytest.mark.parametrize("label", ["left", "right"])
def test_a_control_that_fails_on_either_unit_voids_the_claim_about_both(
    tmp_path: Path, label: str
) -> None:
    answer = two_units(tmp_path, pair(script=fails_on(label, "control-racy-synthetic")))
    (row,) = answer.rows
    assert row.verdict is not None
    assert (row.state, row.verdict.code) == ("VOID", "control-failed")
    assert answer.exit_code() == 3


def test_a_replay_of_the_claim_that_is_lost_on_one_unit_names_its_cause(tmp_path: Path) -> None:
    answer = two_units(tmp_path, pair(script=fails_on("right", "mine")))
    (row,) = answer.rows
    assert row.verdict is not None
    assert (row.state, row.verdict.code) == ("VOID", "killed")


def test_two_nights_that_each_lost_a_unit_are_no_claim_about_the_class(tmp_path: Path) -> None:
    """What one night saw on the left and another on the right was under different controls."""
    two_units(tmp_path, pair(script=fails_on("right", "mine")))
    left_fails = pair(script=fails_on("left", "mine"))
    _, answer = night_run(tmp_path, left_fails, campaign="night-2")
    assert answer is not None
    assert [row.state for row in answer.rows] == ["VOID"]


def test_a_night_about_several_units_is_gone_on_with_as_one_claim(tmp_path: Path) -> None:
    two_units(tmp_path, pair())
    again = pair()
    _, answer = night_run(tmp_path, again, campaign="night-1")
    assert answer is not None and again.tasks == []
    assert [row.state for row in answer.rows] == ["PASS"]


# what is shown


def test_a_person_reads_the_plan_its_totals_and_what_is_left_out(tmp_path: Path) -> None:
    write_configs(tmp_path / "configs")
    write_contract(tmp_path / "configs", "more")
    write_fleet(tmp_path, "left", contracts='"toy", "more"')
    text = shown(print_night, planned(tmp_path, budget_minutes=35))
    for words in (
        "never-tested", "10.0?", "6 replays on 1 unit, 30.0 min; the budget is 35 min",
        "? never measured: 5 min a replay are assumed",
        "1 left out because the budget does not hold them",
        "(exact repeat) on CPU: never-tested: takes 10.0 min on left, 5.0 are left",
    ):  # fmt: skip
        assert words in text, text
    write_fleet(tmp_path, "left", contracts='"toy"')
    empty = shown(print_night, planned(tmp_path, budget_minutes=1))
    assert "nothing to run; the budget is 1 min" in empty


def test_the_shipped_fleet_is_planned_on_this_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("FLEET_STORE", "FLEET_LANDING", "FLEET_CONFIGS", "FLEET_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    assert run(["campaign", "one-machine", "--dry-run", "--json", "--budget", "100"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert (document["schema"], document["campaign"], document["left_out"]) == (1, None, [])
    assert {row["unit"] for row in document["plan"]} == {socket.gethostname()}
    assert document["budget_s"] == 6000.0
    assert list(tmp_path.iterdir()) == []
