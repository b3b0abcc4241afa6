"""A stream beside the replay's: it keeps the device as busy as it says, and moves nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from typing import Any

import pytest

from fleet.contract.load import BUILTIN, load_contract
from fleet.evidence.stress import STREAM_SHARE, shortfall
from fleet.replay.determinism import environment
from fleet.replay.task import Device, device_environment
from tests.integration.command_line import ROOT

CONTRACT = "tiny-awq-torch"
PATH = ":".join([str(ROOT), *sys.path])
HOST = {"running": 1, "cpu_s": 1.0, "wall_s": 1.0}


@pytest.fixture(scope="module")
def seen(device: Device) -> dict[str, Any]:
    settings = environment(load_contract(CONTRACT, (BUILTIN,)).contract)
    run = subprocess.run(
        [sys.executable, "-m", "tests.gpu.stream_checks", json.dumps(asdict(device))],
        env=os.environ | {"PYTHONPATH": PATH} | settings | device_environment(device),
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    found: dict[str, Any] = json.loads(run.stdout)
    print(json.dumps(found, indent=1))
    return found


def share(counters: dict[str, float]) -> float:
    return counters["device_busy_ms"] / 1000 / counters["device_wall_s"]


def test_its_counters_show_a_busy_device(seen: dict[str, Any]) -> None:
    counters = seen["counters"]
    assert shortfall({"load": 1}, {"load": HOST | counters}, on_device=True) is None
    assert STREAM_SHARE < share(counters) < 1.01
    assert counters["device_launches"] > 20
    assert 0.1 < counters["device_busy_ms"] / counters["device_launches"] < 1000


def test_it_keeps_the_device_busy_beside_a_loop_that_hardly_leaves_the_interpreter(
    seen: dict[str, Any],
) -> None:
    assert seen["decoding"]["device_launches"] > 0
    assert STREAM_SHARE < share(seen["decoding"]) < 1.05  # one launch may have begun before it


def test_kernels_of_both_streams_share_the_device(seen: dict[str, Any]) -> None:
    """The host has no part in these times: all was enqueued before the first of it ran. Products
    that fill the device by themselves give it up for a tenth of the time on an H200 (34.5 ms for
    31.5)."""
    alone_ms, beside_ms = seen["ms"]
    assert beside_ms > 1.03 * alone_ms


def test_the_same_products_have_the_same_bytes(seen: dict[str, Any]) -> None:
    assert seen["distinct_products"] == 8
    assert seen["same_bytes"] == [True] * 20


def test_settings_generators_and_the_current_stream_stay_what_they_were(
    seen: dict[str, Any],
) -> None:
    assert seen["settings_same"] == [True, True]
    assert seen["state_same"] == [True, True]
    assert seen["threads_left"] == 0


def test_the_watch_takes_it_for_the_replay_and_for_nobody_else(seen: dict[str, Any]) -> None:
    assert seen["not_free"] is None
    assert seen["watch_samples"] == 1
