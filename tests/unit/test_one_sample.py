"""``fleet replay``: held against itself and against the certified rows; never a verdict."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from fleet.errors import AttemptFailed
from fleet.replay.engines.synthetic import SyntheticEngine
from fleet.report.diff import Diff
from fleet.schedule.one_sample import replay_one
from tests.campaigns import FakeLauncher, certified, planned_in, raises, write_configs

KILLED = raises(AttemptFailed("killed", "signal 9"))
EQUAL = "logits equal in 1 of 1 shared records"


@pytest.fixture
def root(campaigned: Path, tmp_path: Path) -> Path:
    """A folder in which ``toy`` was certified."""
    return Path(shutil.copytree(campaigned, tmp_path / "root"))


def replayed(root: Path, launcher: FakeLauncher | None = None) -> Diff:
    request, planned, places = planned_in(
        root, "toy", purpose="replay", samples=("s1",), arms=("current",)
    )
    return replay_one(request, planned, places, launcher or FakeLauncher(), lambda _: None)


def results(found: Diff) -> list[str]:
    return [pair.result for pair in found.pairs]


@pytest.fixture
def other_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the same inputs and weights give other logits, the same ones each time."""
    logits = SyntheticEngine._logits

    def lower(self: SyntheticEngine, context: Any) -> list[float]:
        return [value - 0.5 for value in logits(self, context)]

    monkeypatch.setattr(SyntheticEngine, "_logits", lower)


def test_a_sample_is_held_against_itself_and_against_the_certified_rows(root: Path) -> None:
    found = replayed(root)
    assert (found.kind, found.exit_code()) == ("replay", 0)
    with_itself, with_certified = found.pairs
    assert (with_itself.result, with_certified.result) == ("EQUAL", "EQUAL")
    assert with_itself.words == f"{EQUAL}; no difference seen, which is no verdict"
    assert with_certified.b == with_itself.a
    assert "9 only in a, 0 only in b" in with_certified.words


def test_bits_that_moved_since_the_certification_are_a_difference(
    root: Path, other_bits: None
) -> None:
    found = replayed(root)
    assert (results(found), found.exit_code()) == (["EQUAL", "DIFFERS"], 1)
    comparison = found.pairs[1].comparison
    assert comparison is not None
    assert [(kind.arm, kind.stage) for kind in comparison.kinds] == [("current", "logits")]


def test_without_certified_rows_it_is_held_against_itself_alone(tmp_path: Path) -> None:
    write_configs(tmp_path / "configs")
    found = replayed(tmp_path)
    assert (results(found), found.exit_code()) == (["EQUAL"], 0)


def test_one_replay_that_ended_says_nothing_though_it_equals_the_certified_rows(
    root: Path,
) -> None:
    found = replayed(root, FakeLauncher(script={1: KILLED}))
    assert (results(found), found.exit_code()) == (["NO_EVIDENCE", "EQUAL"], 3)
    assert "killed" in found.pairs[0].words


def test_one_replay_that_ended_and_differs_from_the_certified_rows_is_a_difference(
    root: Path, other_bits: None
) -> None:
    found = replayed(root, FakeLauncher(script={0: KILLED}))
    assert (results(found), found.exit_code()) == (["NO_EVIDENCE", "DIFFERS"], 1)


def test_no_replay_that_ended_is_no_evidence_and_every_cause_is_told(root: Path) -> None:
    found = replayed(root, FakeLauncher(script={0: KILLED, 1: KILLED}))
    assert (results(found), found.exit_code()) == (["NO_EVIDENCE"], 3)
    assert found.pairs[0].words.count("killed") == 2


def test_after_a_varied_set_it_is_still_held_against_an_exact_repeat(root: Path) -> None:
    certified(root, claims=(("batch",),))
    found = replayed(root)
    assert [pair.result for pair in found.pairs] == ["EQUAL", "EQUAL"]
