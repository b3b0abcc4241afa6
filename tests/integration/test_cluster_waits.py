"""Waits for a real Ray cluster whose node hangs or has no processor left: each ends, in a bound."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

from fleet.errors import AttemptFailed
from fleet.evidence.landing import Landing
from fleet.replay.task import ReplayTask
from fleet.schedule.actors import ANSWER_S
from fleet.schedule.cluster import LOOK_S, RayCluster
from fleet.schedule.driver import SLOT_ZERO, Campaign
from fleet.schedule.launcher import Place
from fleet.schedule.nodes import NODE_LABEL
from tests.campaigns import planned_in, write_configs

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    made.add_node(num_cpus=1, labels={NODE_LABEL: "near"}, include_dashboard=False)
    yield made
    ray.shutdown()
    made.shutdown()


def task_of(root: Path, launcher: RayCluster) -> ReplayTask:
    write_configs(root / "configs")
    _, planned, places = planned_in(root, purpose="replay")
    landing = Landing.open(places.landing, create=True)
    campaign = Campaign(landing, launcher, {r.name: r for r in planned.named}, places.scratch)
    return campaign.task(SLOT_ZERO, planned.named[0], "0" * 16)


@pytest.mark.slow
def test_whoever_waits_for_a_process_is_told_when_the_launcher_is_stopped(
    tmp_path: Path, cluster: Cluster
) -> None:
    with RayCluster(str(cluster.address)) as launcher:
        task = task_of(tmp_path, launcher)
        holds = launcher.start(task, {"FLEET_NONCE": "1"}, 1, 60)  # the one CPU there is
        told: list[AttemptFailed] = []

        def wait() -> None:
            with pytest.raises(AttemptFailed) as raised:
                launcher.start(task, {"FLEET_NONCE": "2"}, 1, 200)
            told.append(raised.value)

        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(3)
        assert waiting.is_alive()
        launcher.stop()
        waiting.join(10)
        assert [failed.code for failed in told] == ["start"]
        with pytest.raises(AttemptFailed, match="the driver was interrupted"):
            launcher.start(task, {"FLEET_NONCE": "3"}, 1, 200)
        assert holds.end(20).gone  # what ran is its campaign's to end


@pytest.mark.slow
def test_a_node_that_hangs_is_waited_for_once_and_by_nobody_else(cluster: Cluster) -> None:
    with RayCluster(str(cluster.address)) as launcher:
        node = cluster.add_node(num_cpus=1, labels={NODE_LABEL: "far"}, include_dashboard=False)
        (raylet,) = node.all_processes["raylet"]
        os.kill(raylet.process.pid, signal.SIGSTOP)
        try:
            for bound_s in (LOOK_S + 5, 5):
                begun_s = time.monotonic()
                assert [place.name for place in launcher.units()] == ["near"]
                assert time.monotonic() - begun_s < bound_s
            far = launcher.at(Place("far", None))
            begun_s = time.monotonic()
            assert not far.is_up()
            assert time.monotonic() - begun_s < 4 * ANSWER_S
            assert launcher.is_up()
        finally:
            os.kill(raylet.process.pid, signal.SIGKILL)
