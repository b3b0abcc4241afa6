"""Digests computed on a device are the host's, bit for bit, and wait for nothing."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from fleet.replay.task import Device, device_environment
from tests.gpu.digest_checks import CHECKS, SLOW
from tests.integration.command_line import ROOT


def answers(device: Device, *names: str) -> dict[str, str | None]:
    """What each check said in one fresh process; none of what it did not come to."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.gpu.digest_checks", *names],
        env={"PYTHONPATH": ":".join([str(ROOT), *sys.path])} | device_environment(device),
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    found = {line["check"]: line["error"] for line in lines}
    return found | {"end": None if run.returncode == 0 else run.stderr}


@pytest.fixture(scope="module")
def said(device: Device) -> dict[str, str | None]:
    return answers(device)


@pytest.mark.parametrize("name", [name for name in CHECKS if name != SLOW])
def test_a_device_digest_is_the_host_digest(said: dict[str, str | None], name: str) -> None:
    assert said.get(name, f"did not run: {said['end']}") is None


@pytest.mark.slow
def test_a_tensor_of_more_than_four_gibibytes(device: Device) -> None:
    assert answers(device, SLOW) == {SLOW: None, "end": None}
