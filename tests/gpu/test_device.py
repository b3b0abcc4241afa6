"""What is read of a real device, and that a busy one is never taken for free."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fleet.evidence.platform import GPU_FACTS, NOT_APPLICABLE
from fleet.replay.checkpoint import default_cache
from fleet.replay.gpu.watch import DeviceWatch, require_healthy
from fleet.replay.task import Device, device_environment
from tests.integration.command_line import ROOT, fleet

READ = """
import json, os, sys
from fleet.replay.probe import read_platform
facts = read_platform("a", dict(os.environ), (), sys.argv[1])
print(json.dumps({"facts": facts.facts, "torch": "torch" in sys.modules}))
"""
HOLD = """
import sys, torch
held = torch.zeros(1 << 20, device="cuda")
print("holds", flush=True)
sys.stdin.read()
"""


def test_every_fact_of_the_device_is_read_without_torch(device: Device) -> None:
    run = subprocess.run(
        [sys.executable, "-c", READ, device.uuid],
        env={"PYTHONPATH": ":".join([str(ROOT), *sys.path])} | device_environment(device),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    seen = json.loads(run.stdout)
    assert not seen["torch"]
    unread = {k: v for k, v in seen["facts"].items() if isinstance(v, dict) and "why" in v}
    assert unread == {}
    assert NOT_APPLICABLE not in {str(seen["facts"][name]) for name in GPU_FACTS}


def test_a_device_that_another_process_holds_is_not_free(device: Device) -> None:
    watch = DeviceWatch(device)
    assert watch.wait_free(30)["not_free"] is None
    with subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "holds\n"
        assert watch.wait_free(0)["not_free"]
        holder.communicate("", timeout=60)
    assert watch.wait_free(30)["not_free"] is None
    require_healthy(watch.close())


def test_doctor_shows_the_device_and_can_hide_it(device: Device, work: Path) -> None:
    cache = str(default_cache(os.environ))  # what is compiled to answer is compiled once
    shown = json.loads(fleet(work, "doctor", "--json", FLEET_CACHE=cache).stdout)
    assert [each["uuid"] for each in shown["devices"] if each["chosen"]] == [device.uuid]
    assert shown["platform"]["gpu_model"] == device.name
    hidden = json.loads(
        fleet(work, "doctor", "--json", FLEET_CACHE=cache, FLEET_DEVICE="cpu").stdout
    )
    assert hidden["platform"]["gpu_model"] == NOT_APPLICABLE


@pytest.mark.parametrize("wanted", ["GPU-nowhere", "0"])
@pytest.mark.usefixtures("device")
def test_a_device_that_is_not_there_is_a_usage_error(work: Path, wanted: str) -> None:
    run = fleet(work, "certify", "tiny-awq-torch", FLEET_DEVICE=wanted)
    assert run.returncode == 2, run.stderr
    assert f"FLEET_DEVICE: expected {wanted}, got GPU-" in run.stderr
