"""Fixtures shared by all tests, and the versions that a report of a run needs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from fleet.contract.model import Model
from fleet.replay.checkpoint import default_cache, resolve

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def pytest_configure() -> None:
    """A shell that runs the tests in the background ignores Ctrl-C for them; what is tested here
    must not depend on it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where tests run side by side, those with a local Ray still take turns."""
    for item in items:
        if item.get_closest_marker("ray") is not None:
            item.add_marker(pytest.mark.xdist_group("ray"))


def pytest_report_header() -> str:
    """Versions decide bits, so they stand at the top of every run."""
    names = ("torch", "transformers", "gptqmodel", "ray", "duckdb", "pyarrow")
    return ", ".join(f"{name} {metadata.version(name)}" for name in names)


@pytest.fixture(scope="session")
def demo() -> Callable[[str], Path]:
    """Folder of a demo checkpoint by name, made once per cache."""

    def folder(name: str) -> Path:
        found = resolve(
            Model(checkpoint=f"demo:{name}", dtype="bfloat16"), Path(), default_cache(os.environ)
        )
        assert found is not None
        return found

    return folder


@pytest.fixture(scope="session")
def campaigned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``configs`` and ``var``: one campaign over toy, other and own. To be copied."""
    from tests.campaigns import CONTRACT, PARSER, certified, write_configs, write_contract

    root = tmp_path_factory.mktemp("campaigned")
    configs = write_configs(root / "configs")
    shorter = CONTRACT.replace("max_new_tokens = 4", "max_new_tokens = 2")
    write_contract(configs, "other", shorter)
    (configs / "contracts" / "mine.py").write_text(PARSER)
    own = CONTRACT.replace('parser = "letter"', 'parser = "file:mine.py"')
    write_contract(configs, "own", own)
    assert certified(root, "toy", "other", "own").exit_code() == 0
    return root
