"""A bad unit from its landing to the screen: decided, recorded, listed, and beside the verdict."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleet.cli import run
from fleet.contract.canonical import from_text
from fleet.evidence import decisions, ledger
from fleet.evidence.decisions import quarantined
from fleet.evidence.landing import Landing
from fleet.report.answers import Answers, CampaignAnswer
from fleet.report.status import StatusRow, exit_code, status_rows
from fleet.report.units import UnitRow, unit_rows
from fleet.schedule.decide import decide
from fleet.store.ingest import ingest
from fleet.store.open import open_reader, open_writer, publish
from fleet.store.rebuild import rebuild
from tests.campaigns import certified, places_in, planned_in, write_configs
from tests.landing_builder import AttemptSpec, build_landing, other_row

BAD = other_row(0, logits="odd")
LATER_S = 3600.0


def specs(odd: int = 4, others: int = 20, **changes: Any) -> list[AttemptSpec]:
    """``odd`` odd replays on unit-0, then one replay on each other unit."""
    bad = [{"unit": "unit-0", "edit": BAD} for _ in range(odd)]
    good = [{"unit": f"unit-{number}"} for number in range(1, others + 1)]
    values: list[dict[str, Any]] = [*bad, *good]
    return [
        AttemptSpec(f"{slot:016x}", slot=slot, **value | changes)
        for slot, value in enumerate(values, start=1)
    ]


def landed(root: Path, attempts: list[AttemptSpec]) -> Path:
    """A landing and the store of it, where :func:`places_in` has them."""
    places = places_in(root)
    landing = build_landing(places.landing, attempts)
    with open_writer(places.store) as store:
        ingest(store, landing)
        publish(store)
    return root


def decided(root: Path, **options: Any) -> list[decisions.Decision]:
    places = places_in(root)
    with open_reader(places.store) as store:
        return decide(Landing.open(places.landing), store, time.time() + LATER_S, **options)


def units(root: Path) -> list[UnitRow]:
    places = places_in(root)
    with open_reader(places.store) as store:
        return unit_rows(store, Landing.open(places.landing), time.time() + LATER_S)


def status(root: Path) -> list[StatusRow]:
    places = places_in(root)
    with open_reader(places.store) as store:
        answers = Answers(store, Landing.open(places.landing))
        return status_rows(answers, ["toy"], places.search, places.cache, time.time() + LATER_S)


def fleet(root: Path, *words: str) -> int:
    places = places_in(root)
    return run([*words, "--store", str(places.store), "--landing", str(places.landing)])


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return landed(tmp_path_factory.mktemp("bad"), specs())


def test_a_bad_unit_is_quarantined_once_and_the_landing_says_so(tmp_path: Path) -> None:
    root = landed(tmp_path, specs())
    (made,) = decided(root)
    assert (made.unit, made.odd, made.replays, made.elsewhere_replays) == ("unit-0", 3, 3, 20)
    assert made.attempts == tuple(f"{n:016x}" for n in (2, 3, 4))
    landing = Landing.open(places_in(root).landing)
    assert quarantined(landing) == {"unit-0": (made,)}
    assert decided(root) == []
    assert len(ledger.decision_chains(landing)) == 1


def test_a_lost_decision_is_due_again_and_a_rebuilt_store_asks_for_the_same(tmp_path: Path) -> None:
    root = landed(tmp_path, specs())
    (made,) = decided(root)
    places = places_in(root)
    landing = Landing.open(places.landing)
    (chain,) = ledger.decision_chains(landing)
    (ledger.chain_folder(landing, chain) / "000000.json").unlink()
    rebuild(places.store, landing)
    with open_writer(places.store) as store:
        publish(store)
    (again,) = decided(root)
    assert again.to_json() | {"as_of_s": 0} == made.to_json() | {"as_of_s": 0}


def test_only_what_is_asked_about_is_decided(tmp_path: Path) -> None:
    root = landed(tmp_path, specs())
    assert decided(root, only={"sha256:" + "0" * 64}) == []


def test_the_units_are_listed_with_what_they_showed(bad: Path) -> None:
    found = units(bad)
    assert [(r.unit, r.state, r.odd, r.replays) for r in found[:2]] == [
        ("unit-0", "suspect", 4, 4),
        ("unit-1", "agrees", 0, 1),
    ]
    assert len(found) == 21
    assert found[0].age_s is not None and found[0].age_s >= LATER_S


def test_a_quarantined_unit_comes_first_and_is_shown_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = landed(tmp_path, specs())
    decided(root)
    assert fleet(root, "units") == 0
    text = capsys.readouterr().out
    assert "quarantined" in text and "4/4" in text
    assert "on toy, 3/3 vs 0/20, p=0.00056" in text
    assert "toy: unit unit-0 suspect 3/3 vs 0/20, p=0.00056" in text
    assert fleet(root, "units", "--json") == 0
    first = json.loads(capsys.readouterr().out)["units"][0]
    assert (first["unit"], first["state"], first["odd"]) == ("unit-0", "quarantined", 4)
    assert first["suspicions"][0]["contract"] == "toy"
    assert first["decisions"][0]["raised_by"] == f"{1:016x}"


def test_a_released_unit_is_no_suspect_and_its_odd_replays_stay_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = landed(tmp_path, specs())
    (made,) = decided(root)
    back = replace(made, kind="released", as_of_s=made.as_of_s + 1, nights=14, replays=28)
    decisions.record(Landing.open(places_in(root).landing), [back])
    (found,) = [r for r in units(root) if r.unit == "unit-0"]
    assert (found.state, found.odd, found.replays, found.suspicions) == ("odd", 4, 4, ())
    fleet(root, "units")
    assert "on toy after 14 clean nights, 28 replays" in capsys.readouterr().out
    (row,) = status(root)
    assert row.charge is not None and row.charge.charge == "unit"
    assert row.to_json()["charge"]["decisions"][0]["kind"] == "released"


def test_where_no_root_is_usual_no_unit_is_said_to_agree(tmp_path: Path) -> None:
    root = landed(tmp_path, specs(odd=2, others=1))
    assert [(r.state, r.undecided) for r in units(root)] == [("undecided", 2), ("undecided", 1)]
    assert decided(root) == []


# beside the verdict


def test_a_status_says_whom_the_mismatch_is_charged_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = landed(tmp_path, specs())
    (row,) = status(root)
    shown = row.to_json()["charge"]
    assert (shown["charge"], shown["decisions"]) == ("unit", [])
    assert shown["words"] == "unit unit-0 suspect 3/3 vs 0/20, p=0.00056"
    (suspicion,) = shown["units"]
    assert (suspicion["odd"], suspicion["replays"], suspicion["suspect"]) == (4, 4, True)
    before = (row.state, exit_code([row]))
    decided(root)
    (row,) = status(root)
    assert row.to_json()["charge"]["decisions"][0]["unit"] == "unit-0"
    assert (row.state, exit_code([row])) == before
    fleet(root, "status", "toy")
    (line,) = [told for told in capsys.readouterr().out.splitlines() if "charge" in told]
    assert line.startswith("toy: charge unit: unit unit-0 suspect 3/3 vs 0/20, p=0.00056; unit ")
    assert "unit-0 quarantined 20" in line


def test_without_a_mismatch_there_is_no_charge(tmp_path: Path) -> None:
    (row,) = status(landed(tmp_path, specs(odd=0, others=3)))
    assert row.to_json()["charge"] is None
    assert row.to_json()["platforms_apart"] is None


def test_a_fail_by_rows_alone_is_charged_to_nobody(tmp_path: Path) -> None:
    """A screen's rows differ: a difference that sticks, with no root of a good replay."""
    good = specs(odd=0, others=2, unit="unit-1")
    odd = AttemptSpec("f" * 16, slot=9, unit="unit-1", purpose="screen", edit=BAD)
    (row,) = status(landed(tmp_path, [*good, odd]))
    assert row.verdict is not None and row.verdict.verdict == "FAIL"
    shown = row.to_json()["charge"]
    assert (shown["charge"], shown["units"]) == ("undecided", [])


def test_all_of_one_platform_differ_from_all_of_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = [("driver", "570"), ("gpu_model", "H200")]
    new = [("driver", "580"), ("gpu_model", "H200")]
    one = specs(odd=0, others=2, facts=tuple(old))
    other = [
        AttemptSpec(f"{n:016x}", slot=n, unit=f"n{n}", facts=tuple(new), edit=BAD) for n in (8, 9)
    ]
    root = landed(tmp_path, [*one, *other])
    found = status(root)
    assert [row.charge for row in found] == [None, None]
    for row in found:
        assert row.apart is not None
        assert [c.fact for c in row.apart.candidates] == ["driver"]
        assert (row.apart.units_here, row.apart.units_there) == (2, 2)
    fleet(root, "status", "toy")
    (line,) = [told for told in capsys.readouterr().out.splitlines() if "differ from all" in told]
    assert line.startswith("toy: all 2 units of H200, torch none [")
    assert line.endswith(": candidates") and "separated by driver (5" in line


# at the end of a campaign


def campaigned_beside_a_bad_unit(root: Path) -> CampaignAnswer:
    """Certify ``toy`` where the landing holds a bad unit's replays of the same execution id."""
    write_configs(root / "configs")
    (toy,) = planned_in(root)[1].named
    landing = Landing.open(places_in(root).landing, create=True)
    landing.write_contract(from_text(toy.execution_id), toy.body())
    landed(root, specs(execution_id=from_text(toy.execution_id)))
    return certified(root)


def test_a_campaign_records_what_is_due_on_its_contracts(tmp_path: Path) -> None:
    campaigned_beside_a_bad_unit(tmp_path)
    assert set(quarantined(Landing.open(places_in(tmp_path).landing))) == {"unit-0"}


def test_a_decision_that_cannot_be_recorded_costs_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(decisions, "record", full)
    answer = campaigned_beside_a_bad_unit(tmp_path)
    assert answer.contracts[0].verdict == "PASS"
    assert quarantined(Landing.open(places_in(tmp_path).landing)) == {}


def test_controls_that_must_fail_tell_nothing_of_a_unit(tmp_path: Path) -> None:
    write_configs(tmp_path / "configs")
    for _ in range(2):
        certified(tmp_path)
    (row,) = units(tmp_path)
    assert (row.state, row.odd, row.undecided) == ("agrees", 0, 0)
    assert row.replays == 8  # two replays of toy and of the clean control, twice
