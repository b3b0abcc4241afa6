"""The plan of a campaign."""

from __future__ import annotations

from fleet.schedule.plan import plan


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
