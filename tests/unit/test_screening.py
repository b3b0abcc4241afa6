"""``fleet screen`` over the synthetic engine, which has no modules to trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fleet.report.trace_view import print_screen
from fleet.schedule.screening import choose, screen
from tests.campaigns import (
    CONTRACT,
    RACY,
    FakeLauncher,
    certified,
    planned_in,
    write_configs,
    write_contract,
)
from tests.unit.screens import shown


def screened(root: Path, near: int = 2) -> dict[str, Any]:
    request, planned, places = planned_in(root, purpose="screen")
    launcher = FakeLauncher()
    selections = choose(planned, near, places, launcher)
    document = screen(request, planned, selections, places, launcher, lambda _: None)
    (entry,) = document["contracts"]
    found: dict[str, Any] = entry
    return found


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_configs(tmp_path / "configs")
    return tmp_path


def test_a_clean_contract_shows_no_difference_and_says_what_that_bounds(root: Path) -> None:
    entry = screened(root)
    assert entry["result"] == "NO_DIFFERENCE_SEEN"
    assert entry["covered"]["samples"] < entry["covered"]["of_samples"]
    assert entry["covered"]["shapes"]
    assert 0 < entry["bounds"]["record"] < 1
    assert entry["bounds"]["process"] is None
    assert entry["margins"]["records"] == entry["covered"]["samples"] * 2


def test_a_racy_contract_differs(root: Path) -> None:
    write_contract(root / "configs", "toy", CONTRACT + RACY)
    entry = screened(root)
    assert entry["result"] == "DIFFERENT"
    assert entry["pairs"][0]["result"] == "DIFFERS"


def test_the_records_nearest_to_a_tie_come_from_the_store(root: Path) -> None:
    assert screened(root)["covered"]["near_margins"] == []
    certified(root)
    entry = screened(root)
    assert len(entry["covered"]["near_margins"]) == 2
    assert {s for _, s in entry["covered"]["near_margins"]} <= {f"s{i}" for i in range(5)}


def test_the_screened_replays_are_also_held_against_the_certified_one(root: Path) -> None:
    certified(root)
    assert [pair["result"] for pair in screened(root)["pairs"]] == ["EQUAL", "EQUAL"]


def test_a_screening_is_no_verdict(root: Path) -> None:
    entry = screened(root)
    assert "verdict" not in entry
    text = shown(print_screen, {"contracts": [entry]})
    assert "no difference seen (no verdict)" in text
    assert "2 replays" in text
