"""Replays in another Python than the driver's, and on nodes that were prepared, under one Ray."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

from fleet.contract.stack import load_stack
from fleet.errors import CannotRunError
from fleet.evidence.landing import Landing
from fleet.schedule.certify import certify
from fleet.schedule.cluster import RayCluster
from fleet.schedule.launcher import Surroundings
from fleet.schedule.nodes import NODE_LABEL
from fleet.schedule.stacks import source_folder, surroundings
from tests.campaigns import places_in, planned_in, write_configs
from tests.integration.command_line import fleet
from tests.two_stacks import python_in, write_stack

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLEET_CACHE", str(tmp_path / "cache"))
    write_configs(tmp_path / "configs")
    return tmp_path


@pytest.fixture
def prepared() -> Iterator[Cluster]:
    """A head without CPUs, and two nodes of which one was prepared."""
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    made.add_node(num_cpus=1, labels={NODE_LABEL: "plain"}, include_dashboard=False)
    made.add_node(num_cpus=1, labels={NODE_LABEL: "ready", "stack": "a"}, include_dashboard=False)
    yield made
    ray.shutdown()
    made.shutdown()


def test_a_replay_runs_in_the_stack_s_python_with_the_driver_s_fleet(root: Path) -> None:
    write_stack(root, "mine")
    loaded = load_stack("mine", [root / "configs"])
    python, used = Path(str(loaded.python)), root / "used"
    python.write_text(python.read_text().replace("exec", f'echo "$PYTHONPATH" >> {used}\nexec'))
    request, planned, places = planned_in(root, stack=loaded)
    with RayCluster() as cluster:
        around = surroundings(loaded, places.cache)
        answer = certify(request, planned, places, cluster.within(around), lambda _: None)
    assert [v.verdict for v in answer.contracts] == ["PASS"]
    seen = used.read_text().splitlines()
    attempts = list(Landing.open(places.landing).attempts())
    assert len(seen) >= len(attempts) == 6 and set(seen) == {str(source_folder(places.cache))}


def test_another_environment_than_was_frozen_is_void_and_not_trusted(root: Path) -> None:
    write_stack(root, "base")
    write_stack(root, "lying", numpy="99.0")
    done = fleet(
        root, "upgrade-check", "base", "lying", "--contract", "toy", "--json",
        FLEET_CACHE=str(root / "cache"), FLEET_CONFIGS=str(root / "configs"),
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    (told,) = json.loads(done.stdout)["contracts"]
    assert told["verdict"] == "NOT_COVERED" and told["base"]["verdict"] == "PASS"
    assert "numpy" in told["new"]["reason"] and "frozen 99.0" in told["new"]["reason"]


IMAGE = os.environ.get("FLEET_TEST_IMAGE")
"""An image that podman has, with this environment's Python and Ray and what fleet needs."""


@pytest.mark.skipif(IMAGE is None, reason="FLEET_TEST_IMAGE names no image")
def test_a_stack_may_be_an_image(root: Path) -> None:
    around = {"FLEET_CACHE": str(root / "cache"), "FLEET_CONFIGS": str(root / "configs")}
    for name, given in (("here", ()), ("image", ("--image", str(IMAGE)))):
        file = str(root / "configs" / "stacks" / f"{name}.toml")
        done = fleet(root, "stack", "freeze", *given, "--output", file, **around)
        assert done.returncode == 0, done.stderr
    done = fleet(root, "upgrade-check", "here", "image", "--contract", "toy", "--json", **around)
    (told,) = json.loads(done.stdout)["contracts"]
    assert (told["verdict"], told["attained_grade"]) == ("KEPT", "logits"), told["reason"]
    assert told["same_unit"] and done.returncode == 0


def test_labels_choose_a_node_that_was_prepared(prepared: Cluster) -> None:
    with RayCluster(prepared.address) as cluster:
        view = cluster.within(Surroundings(labels={"stack": "a"}))
        assert view.place().node_label == "ready"
        assert [place.node_label for place in view.places()] == ["ready"]
        assert {place.node_label for place in cluster.places()} == {"plain", "ready"}
        with pytest.raises(CannotRunError, match="labelled"):
            cluster.within(Surroundings(labels={"stack": "b"}))


def test_a_wrong_environment_is_told_before_a_cluster_is_started(root: Path) -> None:
    write_stack(root, "base")
    write_stack(root, "gone")
    python_in(root, "gone").unlink()
    done = fleet(
        root, "upgrade-check", "base", "gone", "--contract", "toy",
        FLEET_CACHE=str(root / "cache"), FLEET_CONFIGS=str(root / "configs"),
    )  # fmt: skip
    assert done.returncode == 2 and "a Python that runs" in done.stderr
    assert not (root / "var").exists()
    assert places_in(root).store.exists() is False
