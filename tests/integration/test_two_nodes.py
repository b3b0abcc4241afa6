"""A claim about two units on a real Ray cluster of two nodes; here both are of one machine, and a
label tells them apart."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

from fleet.cli import run
from fleet.errors import AttemptFailed
from fleet.evidence.landing import Landing
from fleet.replay.task import Device
from fleet.report.document import campaign_document
from fleet.schedule.certify import certify
from fleet.schedule.cluster import RayCluster
from fleet.schedule.driver import SLOT_ZERO, Campaign
from fleet.schedule.nodes import NODE_LABEL
from tests.campaigns import CONTRACT, planned_in, write_configs, write_contract

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]


@pytest.fixture
def address() -> Iterator[str]:
    cluster = Cluster()
    for label in ("left", "right"):
        cluster.add_node(num_cpus=2, labels={NODE_LABEL: label}, include_dashboard=False)
    yield str(cluster.address)
    ray.shutdown()
    cluster.shutdown()


def test_replays_on_two_nodes_at_a_time_agree_as_a_class(tmp_path: Path, address: str) -> None:
    write_contract(write_configs(tmp_path / "configs"), "mine", CONTRACT + 'scope = "same-class"\n')
    asked, planned, places = planned_in(tmp_path, "mine")
    with RayCluster(address) as launcher:
        assert sorted(place.node_label for place in launcher.places()) == ["left", "right"]
        answer = certify(asked, planned, places, launcher, lambda _: None)
    (verdict,) = answer.contracts
    assert (verdict.verdict, verdict.scope) == ("PASS", "same-class")
    assert sorted(unit["unit"].rpartition(":")[2] for unit in verdict.units) == ["left", "right"]
    assert [control["mismatches"] for control in campaign_document(answer)["controls"]] == [[], []]
    ran = {}
    for path in places.landing.glob("attempts/*/manifest.json"):
        manifest = json.loads(path.read_bytes())
        if manifest["contract"] == "mine":
            ran[manifest["unit"]["node_label"]] = manifest["freshness"]["scheduler"]["node"]
    assert len(set(ran.values())) == 2


@pytest.mark.slow
def test_the_doctor_shows_every_node_beside_what_is_expected(
    tmp_path: Path, address: str, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fleets").mkdir()
    (tmp_path / "fleets" / "rack.toml").write_text(FLEET)
    argv = ["doctor", "--address", address, "--configs", str(tmp_path), "--fleet", "rack"]
    argv += ["--landing", str(tmp_path / "landing")]
    assert run([*argv, "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    nodes = {node["label"]: node for node in found["nodes"]}
    assert {label: node["state"] for label, node in nodes.items()} == {
        "left": "different", "gone": "missing", "right": "unexpected",
    }  # fmt: skip
    assert {d["key"]: (d["expected"], d["got"]) for d in nodes["left"]["differences"]} == {
        "cpus": ("64 or more", 2),
        "platform.packages.torch": ("1.0", metadata.version("torch")),
    }
    (unit,) = nodes["right"]["units"]
    assert unit["uuid"] is None and unit["why"] == ""
    assert unit["facts"]["python"] == platform.python_version()
    assert unit["facts"]["gpu_model"] == "not applicable" and "environment" not in unit["facts"]
    assert run(argv[:3]) == 0
    assert "left" in (text := capfd.readouterr().out) and "found" in text


@pytest.mark.slow
def test_a_night_runs_its_plan_on_the_nodes_that_are_there(
    tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write_contract(write_configs(tmp_path / "configs"), "mine", CONTRACT + 'scope = "same-class"\n')
    (tmp_path / "configs" / "fleets").mkdir()
    nodes = "".join(f'[[nodes]]\nlabel = "{label}"\n' for label in ("left", "right"))
    night = '[night]\nbudget_minutes = 200\ncontracts = ["toy"]\n'
    (tmp_path / "configs" / "fleets" / "rack.toml").write_text(night + nodes)
    monkeypatch.setenv("FLEET_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    argv = ["campaign", "rack", "--address", address, "--campaign-id", "night-1", "--json"]
    assert run(argv) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["campaign"] == "night-1"
    assert {v["contract"]: v["verdict"] for v in found["contracts"]} == {"toy": "PASS"}
    assert {tuple(control["mismatches"]) for control in found["controls"]} == {()}
    assert {control["unit"] for control in found["controls"]} == set(found["units"])
    assert run([*argv[:4], "--json"]) == 0  # everything holds a PASS by now
    left = json.loads(capfd.readouterr().out)
    assert (left["plan"], {each["code"] for each in left["left_out"]}) == ([], {"current"})


FLEET = f"""[night]
budget_minutes = 1
contracts = ["toy"]
[[nodes]]
label = "left"
cpus = 64
platform.python = "{platform.python_version()}"
platform.packages.torch = "1.0"
[[nodes]]
label = "gone"
"""
GPU = Device("GPU-1", "NVIDIA X", 0, 2**30)


@pytest.fixture
def one_gpu() -> Iterator[str]:
    """A node of which Ray is told that it has a GPU; nothing here computes on one."""
    cluster = Cluster()
    cluster.add_node(num_cpus=2, num_gpus=1, include_dashboard=False)
    yield str(cluster.address)
    ray.shutdown()
    cluster.shutdown()


@pytest.mark.slow
def test_a_campaign_keeps_its_device_between_replays_and_waits_a_bounded_time_for_one(
    tmp_path: Path, one_gpu: str
) -> None:
    write_configs(tmp_path / "configs")
    _, planned, places = planned_in(tmp_path)
    with RayCluster(one_gpu, "cpu") as launcher:
        campaign = Campaign(
            Landing.open(places.landing, create=True),
            launcher,
            {r.name: r for r in planned.named},
            places.scratch,
        )
        task = replace(campaign.task(SLOT_ZERO, planned.named[0], "0" * 16), device=GPU)
        first = launcher.start(task, {"FLEET_NONCE": "1"}, 1, 60)
        second = launcher.start(task, {"FLEET_NONCE": "2"}, 1, 60)
        assert first.process != second.process  # one prepares beside the other
        for running in (first, second):
            assert running.end(30).gone
        assert ray.available_resources().get("GPU", 0) == 0  # still its own
        other = replace(task, device=replace(GPU, uuid="GPU-2"))
        with pytest.raises(AttemptFailed, match="no free device within 2 s"):
            launcher.start(other, {"FLEET_NONCE": "3"}, 1, 2)
