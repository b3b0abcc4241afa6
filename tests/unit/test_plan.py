"""The plan of a campaign."""

from __future__ import annotations

from fleet.replay.task import TraceOrder
from fleet.schedule.plan import Work, plan


def test_controls_run_first_and_slots_are_numbered_in_running_order() -> None:
    slots = plan([("a", 2), ("b", 3)], [("control", 2)])
    assert [(s.index, s.contract, s.replay, s.role) for s in slots] == [
        (0, "control", 0, "control"),
        (1, "control", 1, "control"),
        (2, "a", 0, "named"),
        (3, "a", 1, "named"),
        (4, "b", 0, "named"),
        (5, "b", 1, "named"),
        (6, "b", 2, "named"),
    ]


def test_work_of_its_own_goes_to_the_contract_it_is_for() -> None:
    traced = Work("trace", ("a",), ("current",), TraceOrder())
    slots = plan([("mine", 2)], [("control", 1)], {"control": traced})
    assert [(s.contract, s.work) for s in slots] == [
        ("control", traced), ("mine", None), ("mine", None),
    ]  # fmt: skip
