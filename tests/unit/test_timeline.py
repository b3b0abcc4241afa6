"""A contract over time: what each campaign changed, by today's rules."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fleet.contract.model import Require
from fleet.errors import ContractError
from fleet.evidence.landing import Landing
from fleet.evidence.summary import AttemptSummary
from fleet.judge.timeline import Step, steps
from fleet.report.answers import Answers
from fleet.report.filters import Filters
from fleet.report.history import History, history_cells, history_of, print_history
from fleet.store.open import open_reader
from tests.campaigns import CONTRACT, certified, places_in, write_contract
from tests.unit.evidence_builders import (
    Rows,
    comparisons,
    dataset,
    ended,
    flipped_logits,
    summary,
)
from tests.unit.screens import shown

ROWS = dataset()
DAY_S = 86400.0
Case = tuple[AttemptSummary, Rows]


def night(name: str, at_s: float, *rows: Rows) -> list[Case]:
    """One campaign's replays."""
    return [
        (
            summary(f"{name}{slot}", own, campaign=name, slot=slot, accepted_at_s=at_s + slot),
            own,
        )
        for slot, own in enumerate(rows)
    ]


def told(cases: list[Case], require: Require | None = None, **failed: list[str]) -> list[Step]:
    require = require or Require()
    summaries = [s for s, _ in cases]
    known = comparisons(summaries, {s.attempt: rows for s, rows in cases}, require)
    return steps(summaries, require, known, failed)


def words(found: list[Step]) -> list[tuple[str, str | None, str | None, tuple[str, ...]]]:
    return [(s.campaign, s.before, s.after, s.events) for s in found]


def test_first_pass_then_regression_then_a_fail_for_good() -> None:
    cases = [
        *night("n1", 0.0, ROWS, ROWS),
        *night("n2", 10.0, ROWS, ROWS),
        *night("n3", 20.0, ROWS, flipped_logits(ROWS, 1)),
        *night("n4", 30.0, ROWS, ROWS),
    ]
    found = told(cases)
    assert words(found) == [
        ("n1", None, "PASS", ("first PASS",)),
        ("n2", "PASS", "PASS", ()),
        ("n3", "PASS", "FAIL", ("REGRESSED", "1 new root")),
        ("n4", "FAIL", "FAIL", ()),
    ]
    assert found[3].own == "PASS", "the night agreed, and the difference stays"
    assert [s.attempt for s in found[2].attempts] == ["n30", "n31"]
    assert told(list(reversed(cases))) == found, "the order of reading is none of evidence"


def test_a_fail_from_the_first_night_never_passed() -> None:
    cases = night("n1", 0.0, ROWS, flipped_logits(ROWS, 1))
    assert words(told(cases))[0][3] == ("FAIL, never passed before",)


def test_a_void_night_leaves_an_earlier_pass_and_a_late_one_says_it_was_stale() -> None:
    lost: Case = (ended("x", [], "LOST", "killed", campaign="n2"), [])
    cases = [*night("n1", 0.0, ROWS, ROWS), lost, *night("n3", 40 * DAY_S, ROWS, ROWS)]
    found = {step.campaign: step for step in told(cases)}
    assert found["n3"].events == ("PASS again, after it was STALE",)
    assert found["n2"].after == "PASS" and "the earlier PASS stands" in found["n2"].events[0]


def test_a_night_whose_controls_failed_is_void() -> None:
    cases = night("n1", 0.0, ROWS, ROWS)
    (step,) = told(cases, n1=["control-racy"])
    assert (step.after, step.events) == ("VOID", ()) and "control-racy" in step.own


def test_what_certifies_nothing_changes_nothing_and_a_difference_of_it_sticks() -> None:
    cases = night("n1", 0.0, ROWS, ROWS)
    traced: Case = (
        summary("t", ROWS, campaign="n2", purpose="trace", accepted_at_s=5.0), ROWS,
    )  # fmt: skip
    assert words(told([*cases, traced]))[1] == ("n2", "PASS", "PASS", ())
    other = flipped_logits(ROWS, 1)
    differs: Case = (
        summary("t", other, campaign="n2", purpose="trace", accepted_at_s=5.0), other,
    )  # fmt: skip
    assert words(told([*cases, differs]))[1][2:] == ("FAIL", ("REGRESSED",))


# from campaigns


@pytest.fixture
def root(campaigned: Path, tmp_path: Path) -> Path:
    shutil.copytree(campaigned, tmp_path / "copy")
    return tmp_path / "copy"


def history(root: Path, name: str = "toy", filters: Filters | None = None) -> History:
    places = places_in(root)
    with open_reader(places.store) as store:
        answers = Answers(store, Landing.open(places.landing))
        filters = filters or Filters()
        return history_of(answers, name, places.search, places.cache, filters)


def test_every_execution_id_that_bore_the_name_is_told(root: Path) -> None:
    write_contract(
        root / "configs", "toy", CONTRACT.replace("seed = 0\npython", "seed = 7\npython")
    )
    assert "changed since" in history(root).note
    certified(root)
    found = history(root)
    first, second = found.moments
    assert found.note == "" and first.events == ("first PASS",)
    assert second.events == ("the contract changed", "first PASS")
    assert first.asked.execution_id != second.asked.execution_id
    document = json.loads(json.dumps(found.to_json()))
    assert [len(m["attempts"]) for m in document["history"]] == [2, 2]
    header, rows = history_cells(found)
    assert {len(row) for row in rows} == {len(header)}


@pytest.mark.parametrize("width", [80, 120, 200])
def test_a_history_is_read_at_any_width(root: Path, width: int) -> None:
    text = shown(print_history, history(root), width)
    assert max(len(line) for line in text.splitlines()[:6]) <= width
    assert "PASS" in text and "P1: " in text


def test_filters_leave_out_what_does_not_fit(root: Path) -> None:
    assert history(root, filters=Filters(states=("FAIL",))).moments == ()
    assert history(root, filters=Filters(gpu="H200")).moments == ()
    assert len(history(root, filters=Filters(packages=(("torch", "*"),))).moments) == 1
    assert "nothing of it matches" in shown(print_history, history(root, "smollm2-bf16"))


def test_a_contract_that_nobody_has_is_a_usage_error(root: Path) -> None:
    with pytest.raises(ContractError, match="neither has it"):
        history(root, "tyo")
