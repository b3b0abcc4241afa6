"""What the tests of engines need around them; the module says which checkpoint ``folder`` is."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest


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
