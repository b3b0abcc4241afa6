"""A clean pair of replays, run once: cases about stored bytes each damage their own copy of it."""

from __future__ import annotations

import pytest

from tests.cases.harness import Outcome, run_pair


@pytest.fixture(scope="session")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Two equal replays; their landing is copied, never touched."""
    return run_pair(tmp_path_factory.mktemp("clean"))
