"""A disk that is full when the store is written: evidence stays, and one command recovers.

The limit of a process on the size of a file stands for the disk: what goes beyond it is refused in
the same place, with another word.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from fleet.cli import run
from fleet.errors import StoreError
from fleet.evidence.landing import Landing
from fleet.schedule import certify
from fleet.store import queries
from fleet.store.ingest import ingest
from fleet.store.open import WRITER, open_reader, open_writer, publish, snapshot_path
from fleet.store.rebuild import rebuild
from tests.campaigns import FakeLauncher, write_configs
from tests.landing_builder import AttemptSpec, build_landing, other_slot

A = AttemptSpec("a" * 16)
B = other_slot(A, "b" * 16)
C = other_slot(B, "c" * 16)


@contextmanager
def no_file_above(num_bytes: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store and its snapshot, with two attempts."""
    path = tmp_path / "fleet.duckdb"
    with open_writer(path) as store:
        ingest(store, build_landing(tmp_path / "landing", [A, B]))
        publish(store)
    return path


def known(path: Path) -> int:
    with open_reader(path) as store:
        return len(queries.summaries(store.con))


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


@pytest.mark.parametrize("room", [20_000, 1_000_000], ids=["for no log", "for the log alone"])
def test_a_rebuild_without_room_leaves_the_old_store(path: Path, room: int) -> None:
    before = names(path.parent)
    with no_file_above(room), pytest.raises(StoreError, match="File too large") as raised:
        rebuild(path, Landing.open(path.parent / "landing"))
    assert raised.value.fix.startswith("free space")
    assert names(path.parent) == before
    snapshot_path(path).unlink()
    assert known(path) == 2


def test_a_snapshot_without_room_leaves_the_old_one_and_nothing_beside_it(path: Path) -> None:
    before = names(path.parent)
    with open_writer(path) as store:
        with no_file_above(1_000_000), pytest.raises(StoreError, match="File too large") as raised:
            publish(store)
        assert (raised.value.where, raised.value.expected) == (
            str(snapshot_path(path)),
            "room for a snapshot in a writable folder",
        )
    assert names(path.parent) == before
    assert known(path) == 2


def test_a_store_without_room_to_begin_is_refused(tmp_path: Path) -> None:
    with no_file_above(4096), pytest.raises(StoreError, match="room for a store") as raised:
        open_writer(tmp_path / "fleet.duckdb")
    assert raised.value.fix.startswith("free space")


@pytest.mark.parametrize("threshold", ["16MB", "10KB"], ids=["log", "log moved into the file"])
def test_an_ingest_without_room_is_refused_and_can_be_done_again(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch, threshold: str
) -> None:
    landing = build_landing(tmp_path / "more", [A, B, C])
    monkeypatch.setitem(WRITER, "checkpoint_threshold", threshold)
    with (
        open_writer(path) as store,
        no_file_above(10_000),
        pytest.raises(StoreError, match="File too large"),
    ):
        ingest(store, landing)
    with open_writer(path) as store:
        ingest(store, landing)
        publish(store)
    assert known(path) == 3


def test_a_disk_full_after_the_replays_costs_none_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("FLEET_STORE", "FLEET_LANDING", "FLEET_CONFIGS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FLEET_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    write_configs(tmp_path / "configs")
    launcher = nullcontext(FakeLauncher())
    monkeypatch.setattr("fleet.schedule.cluster.RayCluster", lambda *given: launcher)
    calls: list[int] = []
    real = certify.ingest_and_publish

    def second_is_full(*places: Any) -> None:
        calls.append(1)
        with no_file_above(10_000) if len(calls) == 2 else nullcontext():
            real(*places)

    monkeypatch.setattr(certify, "ingest_and_publish", second_is_full)
    assert run(["certify", "toy"]) == 3
    out, err = capfd.readouterr()
    assert (out, err.count("error: ")) == ("", 1)
    assert "the replays landed in var/landing, but the store could not take them in: " in err
    assert "File too large\n  next: free space" in err
    then = "  then: fleet store ingest --store var/fleet.duckdb --landing var/landing\n"
    assert err.endswith(then)
    assert len(list(Landing.open(tmp_path / "var" / "landing").attempts())) == 6
    assert run(then.split()[2:]) == 0
    assert run(["status", "toy"]) == 0
    assert "PASS" in capfd.readouterr().out
