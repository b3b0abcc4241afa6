"""Decisions in the landing: append-only, written once, read with doubt against the unit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.contract.canonical import canonical_json
from fleet.evidence import decisions, ledger
from fleet.evidence.decisions import Decision, quarantined, record
from fleet.evidence.landing import Landing
from tests.landing_builder import AttemptSpec, build_landing

OUT = Decision(
    kind="quarantined",
    unit="u",
    contract="toy",
    execution_id="sha256:e",
    platform="sha256:p",
    traced=False,
    grade="logits",
    as_of_s=100.0,
    rule=1,
    odd=3,
    replays=3,
    elsewhere_odd=0,
    elsewhere_replays=40,
    p=8.1e-05,
    raised_by="a" * 16,
    attempts=("b" * 16,),
    attempts_elsewhere=("c" * 16, "d" * 16),
)
BACK = replace(OUT, kind="released", as_of_s=200.0, odd=0, p=None, nights=14, raised_by=None)


@pytest.fixture
def landing(tmp_path: Path) -> Landing:
    return Landing.open(tmp_path / "landing", create=True)


def entry(landing: Landing, number: int = 0) -> Path:
    (chain,) = ledger.decision_chains(landing)
    return ledger.chain_folder(landing, chain) / f"{number:06d}.json"


def test_what_was_recorded_is_read_again(landing: Landing) -> None:
    record(landing, [OUT, replace(OUT, unit="w")])
    assert decisions.read(landing) == [OUT, replace(OUT, unit="w")]
    assert quarantined(landing) == {"u": (OUT,), "w": (replace(OUT, unit="w"),)}


def test_nothing_decided_writes_nothing(landing: Landing) -> None:
    record(landing, [])
    assert ledger.decision_chains(landing) == [] and quarantined(landing) == {}


def test_a_release_ends_its_own_quarantine_and_no_other(landing: Landing) -> None:
    elsewhere = replace(OUT, execution_id="sha256:f")
    record(landing, [OUT, elsewhere])
    record(landing, [BACK])
    assert quarantined(landing) == {"u": (elsewhere,)}
    record(landing, [replace(OUT, as_of_s=300.0)])
    assert len(quarantined(landing)["u"]) == 2


def test_decisions_are_no_campaign_and_the_head_of_the_landing_covers_them(tmp_path: Path) -> None:
    landing = build_landing(tmp_path / "landing", [AttemptSpec("a" * 16)])
    before = ledger.landing_head(landing)
    record(landing, [OUT])
    assert ledger.campaigns(landing) == ["c1"]
    assert ledger.landing_head(landing) != before


def test_each_entry_is_written_once(landing: Landing) -> None:
    record(landing, [OUT])
    (chain,) = ledger.decision_chains(landing)
    with pytest.raises(FileExistsError):
        ledger.Ledger(landing, chain).append("released")


def test_a_release_in_a_chain_that_does_not_check_is_not_believed(landing: Landing) -> None:
    record(landing, [OUT, BACK])
    assert quarantined(landing) == {}
    raw = json.loads(entry(landing).read_bytes())
    entry(landing).write_bytes(canonical_json(raw | {"at_s": 1.0}))
    assert quarantined(landing) == {"u": (OUT,)}


def test_a_gap_lets_no_unit_in(landing: Landing) -> None:
    record(landing, [OUT])
    record(landing, [replace(OUT, unit="w"), BACK])
    chain = ledger.decision_chains(landing)
    folders = [ledger.chain_folder(landing, name) for name in chain]
    (two,) = [f for f in folders if len(list(f.glob("*.json"))) == 2]
    (two / "000000.json").unlink()
    assert quarantined(landing) == {"u": (OUT,)}


@pytest.mark.parametrize("change", [{"unit": None}, {"odds": 1}, {"kind": "closed"}])
def test_what_is_no_decision_is_not_taken_for_one(
    landing: Landing, change: dict[str, object]
) -> None:
    record(landing, [OUT, replace(OUT, unit="w")])
    path = entry(landing)
    raw = json.loads(path.read_bytes())
    if "kind" in change:
        raw |= change
    else:
        raw["body"] = {k: v for k, v in (raw["body"] | change).items() if v is not None}
    path.write_bytes(canonical_json(raw))
    assert set(quarantined(landing)) == {"w"}
