"""A status held against a fleet: what is no more in it, and what was never tested of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleet.contract.model import Require
from fleet.evidence.landing import Landing
from fleet.judge.verdict import Verdict
from fleet.report.answers import Answers, Asked
from fleet.report.in_fleet import FleetUnit, InFleet, in_fleet
from fleet.report.status import StatusRow, exit_code, status_rows
from fleet.schedule.expected import fleet_of
from fleet.store.ingest import ingest
from fleet.store.open import open_writer
from tests.landing_builder import AttemptSpec, build_landing

HERE, OLD = "sha256:" + "1" * 64, "sha256:" + "2" * 64
ASKED = Asked("toy", "sha256:" + "0" * 64, Require(), None, "bfloat16")


def row(platform: str = HERE, word: str = "PASS", scope: str = "same-unit", **more: Any) -> Any:
    verdict = Verdict(
        contract="toy", execution_id=ASKED.execution_id, platform=platform, verdict=word,  # type: ignore[arg-type]
        state=word, required_grade="logits", scope=scope, reason=word,
        units=({"unit": "cpu:m:a", "replays": 2, "classes": 1, "agrees": True},),
    )  # fmt: skip
    return StatusRow(
        "toy", ASKED.execution_id, platform, "cpu", word, verdict, 1.0, asked=ASKED,
        expires_at_s=9.0, **more,
    )  # fmt: skip


def fleet(*units: FleetUnit) -> InFleet:
    return InFleet("lab", units, {"cpu:m:a": "a"})


def unit(name: str, platform: str = HERE, **more: Any) -> FleetUnit:
    return FleetUnit(name, platform, ("toy",), **more)


def told(rows: list[StatusRow]) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(r.state, r.platform, r.untested) for r in rows]


def test_a_pass_on_a_platform_that_no_unit_shows_is_stale() -> None:
    (kept, old) = in_fleet([row(), row(OLD, behaves=True)], fleet(unit("a")))
    assert (kept.state, kept.expires_at_s) == ("PASS", 9.0)
    assert (old.state, old.verdict and old.verdict.state, old.behaves) == ("STALE", "STALE", False)
    assert old.note == "no unit of fleet lab shows this platform"
    assert (exit_code([kept]), exit_code([old])) == (0, 3)


@pytest.mark.parametrize("word", ["FAIL", "VOID", "STALE"])
def test_what_is_no_pass_stays_what_it_is_wherever_the_fleet_went(word: str) -> None:
    assert in_fleet([row(OLD, word)], fleet())[0].state == word


def test_a_pass_of_one_unit_says_nothing_of_another_one() -> None:
    rows = in_fleet([row()], fleet(unit("a"), unit("b"), unit("c")))
    assert told(rows) == [("PASS", HERE, ()), ("UNTESTED", HERE, ("b", "c"))]
    assert rows[1].note == (
        "exact repeat: units b, c: no replay that counts: fleet campaign lab"
    )  # fmt: skip
    assert rows[1].to_json()["units_untested"] == ["b", "c"]
    assert exit_code(rows) == 3


def test_a_pass_of_a_class_speaks_for_all_units_of_its_platform_and_for_no_other() -> None:
    rows = in_fleet([row(scope="same-class")], fleet(unit("b"), unit("d", OLD)))
    assert told(rows) == [("PASS", HERE, ()), ("UNTESTED", OLD, ("d",))]


def test_a_unit_that_was_never_seen_is_untested_by_the_reason() -> None:
    missing = unit("z", "", missing="unit z of fleet lab never ran a replay")
    assert told(in_fleet([row()], fleet(unit("a"), missing)))[1:] == [("UNTESTED", "", ("z",))]


def test_a_contract_that_the_night_does_not_run_is_not_missed_anywhere() -> None:
    other = replace(unit("b"), contracts=("another",))
    assert told(in_fleet([row()], fleet(unit("a"), other))) == [("PASS", HERE, ())]


def test_only_the_claim_that_a_night_makes_is_missed() -> None:
    varied = replace(row(), verdict=replace(row().verdict, vary=("order",)))
    rows = in_fleet([varied], fleet(unit("a")))
    assert [(r.state, r.vary) for r in rows] == [("PASS", ("order",)), ("UNTESTED", ())]


TOML = """schema = 1
[night]
budget_minutes = 1
contracts = ["toy", "new"]
[[nodes]]
label = "unit-0"
[[nodes]]
label = "unit-9"
"""


def test_units_are_those_that_the_store_saw_and_a_file_names(tmp_path: Path) -> None:
    path = tmp_path / "lab.toml"
    path.write_text(TOML)
    spec = AttemptSpec("aaaa" + "0" * 12, unit="cpu:machine:unit-0")
    landing: Landing = build_landing(tmp_path / "landing", [spec])
    with open_writer(tmp_path / "store.duckdb") as store:
        ingest(store, landing)
        answers = Answers(store, landing)
        found = fleet_of(str(path), answers, ())
        rows = in_fleet(status_rows(answers, ["toy"], (), tmp_path, 2.0), found)
    assert [(u.name, bool(u.platform)) for u in found.units] == [
        ("unit-0", True),
        ("unit-9", False),
    ]
    assert found.contracts == ("toy", "new")
    assert rows[-1].note.endswith("unit unit-9 of fleet lab never ran a replay: fleet campaign lab")
