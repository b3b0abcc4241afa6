"""A night planned over the evidence of two real H200s: their names, states and durations."""

from __future__ import annotations

from pathlib import Path

from fleet.contract.load import BUILTIN
from fleet.report.night_view import print_night
from fleet.schedule.certify import Places
from fleet.schedule.history import seen_units
from fleet.schedule.nightly import NightRequest, plan_campaign
from fleet.store.ingest import ingest
from fleet.store.open import open_writer, publish
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
