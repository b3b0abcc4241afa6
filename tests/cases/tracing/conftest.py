"""The three architectures, each loaded once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.cases.tracing.harness import Subject

CHECKPOINTS = {"llama": "tiny-llama-bf16", "qwen2": "tiny-qwen2-bf16", "moe": "tiny-moe-bf16"}


@pytest.fixture(scope="session")
def subjects(demo: Callable[[str], Path]) -> Callable[[str], Subject]:
    """A subject by name."""
    torch.set_num_threads(1)
    loaded: dict[str, Subject] = {}

    def subject(name: str) -> Subject:
        if name not in loaded:
            loaded[name] = Subject.load(name, demo(CHECKPOINTS[name]))
        return loaded[name]

    return subject


@pytest.fixture(params=CHECKPOINTS)
def subject(request: pytest.FixtureRequest, subjects: Callable[[str], Subject]) -> Subject:
    """Every architecture in turn."""
    return subjects(request.param)


@pytest.fixture
def llama(subjects: Callable[[str], Subject]) -> Subject:
    """Where one architecture is enough."""
    return subjects("llama")
