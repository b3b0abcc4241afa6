"""Runs the pairs that tests declare, two at a time and ahead of the tests; judges none of them.

``@pair(...)`` says what is run (arguments of ``run_pair``) and the fixture ``outcome`` waits for
it. A pair is two process starts and little else, so running them side by side halves the wall time.
"""

from __future__ import annotations

import shutil
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cases.harness import Outcome, run_pair

AHEAD = pytest.StashKey[Future[Outcome]]()
ROOT = pytest.StashKey[Path]()
POOL = pytest.StashKey[ThreadPoolExecutor]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "pair: two replays that run ahead of their test")


def pytest_collection_finish(session: pytest.Session) -> None:
    pairs = [(item, mark) for item in session.items if (mark := item.get_closest_marker("pair"))]
    if not pairs or session.config.option.collectonly:
        return
    root = session.config.stash[ROOT] = Path(tempfile.mkdtemp(prefix="fleet-cases-"))
    pool = session.config.stash[POOL] = ThreadPoolExecutor(max_workers=2)
    for n, (item, mark) in enumerate(pairs):
        item.stash[AHEAD] = pool.submit(run_pair, root / f"{n:03d}", *mark.args, **mark.kwargs)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if POOL in session.config.stash:
        session.config.stash[POOL].shutdown(wait=True, cancel_futures=True)
        shutil.rmtree(session.config.stash[ROOT], ignore_errors=True)


@pytest.fixture
def outcome(request: pytest.FixtureRequest) -> Outcome:
    """The declared pair, run and judged."""
    return request.node.stash[AHEAD].result(timeout=250)


@pytest.fixture(scope="session")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Two equal replays; their landing is copied, never touched."""
    return run_pair(tmp_path_factory.mktemp("clean") / "pair")
