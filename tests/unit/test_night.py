"""The plan of a night: what comes first, where it runs, what fits, and that it stays as it is."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from fleet.schedule.night import ASSUMED_S, plan_night, reason_of
from fleet.schedule.night_terms import Claim, History, Item, Known, NightPlan, Unit, Wanted
from tests.night_fleet import CONTROLS, NAMES, simulated

DAY_S = 86400.0
HOUR_S = 3600.0
ONE = (Unit("u0", "n0", "X"),)
FOUR = tuple(Unit(f"u{n}", "n0", "X") for n in range(4))


def wanted(*names: str, **changes: object) -> list[Wanted]:
    return [replace(Wanted(name, controls=NAMES), **changes) for name in names]  # type: ignore[arg-type]


def known(**states: Known) -> dict[Claim, Known]:
    return {Claim(name, (), "X"): state for name, state in states.items()}


def plan(
    contracts: list[Wanted],
    units: tuple[Unit, ...] = ONE,
    history: History = History(),  # noqa: B008
    budget_s: float = 100 * HOUR_S,
    seed: int = 0,
) -> NightPlan:
    return plan_night(contracts, CONTROLS, units, history, budget_s, seed)


def named(found: NightPlan) -> list[Item]:
    return [item for item in found.items if item.role == "named"]


# what is due


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (Known("UNTESTED"), "never-tested"),
        (Known("VOID", DAY_S), "void"),
        (Known("STALE", 31 * DAY_S), "stale"),
        (Known("REGRESSED", DAY_S), "regressed"),
        (Known("PASS", 15.1 * DAY_S), "refresh"),
        (Known("PASS", 14.9 * DAY_S), None),
        (Known("PASS", None), "stale"),
        (Known("FAIL", 90 * DAY_S), None),
    ],
)
def test_what_a_state_asks_for(state: Known, reason: str | None) -> None:
    assert reason_of(state, 30) == reason


def test_what_holds_no_pass_comes_first_then_regressions_then_refresh() -> None:
    states = known(
        a=Known("PASS", 20 * DAY_S), b=Known("REGRESSED", DAY_S), c=Known("STALE", 40 * DAY_S),
        e=Known("VOID", DAY_S), f=Known("PASS", DAY_S), g=Known("FAIL", DAY_S),
    )  # fmt: skip
    found = plan(wanted("a", "b", "c", "d", "e", "f", "g"), history=History(states))
    assert [item.reason for item in named(found)][3:] == ["regressed", "refresh"]
    assert {(i.contract, i.reason) for i in named(found)[:3]} == {
        ("c", "stale"), ("d", "never-tested"), ("e", "void"),
    }  # fmt: skip
    assert {(left.contract, left.code) for left in found.left_out} == {
        ("f", "current"), ("g", "differs"),
    }  # fmt: skip


def test_inside_a_class_of_reasons_the_longest_comes_first() -> None:
    seconds = {("a", "X"): 10.0, ("b", "X"): 30.0, ("c", "X"): 20.0}
    found = plan(wanted("a", "b", "c"), history=History(seconds=seconds))
    assert [(i.contract, i.seconds) for i in named(found)] == [
        ("b", 60.0),
        ("c", 40.0),
        ("a", 20.0),
    ]


# where


def test_controls_come_first_on_every_unit_and_each_is_pinned() -> None:
    found = plan(wanted("a", "b"), FOUR)
    for unit in FOUR:
        here = [item for item in found.items if item.unit == unit]
        assert [i.contract for i in here[:2]] == list(NAMES)
        assert {slot.unit for item in here for slot in item.slots} == {unit.name}
        assert [i.start_s for i in here] == sorted(i.start_s for i in here)
        for one, other in pairwise(here):
            assert other.start_s == one.start_s + one.seconds
    assert [slot.index for slot in found.slots] == list(range(len(found.slots)))
    assert [slot.role for slot in found.slots[:4]] == ["control"] * 4


def test_only_the_controls_of_what_runs_are_carried() -> None:
    torch = Wanted("torch", controls=("racy",))
    synthetic = Wanted("synthetic", controls=("clean",))
    only = replace(FOUR[0], contracts=("torch",)), replace(FOUR[1], contracts=("synthetic",))
    found = plan([torch, synthetic], only)
    assert {(i.unit.name, i.contract) for i in found.items if i.role == "control"} == {
        ("u0", "racy"), ("u1", "clean"),
    }  # fmt: skip
    fresh = known(synthetic=Known("PASS", DAY_S))
    there = plan([torch, synthetic], FOUR, History(fresh))
    assert {i.contract for i in there.items if i.role == "control"} == {"racy"}


def test_replays_of_one_contract_stand_next_to_each_other_on_one_unit() -> None:
    for item in named(plan(wanted("a", "b", "c", replays=3, takes=3), FOUR)):
        assert [slot.replay for slot in item.slots] == [0, 1, 2]
        assert {slot.unit for slot in item.slots} == {item.unit.name}


def test_units_of_a_class_work_in_parallel_and_classes_apart() -> None:
    units = (*FOUR, Unit("v0", "n1", "Y"))
    found = named(plan(wanted("a", "b", "c", "d"), units))
    assert sorted(i.unit.name for i in found if i.unit.kind == "X") == ["u0", "u1", "u2", "u3"]
    assert sorted(i.contract for i in found if i.unit.name == "v0") == ["a", "b", "c", "d"]


def test_a_claim_about_a_class_is_on_two_units_of_it_or_on_none() -> None:
    both = named(plan(wanted("a", several_units=True, replays=4, takes=4), FOUR))
    assert len({item.unit.name for item in both}) == 2
    assert sorted(slot.replay for item in both for slot in item.slots) == [0, 1, 2, 3]
    (left,) = plan(wanted("a", several_units=True)).left_out
    assert (left.code, "only u0" in left.why) == ("cannot-run", True)


def test_each_claim_of_a_contract_is_an_item_of_its_own() -> None:
    found = named(plan(wanted("a", claims=((), ("order",)))))
    assert sorted(i.vary for i in found) == [(), ("order",)]
    assert {slot.vary for item in found for slot in item.slots} == {(), ("order",)}


def test_a_node_that_is_narrowed_gets_nothing_else_and_few_cpus_are_said() -> None:
    units = replace(FOUR[0], contracts=("a",)), FOUR[1]
    found = named(plan(wanted("a", "b", "c", "d"), units))
    assert {i.contract for i in found if i.unit.name == "u0"} <= {"a"}
    (left,) = plan(wanted("a", threads=2), (replace(ONE[0], cpus=1),)).left_out
    assert (left.code, left.why) == (
        "cannot-run",
        "takes 2 CPUs, more than a unit of its class has",
    )


def test_a_unit_that_is_missing_runs_nothing_and_a_class_of_such_is_said() -> None:
    gone = replace(FOUR[1], there=False)
    found = plan(wanted("a", "b"), (FOUR[0], gone))
    assert {i.unit.name for i in found.items} == {"u0"}
    elsewhere = replace(gone, kind="Y")
    out = plan(wanted("a"), (FOUR[0], elsewhere), History(looks={"u1": ("a",)})).left_out
    assert [(left.kind, left.code) for left in out] == [("Y", "cannot-run"), ("Y", "cannot-run")]
    assert {left.why for left in out} == {
        "no unit of its class is there",
        "quarantined unit u1: that contract cannot run there tonight",
    }


def test_a_regression_is_replayed_on_the_odd_unit_and_on_one_that_is_not() -> None:
    states = known(a=Known("REGRESSED", DAY_S, odd=("u2",)))
    found = named(plan(wanted("a"), FOUR, History(states)))
    assert [len(item.slots) for item in found] == [2, 2]
    assert "u2" in {item.unit.name for item in found}
    assert len({item.unit.name for item in found}) == 2
    unknown = named(plan(wanted("a"), FOUR, History(known(a=Known("REGRESSED", DAY_S)))))
    assert len({item.unit.name for item in unknown}) == 2
    alone = named(plan(wanted("a"), ONE, History(states)))
    assert [item.unit.name for item in alone] == ["u0"]


def test_a_regression_whose_charge_is_settled_is_not_replayed_every_night() -> None:
    of_class = Known("REGRESSED", DAY_S, odd=("u0", "u1"), of_class=True)
    of_unit = Known("REGRESSED", DAY_S, odd=("u2",))
    history = History(known(a=of_class, b=of_unit), looks={"u2": ("b",)})
    found = plan(wanted("a", "b"), FOUR, history)
    assert {i.reason for i in named(found)} == {"look"}
    assert {left.contract: left.why.partition(":")[0] for left in found.left_out} == {
        "a": "REGRESSED, charged to its class",
        "b": "REGRESSED, its odd units are quarantined",
    }
    both = Known("REGRESSED", DAY_S, odd=("u2", "u3"))
    some = plan(wanted("b"), FOUR, History(known(b=both), looks={"u2": ("b",)}))
    assert {i.reason for i in named(some)} == {"look", "regressed"}


# quarantine


def test_a_quarantined_unit_gets_its_look_and_no_more() -> None:
    looks = {"u1": ("a",)}
    found = plan(wanted("a", "b", "c"), FOUR, History(looks=looks))
    mine = [item for item in found.items if item.unit.name == "u1"]
    assert [(i.contract, i.reason, i.vary, len(i.slots)) for i in mine] == [("a", "look", (), 2)]
    assert [i.reason for i in named(found) if i.contract == "a"].count("look") == 1
    assert "never-tested" in {i.reason for i in named(found) if i.contract == "a"}


def test_a_look_at_what_is_not_due_has_two_replays_elsewhere_under_controls() -> None:
    states = known(a=Known("PASS", DAY_S))
    found = plan(wanted("a"), FOUR, History(states, looks={"u1": ("a",)}))
    looks = [i for i in found.items if i.reason == "look"]
    assert [len(i.slots) for i in looks] == [2, 2]
    assert len({i.unit.name for i in looks}) == 2 and "u1" in {i.unit.name for i in looks}
    controlled = {i.unit.name for i in found.items if i.role == "control"}
    assert controlled == {"u0", "u2", "u3"}


def test_two_looks_at_one_contract_share_the_replays_elsewhere() -> None:
    states, looks = known(a=Known("PASS", DAY_S)), {"u1": ("a",), "u2": ("a",)}
    found = named(plan(wanted("a"), FOUR, History(states, looks=looks)))
    units = [item.unit.name for item in found]
    assert (len(units), {"u1", "u2"} < set(units)) == (3, True)


def test_a_quarantine_by_a_contract_that_does_not_run_tonight_is_said() -> None:
    found = plan(wanted("b"), FOUR, History(looks={"u1": ("a",)}))
    assert [i for i in found.items if i.unit.name == "u1"] == []
    assert [(left.contract, "u1" in left.why) for left in found.left_out] == [("a", True)]


def test_a_class_of_which_every_unit_is_quarantined_is_said() -> None:
    found = plan(wanted("a", "b"), ONE, History(looks={"u0": ("a",)}))
    assert [i.reason for i in found.items] == ["look"]
    assert {left.why for left in found.left_out} == {"every unit that may run it is quarantined"}


# the budget


def test_nothing_is_planned_to_end_after_the_budget_and_the_rest_is_said() -> None:
    seconds = {(n, "X"): 60.0 * (i + 1) for i, n in enumerate("abcdef")}
    seconds |= {(name, "X"): 10.0 for name in NAMES}
    found = plan(wanted(*"abcdef"), history=History(seconds=seconds), budget_s=1000.0)
    assert found.ends_s <= 1000.0
    assert [i.contract for i in named(found)] == ["f", "b"]  # f 720 s, then what still fits
    out = {left.contract: left for left in found.left_out}
    assert sorted(out) == ["a", "c", "d", "e"]
    assert out["e"].why == "never-tested: takes 10.0 min on u0, 4.0 are left"
    assert {left.code for left in out.values()} == {"budget"}


def test_what_comes_first_is_not_crowded_out_by_what_comes_later() -> None:
    states = known(**{f"r{n}": Known("PASS", 20 * DAY_S) for n in range(50)})
    names = [f"r{n}" for n in range(50)] + ["new"]
    found = plan(wanted(*names), history=History(states), budget_s=6 * ASSUMED_S)
    assert [item.contract for item in named(found)] == ["new"]


def test_a_budget_that_holds_no_claim_has_no_controls_either() -> None:
    found = plan(wanted("a"), budget_s=5 * ASSUMED_S)
    assert (found.items, found.ends_s, len(found.left_out)) == ((), 0.0, 1)


def test_nothing_due_is_an_empty_plan() -> None:
    found = plan(wanted("a"), FOUR, History(known(a=Known("PASS", DAY_S))))
    assert (found.items, found.slots) == ((), [])


# estimates


def test_an_estimate_says_where_it_comes_from_and_a_bound_takes_its_replays() -> None:
    units = (*ONE, Unit("v0", "n1", "Y"))
    seconds = {("a", "X"): 7.0}
    found = {
        (i.contract, i.unit.kind): i
        for i in named(plan(wanted("a", "b", takes=9), units, History(seconds=seconds)))
    }
    assert (found["a", "X"].seconds, found["a", "X"].estimate) == (63.0, "measured")
    assert (found["a", "Y"].seconds, found["a", "Y"].estimate) == (63.0, "other class")
    assert (found["b", "X"].seconds, found["b", "X"].estimate) == (9 * ASSUMED_S, "assumed")
    assert len(found["a", "X"].slots) == 2


# stable


def test_the_same_inputs_give_the_same_plan_in_whatever_order_the_contracts_are_named() -> None:
    night = simulated(800, seed=3)
    first = night.plan()
    assert night.plan() == first
    shuffled = list(night.wanted)
    random.Random(1).shuffle(shuffled)
    again = replace(night, wanted=tuple(shuffled)).plan()
    assert again.items == first.items
    assert night.plan(seed=1).items != first.items


@pytest.mark.parametrize("each_s", [None, 60.0])
def test_a_contract_more_leaves_the_others_in_their_order(each_s: float | None) -> None:
    """Also where all are equally long, so that ties alone order them."""
    night = simulated(400, seed=5)
    seconds = {key: each_s or value for key, value in night.history.seconds.items()}
    night = replace(night, units=night.units[:4], history=replace(night.history, seconds=seconds))
    more = replace(night, wanted=(Wanted("added", controls=NAMES), *night.wanted))

    def orders(found: NightPlan) -> list[list[str]]:
        """Of each class, which is one unit here."""
        mine = [i for i in named(found) if i.contract != "added"]
        return [[i.contract for i in mine if i.unit == unit] for unit in night.units]

    assert orders(night.plan()) == orders(more.plan())
    assert all(len(order) == 50 for order in orders(night.plan()))


def test_a_contract_of_one_class_leaves_the_plan_of_the_others_as_it_was() -> None:
    units = tuple(Unit(f"v{n}", "n1", "Y", contracts=("b", "c")) for n in range(3))
    xs = tuple(replace(unit, contracts=("a", "d", "new")) for unit in FOUR)
    names = ["a", "b", "c", "d"]
    one, other = plan(wanted(*names), xs + units), plan(wanted("new", *names), xs + units)

    def of_y(found: NightPlan) -> list[tuple[str, str, float]]:
        return [(i.unit.name, i.contract, i.start_s) for i in found.items if i.unit.kind == "Y"]

    assert of_y(one) == of_y(other) != []


# quality


@pytest.mark.parametrize("seed", range(5))
def test_a_night_of_one_reason_ends_within_grahams_bound_of_the_least_possible(seed: int) -> None:
    night = simulated(1000, seed, mixed=False)
    found = night.plan()
    assert len(found.slots) == 1000 + 64 * 4
    assert found.ends_s <= (4 / 3) * night.bound_s(found)


@pytest.mark.parametrize("seed", range(3))
def test_ten_thousand_replays_on_64_devices_end_within_two_percent_of_the_least_possible(
    seed: int,
) -> None:
    night = simulated(10_000, seed)
    found = night.plan()
    assert {item.reason for item in named(found)} == {
        "never-tested", "stale", "regressed", "refresh",
    }  # fmt: skip
    assert found.left_out == ()
    assert found.ends_s <= 1.02 * night.bound_s(found)


def test_the_document_of_a_plan_is_what_a_dry_run_prints() -> None:
    found = plan(wanted("a"), history=History(known(b=Known("PASS", DAY_S)))).to_json()
    assert (found["schema"], found["campaign"], found["left_out"]) == (1, None, [])
    row = found["plan"][-1]
    assert (row["unit"], row["contract"], row["reason"], row["estimate"]) == (
        "u0", "a", "never-tested", "assumed",
    )  # fmt: skip
    assert [slot["unit"] for slot in row["slots"]] == ["u0", "u0"]
