"""Memory that a device's allocator hands out next holds the pattern that it was filled with."""

from __future__ import annotations

import os
import subprocess
import sys

from fleet.replay.task import Device, device_environment
from tests.integration.command_line import ROOT

PATH = ":".join([str(ROOT), *sys.path])

FILL = """
import torch
from fleet.evidence.stress import shortfall
from fleet.replay.stress import _device
left_by_loading = torch.zeros(3 << 20, device="cuda")
del left_by_loading
counters = {"memory": {"byte": 90, "blocks": 1, "filled": 1} | _device(90)}
torch.utils.deterministic.fill_uninitialized_memory = False
later = torch.empty(16 << 20, dtype=torch.uint8, device="cuda")
print(shortfall({"memory": 90}, counters, True), bool((later == 165).all()))
"""


def test_fresh_blocks_of_a_device_hold_the_pattern(device: Device) -> None:
    run = subprocess.run(
        [sys.executable, "-c", FILL], capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONPATH": PATH} | device_environment(device),
    )  # fmt: skip
    assert run.stdout.split() == ["None", "True"]
