"""What integration tests need around them: folders of a project, settings and copies for engines.

An engine's module says which checkpoint ``folder`` is.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.campaigns import write_configs
from tests.sites import home

__all__ = ["home"]


@pytest.fixture
def settings_in_force() -> Iterator[None]:
    """The contract's settings in this process, and none of those that would stay behind."""
    import torch

    from fleet.replay import determinism
    from tests.integration.engine_cases import contract

    threads = torch.get_num_threads()
    determinism.apply(contract())
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


@pytest.fixture
def edited(folder: Path, tmp_path: Path) -> Path:
    """A private copy of the checkpoint, to be changed."""
    return Path(shutil.copytree(folder, tmp_path / "checkpoint"))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An own folder as working directory: configs with the contract ``toy``, nothing certified."""
    for name in ("FLEET_STORE", "FLEET_LANDING", "FLEET_CONFIGS", "FLEET_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FLEET_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "project"
    write_configs(root / "configs")
    monkeypatch.chdir(root)
    return root


@pytest.fixture
def certified(project: Path, campaigned: Path) -> Path:
    """The same with evidence: ``toy`` and ``other`` PASS, the racy control FAILs."""
    shutil.rmtree(project / "configs")
    for name in ("configs", "var"):
        shutil.copytree(campaigned / name, project / name)
    return project
