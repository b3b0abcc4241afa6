"""Tests that need a CUDA device. Elsewhere each is skipped, with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.replay.task import Device
from fleet.replay.worker import devices_of_this_node

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of this folder carry the marker."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def device() -> Device:
    """The first device, as a campaign would choose it."""
    found = devices_of_this_node()
    if not found:
        pytest.skip("no NVIDIA device here, or torch is built without CUDA")
    return Device(**found[0])


@pytest.fixture(scope="session")
def work(tmp_path_factory: pytest.TempPathFactory, device: Device) -> Path:
    """One working folder for all campaigns: its kernel cache is warmed once."""
    return tmp_path_factory.mktemp("gpu")
