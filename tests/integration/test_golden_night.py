"""A night planned over the evidence of two real H200s, and three that ran there, judged again.

``h200-night``: n1, whose driver was killed by SIGKILL in mid-replay on both devices, and gone on
with by one that did not yet repeat what a traced control had shown; n2 over what n1 left; n3, while
another process held memory of one device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.contract.load import BUILTIN
from fleet.evidence.landing import Landing
from fleet.evidence.ledger import NIGHT, ends, read_chain
from fleet.report.answers import Answers, ControlsByCampaign, known_contracts
from fleet.report.night_view import print_night
from fleet.report.status import rows_of
from fleet.schedule.history import seen_units
from fleet.schedule.nightly import NightRequest, plan_campaign
from fleet.schedule.places import Places
from fleet.store import queries
from fleet.store.ingest import ingest
from fleet.store.open import Store, open_reader, open_writer, publish
from tests.golden_summary import unpacked
from tests.unit.screens import shown

GOLDEN = Path(__file__).parents[1] / "golden"
DAY_S = 86400.0
FLEET = """[night]
budget_minutes = 60
contracts = ["qwen2-7b-shapes-awq@awq_torch", "qwen2-7b-shapes-awq@awq_gemm", "smollm2-bf16"]
[[nodes]]
label = "vm"
devices = 2
platform.gpu_model = "NVIDIA H200"
[[nodes]]
label = "gpu-b"
devices = 1
platform.gpu_model = "NVIDIA H200"
platform.driver = "another"
"""


def test_devices_are_named_and_replays_timed_by_what_was_seen(tmp_path: Path) -> None:
    landing = unpacked(GOLDEN / "h200-same-class.tar.xz", tmp_path)
    places = Places((tmp_path, BUILTIN), tmp_path / "s.duckdb", landing.root, tmp_path, tmp_path)
    with open_writer(places.store) as store:
        ingest(store, landing)
        publish(store)
    (tmp_path / "fleets").mkdir()
    (tmp_path / "fleets" / "rack.toml").write_text(FLEET)
    seen = seen_units(places)
    assert {s.node for s in seen} == {"vm"} and len(seen) == 2
    now_s = max(s.at_s for s in seen) + DAY_S
    plan = plan_campaign(NightRequest("rack"), places, now_s).plan
    uuids = {s.name for s in seen}
    assert {i.unit.name for i in plan.items} == {*uuids, "gpu-b/0"}
    assert [(left.contract.partition("@")[2], left.code) for left in plan.left_out] == [
        ("awq_torch", "current"), ("awq_gemm", "current"),
    ]  # fmt: skip
    told = {(i.contract, i.unit.kind): i for i in plan.items}
    known, unknown = "NVIDIA H200", "NVIDIA H200, driver another"
    assert {i.estimate for (name, kind), i in told.items() if kind == known} == {
        "measured", "assumed",
    }  # fmt: skip
    gemm = told["qwen2-7b-shapes-awq@awq_gemm", unknown]
    assert (gemm.reason, gemm.estimate) == ("never-tested", "other class")
    assert all(5 < i.seconds / len(i.slots) < 60 for i in plan.items if i.estimate != "assumed")
    stale = plan_campaign(NightRequest("rack"), places, now_s + 31 * DAY_S).plan
    assert {i.reason for i in stale.items if i.unit.kind == known and i.role == "named"} == {
        "stale", "never-tested",
    }  # fmt: skip
    assert "measured in another class" in shown(print_night, plan)


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Landing, Store]]:
    root = tmp_path_factory.mktemp("nights")
    landing = unpacked(GOLDEN / "h200-night.tar.xz", root)
    with open_writer(root / "s.duckdb") as store:
        ingest(store, landing)
        publish(store)
    with open_reader(root / "s.duckdb") as store:
        yield landing, store


FIRST, SECOND = (
    "GPU-0fc09347-663a-b31d-cf8f-fba529d9d700",
    "GPU-65af7ae3-370d-13bc-7a10-a93e8ff6d1e8",
)


def test_three_nights_of_two_devices_are_judged_as_they_were(nights: tuple[Landing, Store]) -> None:
    landing, store = nights
    answers, known = Answers(store, landing), known_contracts(store)
    controls = ControlsByCampaign(answers, known)
    facts = queries.platforms(store.con)
    now_s = max(s.accepted_at_s or 0.0 for s in queries.summaries(store.con)) + 60.0
    rows = {a.name: rows_of(answers, a, controls, facts, now_s) for a in known}
    found = {
        name: [(r.state, r.verdict.scope, r.verdict.campaign) for r in told if r.verdict]
        for name, told in rows.items()
        if "control" not in name
    }
    assert found == {
        "pair-awq-torch": [("PASS", "same-class", "n2")],
        "qwen2-7b-shapes-awq@awq_marlin": [("FAIL", "same-unit", None)],
        "torch-two": [("PASS", "same-class", f"n2.{SECOND}")],
        "torch-three": [("PASS", "same-unit", f"n3.{SECOND}")],
    }
    (pair,) = rows["pair-awq-torch"]
    assert pair.verdict is not None
    assert [unit["replays"] for unit in pair.verdict.units] == [4, 4]
    (marlin,) = rows["qwen2-7b-shapes-awq@awq_marlin"]
    assert marlin.verdict is not None and marlin.verdict.mismatches == 48


def test_what_a_killed_driver_left_on_two_devices_is_lost_and_tried_anew(
    nights: tuple[Landing, Store],
) -> None:
    landing, _ = nights
    assert [e.kind for e in read_chain(landing, f"{NIGHT}n1")] == ["night", "resumed", "closed"]
    for unit in (FIRST, SECOND):
        entries = read_chain(landing, f"n1.{unit}")
        told = Counter(
            (end.body["state"], (end.body.get("cause") or {}).get("code"))
            for _, end in ends(entries)
            if end is not None
        )
        assert set(told) <= {("COMPLETE", None), ("LOST", "driver-gone")}
        assert told["LOST", "driver-gone"] in (1, 2)  # one that ran, and one that prepared


def test_a_device_that_somebody_else_holds_voids_what_runs_there_and_nothing_else(
    nights: tuple[Landing, Store],
) -> None:
    _, store = nights
    held = queries.summaries(store.con, campaign=f"n3.{FIRST}")
    certified = [s for s in held if s.purpose == "certify"]
    assert {s.state for s in certified} == {"VOID"}
    assert {s.cause.code for s in certified if s.cause} == {"device-not-free"}
    elsewhere = queries.summaries(store.con, campaign=f"n3.{SECOND}")
    assert {s.state for s in elsewhere if s.purpose == "certify"} == {"COMPLETE"}
