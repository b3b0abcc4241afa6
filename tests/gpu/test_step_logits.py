"""What is said of a step's logits is the same, bit for bit, wherever they were observed."""

from __future__ import annotations

import subprocess
import sys

from fleet.replay.task import Device, device_environment
from tests.integration.command_line import ROOT


def test_steps_observed_on_a_device_are_the_hosts(device: Device) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.gpu.logits_checks"],
        env={"PYTHONPATH": ":".join([str(ROOT), *sys.path])} | device_environment(device),
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
