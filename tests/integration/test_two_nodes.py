"""A claim about two units on a real Ray cluster of two nodes; here both are of one machine, and a
label tells them apart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

from fleet.report.document import campaign_document
from fleet.schedule.certify import certify
from fleet.schedule.cluster import NODE_LABEL, RayCluster
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
