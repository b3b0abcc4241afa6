"""A landing in object storage, from certify to status: two sites, tampering, a network that goes.

Everything goes through the command line and a real S3-compatible server; replays are small and run
in the test's process.
"""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import s3fs

from fleet.errors import AttemptFailed
from fleet.evidence import remote as room
from fleet.evidence.manifest import Manifest
from fleet.evidence.parts import PartWriter
from fleet.evidence.remote import Remote
from fleet.replay.task import ReplayTask
from fleet.schedule import certify
from tests.integration.command_line import fleet
from tests.landing_builder import make_record
from tests.object_store import SECRET, URL, ObjectStore, object_store
from tests.sites import Site, new_site, reason


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    monkeypatch.setattr(room, "WAITS_S", (0.01,))
    with object_store(monkeypatch) as store:
        yield store


@pytest.fixture
def site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[[str], Site]:
    def make(name: str) -> Site:
        return new_site(tmp_path / name, monkeypatch, capfd)

    return make


@pytest.fixture
def home(there: ObjectStore, site: Callable[[str], Site]) -> Site:
    """A site that certified ``toy``."""
    home = site("home")
    code, out, err = home.certify()
    assert (code, "PASS" in out) == (0, True), err
    return home


def attempts_of(there: ObjectStore, contract: str) -> list[str]:
    """Attempts of one contract, from their manifests."""
    names = [name for name in there.names() if name.endswith("/manifest.json")]
    read = [Manifest.from_bytes(there.read(name)) for name in names]
    return [m.attempt for m in read if m.contract == contract]


def entries(there: ObjectStore) -> list[dict[str, Any]]:
    """Every ledger entry, in order."""
    return [json.loads(there.read(n)) for n in there.names() if n.startswith("ledger/")]


def test_another_site_derives_the_same_verdicts_from_the_objects_alone(
    home: Site, site: Callable[[str], Site], there: ObjectStore
) -> None:
    away = site("away")
    code, out, err = away.fleet("store", "rebuild", "--json")
    assert code == 0, err
    assert json.loads(out)["attempts"] == 6
    assert away.status() == home.status()
    assert reason(away.status()).startswith("PASS")
    mirrored = {str(p.relative_to(away.mirror)) for p in away.mirror.rglob("*") if p.is_file()}
    assert {name for name in mirrored if not name.startswith(".mirror/")} == set(there.names())
    assert all((away.mirror / name).read_bytes() == there.read(name) for name in there.names())


def test_a_mirror_holds_what_was_written_and_a_second_pull_fetches_nothing(
    home: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list((home.mirror / ".mirror" / "staging" / "attempts").iterdir()) == []
    fetched: list[str] = []
    fetch = Remote.fetch
    monkeypatch.setattr(
        Remote, "fetch", lambda self, name, to: (fetched.append(name), fetch(self, name, to))
    )
    report = home.ingested()
    assert (fetched, report["unchanged"], report["warnings"]) == ([], 6, [])


@pytest.mark.slow
def test_a_mirror_that_was_deleted_is_pulled_again(home: Site) -> None:
    before = home.status()
    shutil.rmtree(home.mirror)
    assert home.status() == before
    shutil.rmtree(home.mirror / "attempts")
    report = home.ingested()
    assert report["warnings"] == []
    assert home.status() == before


def test_what_was_edited_in_the_mirror_is_fetched_again(home: Site, there: ObjectStore) -> None:
    (part, *_) = home.mirror.glob("attempts/*/part-00000.parquet")
    part.write_bytes(b"edited here")
    assert home.ingested()["warnings"] == []
    assert part.read_bytes() == there.read(str(part.relative_to(home.mirror)))
    assert reason(home.status()).startswith("PASS")


def test_no_credential_lands(home: Site, there: ObjectStore) -> None:
    files = [p for p in home.root.rglob("*") if p.is_file()]
    assert len(files) > 30
    assert [p for p in files if SECRET.encode() in p.read_bytes()] == []
    assert [name for name in there.names() if SECRET.encode() in there.read(name)] == []


@pytest.mark.slow
def test_a_mirror_is_read_as_a_folder_and_never_written_as_one(home: Site) -> None:
    before = home.status()
    as_folder = Site(home.root, home.patch, home.capture, str(home.mirror))
    assert as_folder.status() == before
    code, out, err = as_folder.certify()
    assert (code, out) == (2, "")
    assert "expected a landing folder, got a mirror of object storage" in err


@pytest.mark.slow
def test_a_file_url_is_that_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    home = new_site(tmp_path / "home", monkeypatch, capfd, f"file://{tmp_path}/a%20folder")
    assert home.certify()[0] == 0
    assert (tmp_path / "a folder" / "FORMAT.json").is_file()
    assert reason(home.status()).startswith("PASS")
    assert not (home.root / "cache" / "landings").exists()


@pytest.mark.slow
def test_a_disk_that_is_full_while_pulling_is_no_fault_of_the_network(
    home: Site, site: Callable[[str], Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "here")

    away = site("away")
    s3fs.S3FileSystem.clear_instance_cache()
    monkeypatch.setattr("s3fs.S3FileSystem._get_file", full)
    code, _, err = away.fleet("store", "ingest")
    assert (code, "No space left on device: here" in err) == (3, True)
    assert not (away.mirror / "ledger").exists()


# what somebody else does to objects


@pytest.mark.parametrize("file", ["part-00000.parquet", "manifest.json"])
@pytest.mark.parametrize("deed", ["changed", "vanished"])
def test_an_object_that_is_not_what_was_mirrored_is_evidence_altered(
    home: Site, there: ObjectStore, site: Callable[[str], Site], file: str, deed: str
) -> None:
    attempt = attempts_of(there, "toy")[0]
    name = f"attempts/{attempt}/{file}"
    before = (home.mirror / name).read_bytes()
    if deed == "changed":
        there.overwrite(name, before[:-1] + b"!")
    else:
        there.delete(name)
    words = f"{name} {deed} {'in' if deed == 'changed' else 'from'} {URL} after it was mirrored"
    assert home.ingested()["warnings"] == [words]
    found = home.status()
    assert found["code"] == 3
    assert "VOID(evidence-altered)" in reason(found)
    assert words in reason(found)
    assert (home.mirror / name).read_bytes() == before, "what was seen first stays"
    assert home.fleet("store", "rebuild")[0] == 0
    assert home.status() == found
    away = site("away")
    away.ingested()
    assert "VOID(evidence-altered)" in reason(away.status())


@pytest.mark.slow
def test_a_last_ledger_entry_that_is_rewritten_well_is_noticed_by_who_saw_the_first(
    home: Site, there: ObjectStore
) -> None:
    name = [name for name in there.names() if name.startswith("ledger/")][-1]
    entry = json.loads(there.read(name))
    assert entry["kind"] == "closed"
    there.overwrite(name, there.read(name).replace(b'"seq":', b'"seq": '))
    home.ingested()
    assert f"{name} changed in {URL}" in reason(home.status())


@pytest.mark.slow
def test_an_object_that_comes_beside_accepted_ones_voids_its_attempt(
    home: Site, there: ObjectStore
) -> None:
    attempt = attempts_of(there, "toy")[0]
    part = there.read(f"attempts/{attempt}/part-00000.parquet")
    there.overwrite(f"attempts/{attempt}/part-00001.parquet", part)
    home.ingested()
    assert "VOID(evidence-altered)" in reason(home.status())
    assert "parts on disk" in reason(home.status())


@pytest.mark.slow
def test_names_that_no_landing_has_are_left_where_they_are(home: Site, there: ObjectStore) -> None:
    there.overwrite("attempts/a/deep/er", b"x")
    there.overwrite("attempts/../../outside", b"x")
    there.overwrite("attempts/.hidden/file", b"x")
    there.overwrite("notes.txt", b"x")
    assert home.ingested()["attempts"] == 6
    assert not (home.mirror / "notes.txt").exists()
    assert not list(home.root.rglob("outside"))
    assert not list(home.root.rglob("er"))


@pytest.mark.slow
def test_a_difference_stays_one_when_its_evidence_is_altered_after_it_was_mirrored(
    home: Site, there: ObjectStore
) -> None:
    racy = attempts_of(there, "control-racy-synthetic")[0]
    name = f"attempts/{racy}/part-00000.parquet"

    def verdict() -> str:
        rows = home.status()["contracts"]
        (word,) = [r["verdict"] for r in rows if r["contract"] == "control-racy-synthetic"]
        return str(word)

    assert verdict() == "FAIL"
    there.overwrite(name, b"nothing to see here")
    assert home.ingested()["warnings"] != []
    assert verdict() == "FAIL"


# a network that goes


@pytest.mark.slow
def test_a_landing_that_does_not_answer_stops_before_anything_is_started(
    there: ObjectStore, site: Callable[[str], Site]
) -> None:
    home = site("home")
    there.stop()
    code, out, err = home.certify()
    assert (code, out, err.count("error")) == (2, "", 1)
    assert f"{URL}: expected an object store that answers" in err
    assert not (home.root / "var").exists()
    there.start()
    assert there.names() == []


def test_a_server_that_goes_down_in_the_middle_ends_the_campaign_with_one_error(
    there: ObjectStore, site: Callable[[str], Site]
) -> None:
    home = site("home")
    code, out, err = home.certify(script={4: lambda _: there.stop()})
    assert (code, out, err.count("error: ")) == (3, "", 1)
    assert f"the replays landed in {URL}, but the store could not take them in" in err
    assert err.endswith(f"  then: fleet store ingest --store var/fleet.duckdb --landing {URL}\n")
    there.start()
    report = home.ingested()
    assert report["warnings"] == []
    assert "VOID" in reason(home.status())
    away = site("away")
    away.ingested()
    assert away.status() == home.status()
    assert home.certify()[0] == 0
    assert reason(home.status()).startswith("PASS")


@pytest.mark.slow
def test_a_campaign_that_stopped_is_no_usage_error_when_the_server_is_back(
    there: ObjectStore, site: Callable[[str], Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    after = certify.ingest_after

    def back_by_then(*places: Any) -> None:
        there.start()
        after(*places)

    home = site("home")
    monkeypatch.setattr(certify, "ingest_after", back_by_then)
    code, out, err = home.certify(script={4: lambda _: there.stop()})
    assert (code, out, err.count("error: ")) == (3, "", 1)
    assert f"could not go on: {URL}: expected an object store that answers" in err


@pytest.mark.slow
def test_a_store_ingest_without_a_network_is_one_error_and_changes_nothing(
    home: Site, there: ObjectStore
) -> None:
    before = home.status()
    there.stop()
    code, out, err = home.fleet("store", "ingest")
    assert (code, out, err.count("error")) == (2, "", 1)
    assert home.status() == before, "readers answer from the store"


@pytest.mark.slow
def test_a_replay_that_could_not_be_shipped_failed_and_is_tried_again(
    there: ObjectStore, site: Callable[[str], Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[str] = []

    def cut_off(task: ReplayTask) -> None:
        lost.append(task.attempt)
        monkeypatch.setattr("fleet.replay.ship.Remote", lambda _: Remote("s3://not-for-this-node"))

    def back(_: ReplayTask) -> None:
        monkeypatch.setattr("fleet.replay.ship.Remote", Remote)

    home = site("home")
    code, _, err = home.certify(script={4: cut_off, 5: back})
    assert code == 0, err
    ends = [e for e in entries(there) if e["attempt"] == lost[0]]
    assert [(e["kind"], e["body"].get("state")) for e in ends][-1] == ("given_up", "FAILED")
    assert ends[-1]["body"]["cause"]["code"] == "landing-unreachable"
    assert "s3://not-for-this-node: expected a bucket" in ends[-1]["body"]["cause"]["text"]
    assert reason(home.status()).startswith("PASS")


@pytest.mark.slow
def test_rows_of_a_killed_replay_are_shipped_by_who_watched_it(
    there: ObjectStore, site: Callable[[str], Site]
) -> None:
    killed: list[str] = []

    def killed_after_a_part(task: ReplayTask) -> None:
        killed.append(task.attempt)
        writer = PartWriter(task.folder)
        row = make_record(task.attempt, "current", 0, "s0", logits="of another process")
        writer.add([row])
        writer.flush()
        raise AttemptFailed("killed", "signal 9")

    home, away = site("home"), site("away")
    assert home.certify("--retries", "0", script={4: killed_after_a_part})[0] == 3
    assert f"attempts/{killed[0]}/part-00000.parquet" in there.names()
    away.ingested()
    assert away.status() == home.status()
    assert "killed" in reason(away.status())


@pytest.mark.ray
@pytest.mark.slow
def test_processes_of_a_cluster_ship_what_they_landed(
    there: ObjectStore, site: Callable[[str], Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = site("home")
    monkeypatch.setenv("FLEET_CACHE", str(home.root / "cache"))
    done = fleet(home.root, "certify", "toy", "--landing", URL)
    assert done.returncode == 0, done.stderr
    away = site("away")
    away.ingested()
    assert away.status() == home.status()
    assert reason(away.status()).startswith("PASS")
    staged = home.mirror / ".mirror" / "staging" / "attempts"
    assert list(staged.iterdir()) == [], "the watcher moved them into the mirror"
    logs = [name for name in there.names() if name.endswith("/stdout.txt")]
    assert len(logs) == 6
    assert [name for name in there.names() if SECRET.encode() in there.read(name)] == []
    assert SECRET not in done.stdout + done.stderr


@pytest.mark.slow
def test_who_reads_needs_no_right_to_write(
    home: Site, site: Callable[[str], Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: Any) -> None:
        raise AssertionError("a reader wrote")

    monkeypatch.setattr(Remote, "create", denied)
    monkeypatch.setattr(Remote, "claim", denied)
    away = site("away")
    away.ingested()
    assert away.status() == home.status()
