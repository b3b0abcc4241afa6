"""Which platform came before which, and what a FAIL means for the one after it."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from fleet.evidence.landing import Landing
from fleet.judge.successors import Shown, predecessors
from fleet.report.answers import Answers
from fleet.report.matrix import Matrix, matrix_of
from fleet.report.status import StatusRow, exit_code, status_rows
from fleet.report.terminal import print_status
from fleet.store.open import open_reader
from tests import campaigns
from tests.campaigns import FakeLauncher, certified, places_in
from tests.unit.screens import shown


def test_the_predecessor_is_what_the_units_showed_just_before_the_last_time() -> None:
    assert predecessors([]) == {}
    one = [Shown("u", "old", 1.0), Shown("u", "new", 2.0)]
    assert predecessors(one) == {"new": ("old",)}
    assert predecessors([*one, Shown("v", "new", 0.5)]) == {"new": ("old",)}
    back = [*one, Shown("u", "old", 3.0)]
    assert predecessors(back) == {"new": ("old",), "old": ("new",)}
    twice = [*back, Shown("u", "third", 4.0), Shown("u", "new", 5.0)]
    assert predecessors(twice)["new"] == ("third",)


def test_of_several_predecessors_that_of_most_units_comes_first() -> None:
    changes = [
        change
        for unit, before in (("a", "x"), ("b", "y"), ("c", "y"))
        for change in (Shown(unit, before, 1.0), Shown(unit, "new", 2.0))
    ]
    assert predecessors(changes) == {"new": ("y", "x")}
    assert predecessors(reversed(changes)) == {"new": ("y", "x")}


def test_a_platform_that_was_left_out_joins_what_is_around_it() -> None:
    """An unreadable one between two of the same leaves no trace."""
    assert predecessors([Shown("u", "p", 1.0), Shown("u", "p", 3.0)]) == {}


# from campaigns


@pytest.fixture
def root(campaigned: Path, tmp_path: Path) -> Path:
    shutil.copytree(campaigned, tmp_path / "copy")
    return tmp_path / "copy"


def other_bits(monkeypatch: pytest.MonkeyPatch, at: int) -> FakeLauncher:
    """The same contract gives other bits from that attempt on."""

    def change(_: object) -> None:
        monkeypatch.setattr("fleet.replay.engines.synthetic.LIKELY", b"ABCE .()")

    return FakeLauncher(script={at: change})


def upgraded(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """Every unit shows another version of a library from now on."""
    packages = campaigns._packages() | {"torch": {"version": version, "digest": "x"}}
    monkeypatch.setattr(campaigns, "_packages", lambda: packages)


def told(root: Path, *names: str) -> tuple[list[StatusRow], Matrix]:
    places = places_in(root)
    with open_reader(places.store) as store:
        answers = Answers(store, Landing.open(places.landing))
        rows = status_rows(answers, names, places.search, places.cache, time.time())
        return rows, matrix_of(answers, rows)


def test_a_fail_after_a_pass_on_the_predecessor_is_a_regression(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (before,) = told(root, "toy")[0]
    upgraded(monkeypatch, "9.0")
    certified(root, launcher=other_bits(monkeypatch, at=5))  # the second replay of toy
    rows = {row.platform_label.rpartition(" ")[2]: row for row in told(root, "toy")[0]}
    new = rows.pop("9.0")
    assert [row.state for row in rows.values()] == ["PASS"]
    assert new.state == "REGRESSED" and new.regressed is not None and new.verdict is not None
    assert new.regressed.passed_on == before.platform != new.platform
    assert new.regressed.campaign == new.verdict.attempts[0]["campaign"]
    told_json = new.to_json()["last_regression"]
    assert told_json["since"].endswith("Z") and told_json["campaign"] == new.regressed.campaign
    assert "REGRESSED since" in shown(print_status, [new])


def test_a_fail_that_never_passed_is_no_regression(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaigns.write_configs(tmp_path / "configs")
    certified(tmp_path, launcher=other_bits(monkeypatch, at=5))
    (row,) = told(tmp_path, "toy")[0]
    assert (row.state, row.regressed, row.expires_at_s) == ("FAIL", None, None)


def test_a_successor_shows_the_fail_before_it_until_its_own_full_test(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certified(root, launcher=other_bits(monkeypatch, at=4))
    upgraded(monkeypatch, "9.0")
    certified(root, "other")
    upgraded(monkeypatch, "10.0")
    certified(root, "other")  # through an untested one between
    rows, matrix = told(root, "toy", "other")
    toy = {row.platform_label.rpartition(" ")[2]: row for row in rows if row.contract == "toy"}
    new = toy["10.0"]
    assert "9.0" not in toy, "no unit shows it any more"
    assert (new.state, new.word, new.verdict) == ("UNTESTED", "FAIL on predecessor", None)
    assert new.predecessor is not None and new.predecessor.state == "REGRESSED"
    assert new.to_json()["predecessor"]["platform"] == new.predecessor.platform
    assert exit_code([new]) == 3 and exit_code(rows) == 1
    assert "FAIL on predecessor" in shown(print_status, [new])
    line = next(line for line in matrix.lines if line.contract == "toy")
    assert "FAIL on pred. 0/1" in [cell.text() for cell in line.cells]
    assert all(row.predecessor is None for row in rows if row.contract == "other")

    certified(root, "toy")
    rows = [row for row in told(root, "toy")[0] if row.platform == new.platform]
    assert [(row.state, row.predecessor) for row in rows] == [("PASS", None)]
