"""Opening a store: one writer, snapshots for readers, and everything that can be in the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import duckdb
import pytest

from fleet.errors import StoreBusy, StoreError
from fleet.evidence.landing import Landing
from fleet.store import queries
from fleet.store.ingest import ingest
from fleet.store.migrations import SCHEMA
from fleet.store.open import open_reader, open_writer, publish, snapshot_path
from fleet.store.rebuild import rebuild
from tests.landing_builder import AttemptSpec, build_landing, other_slot

A = AttemptSpec("a" * 16)
B = other_slot(A, "b" * 16)

HOLD = """
import sys
from pathlib import Path
from fleet.store.open import open_writer
with open_writer(Path(sys.argv[1])):
    print("open", flush=True)
    sys.stdin.read()
"""

DIE_IN_MID_INGEST = """
import os, signal, sys
from pathlib import Path
import fleet.store.ingest as module
from fleet.evidence.landing import Landing
from fleet.store.open import open_writer
load = module.load_hashes
def load_then_die(con, key, attempt, parts):
    loaded = load(con, key, attempt, parts)
    if key == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return loaded
module.load_hashes = load_then_die
module.ingest(open_writer(Path(sys.argv[1])), Landing.open(Path(sys.argv[2])))
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "fleet.duckdb"


def landing_of(tmp_path: Path, *specs: AttemptSpec) -> Landing:
    return build_landing(tmp_path / "landing", specs)


def holder(path: Path) -> subprocess.Popen[str]:
    """Another process that has the store open for writing."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    return process


def test_a_store_that_another_process_writes_is_refused_with_its_pid(
    tmp_path: Path, path: Path
) -> None:
    landing = landing_of(tmp_path, A)
    with holder(path) as process:
        for attempt_it in (open_writer, open_reader, lambda p: rebuild(p, landing)):
            with pytest.raises(StoreError) as raised:
                attempt_it(path)
            assert str(process.pid) in raised.value.got
            assert "snapshot" in raised.value.fix
        process.communicate("")
    with open_writer(path):
        pass


def test_a_writer_waits_for_another_one_to_end(path: Path) -> None:
    with holder(path) as process:
        threading.Timer(0.5, process.communicate, [""]).start()
        with open_writer(path, wait_s=60):
            assert process.poll() is not None or process.wait(10) == 0


def test_waiting_for_a_store_has_an_end(path: Path) -> None:
    with holder(path) as process:
        begun = time.monotonic()
        with pytest.raises(StoreBusy, match=f"locked by PID {process.pid}"):
            open_writer(path, wait_s=0.3)
        assert time.monotonic() - begun >= 0.3
        process.communicate("")


def test_what_is_not_busy_is_not_waited_for(path: Path) -> None:
    path.write_text("a file of mine, and not a short one")
    begun = time.monotonic()
    with pytest.raises(StoreError, match="something else"):
        open_writer(path, wait_s=60)
    assert time.monotonic() - begun < 30


def test_a_snapshot_is_readable_while_the_writer_is_open(tmp_path: Path, path: Path) -> None:
    landing = landing_of(tmp_path, A, B)
    with open_writer(path) as store:
        ingest(store, landing)
        publish(store)
        with open_reader(path) as reader:
            assert reader.path == snapshot_path(path)
            assert queries.summaries(reader.con) == queries.summaries(store.con)
            assert reader.con.execute("SELECT count(*) FROM records").fetchone() == (20,)
            publish(store)  # replaced under a reader, which keeps what it opened
            assert len(queries.summaries(reader.con)) == 2
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_without_a_snapshot_readers_share_the_store_itself(tmp_path: Path, path: Path) -> None:
    with open_writer(path) as store:
        ingest(store, landing_of(tmp_path, A))
    with open_reader(path) as reader, open_reader(path) as second:
        assert reader.path == path
        assert queries.summaries(reader.con) == queries.summaries(second.con)
        with pytest.raises(duckdb.InvalidInputException):
            reader.con.execute("DELETE FROM attempts")


def test_a_missing_store_names_the_next_command(path: Path) -> None:
    with pytest.raises(StoreError, match="fleet store ingest"):
        open_reader(path)
    with pytest.raises(StoreError, match="fleet store ingest"):
        open_writer(path, create=False)
    assert not path.exists()


def test_a_store_of_newer_code_is_refused_by_writers_and_readers(path: Path) -> None:
    with open_writer(path) as store:
        store.con.execute("UPDATE meta SET value = ? WHERE key = 'schema'", [str(SCHEMA + 1)])
    for attempt_it in (open_writer, open_reader):
        with pytest.raises(StoreError) as raised:
            attempt_it(path)
        assert raised.value.where == str(path)
        assert raised.value.key == "schema"
        assert raised.value.expected == f"at most {SCHEMA}"
        assert raised.value.got == str(SCHEMA + 1)


def test_another_database_is_not_taken_for_a_store(path: Path) -> None:
    with duckdb.connect(str(path)) as con:
        con.execute("CREATE TABLE mine(x INTEGER)")
    with pytest.raises(StoreError, match="another DuckDB database"):
        open_writer(path)
    with duckdb.connect(str(path)) as con:
        assert con.execute("SELECT table_name FROM duckdb_tables()").fetchall() == [("mine",)]


@pytest.mark.parametrize("content", [b"", b"text " * 1000, b"DUCK"])
def test_a_file_that_is_no_database_is_refused_and_kept(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    for attempt_it in (open_writer, open_reader):
        with pytest.raises(StoreError, match="a fleet store, got something else"):
            attempt_it(path)
    assert path.read_bytes() == content


def test_a_rebuild_replaces_nothing_but_a_store(tmp_path: Path, path: Path) -> None:
    landing = landing_of(tmp_path, A)
    path.write_text("a file of mine, and not a short one")
    with pytest.raises(StoreError, match="move it away"):
        rebuild(path, landing)
    assert path.read_text().startswith("a file of mine")
    path.unlink()
    with duckdb.connect(str(path)) as con:
        con.execute("CREATE TABLE mine(x INTEGER)")
    with pytest.raises(StoreError, match="another DuckDB database"):
        rebuild(path, landing)
    with duckdb.connect(str(path)) as con:
        assert con.execute("SELECT table_name FROM duckdb_tables()").fetchall() == [("mine",)]


def test_a_damaged_store_is_refused_and_can_be_rebuilt(tmp_path: Path, path: Path) -> None:
    landing = landing_of(tmp_path, A, B)
    with open_writer(path) as store:
        ingest(store, landing)
    data = bytearray(path.read_bytes())
    data[4096:] = bytes(len(data) - 4096)
    path.write_bytes(data)
    with pytest.raises(StoreError, match="rebuild"):
        open_reader(path)
    rebuild(path, landing)
    with open_reader(path) as store:
        assert len(queries.summaries(store.con)) == 2


def test_a_file_of_an_unknown_storage_version_is_refused(path: Path) -> None:
    with open_writer(path):
        pass
    data = bytearray(path.read_bytes())
    data[12:20] = (9999).to_bytes(8, "little")
    path.write_bytes(data)
    with pytest.raises(StoreError, match="fleet store rebuild"):
        open_writer(path)


def test_an_unwritable_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    for place in (tmp_path / "file" / "fleet.duckdb", Path("/proc/fleet.duckdb")):
        with pytest.raises(StoreError, match="--store"):
            open_writer(place)


def test_a_folder_is_not_a_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="--store"):
        open_writer(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(StoreError, match="--store"):
            open_writer(tmp_path / "fleet.duckdb")
    finally:
        tmp_path.chmod(0o700)


def test_a_process_killed_in_mid_ingest_leaves_whole_attempts(tmp_path: Path, path: Path) -> None:
    landing = landing_of(tmp_path, A, B, other_slot(B, "c" * 16))
    killed = subprocess.run(
        [sys.executable, "-c", DIE_IN_MID_INGEST, str(path), str(landing.root)], check=False
    )
    assert killed.returncode == -signal.SIGKILL
    with open_writer(path) as store:
        assert [s.attempt for s in queries.summaries(store.con)] == [A.attempt]
        assert store.con.execute("SELECT count(*) FROM hashes").fetchone() == (10,)
        report = ingest(store, landing)
        assert (report.new, report.unchanged) == (2, 1)
        assert len(queries.summaries(store.con)) == 3


def test_a_rebuild_that_fails_leaves_the_old_store(tmp_path: Path, path: Path) -> None:
    landing = landing_of(tmp_path, A, B)
    with open_writer(path) as store:
        ingest(store, landing)

    def interrupted(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rebuild(path, landing, interrupted)
    with open_writer(path) as store:
        assert len(queries.summaries(store.con)) == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["fleet.duckdb", "landing"]


def test_a_rebuild_renews_the_snapshot(tmp_path: Path, path: Path) -> None:
    landing = landing_of(tmp_path, A)
    with open_writer(path) as store:
        publish(store)
    rebuild(path, landing)
    with open_reader(path) as reader:
        assert reader.path == snapshot_path(path)
        assert len(queries.summaries(reader.con)) == 1


def test_no_extension_is_fetched_from_anywhere(path: Path) -> None:
    with open_writer(path) as store:
        found = store.con.execute(
            "SELECT name, value FROM duckdb_settings() WHERE name LIKE 'auto%known_extensions'"
        ).fetchall()
    assert dict(found) == {
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
    }
