"""Object storage: created once by the server's word, listed, fetched, one error when down."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from fleet.cli import run
from fleet.errors import LandingUnreachable, StoreError, UsageError
from fleet.evidence import remote as room
from fleet.evidence.landing import FORMAT, Landing
from fleet.evidence.ledger import Ledger, read_chain
from fleet.evidence.mirror import site
from fleet.evidence.remote import Remote, require_url
from tests.object_store import URL, ObjectStore, object_store


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    monkeypatch.setattr(room, "WAITS_S", (0.01,))
    with object_store(monkeypatch) as store:
        yield store


@pytest.fixture
def landing(tmp_path: Path, there: ObjectStore) -> Landing:
    return Landing.open(tmp_path / "mirror", create=True, remote=Remote(URL))


def test_an_object_is_created_once(there: ObjectStore) -> None:
    remote = Remote(URL)
    remote.create("a/b", b"first")
    with pytest.raises(FileExistsError, match="another writer"):
        remote.create("a/b", b"second")
    assert there.read("a/b") == b"first"


def test_a_creation_whose_answer_was_lost_is_not_another_writer(there: ObjectStore) -> None:
    there.overwrite("a/b", b"mine")
    Remote(URL).create("a/b", b"mine")


def test_the_condition_is_decided_by_the_server_and_not_by_looking_first(
    there: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = []
    call = type(there.fs)._call_s3

    async def spy(self: object, method: str, *args: object, **kwargs: object) -> object:
        sent.append((method, kwargs.get("IfNoneMatch")))
        return await call(self, method, *args, **kwargs)

    monkeypatch.setattr(type(there.fs), "_call_s3", spy)
    Remote(URL).create("a/b", b"1")
    assert sent == [("put_object", "*")]


def test_a_server_that_replaces_objects_is_refused(
    there: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = type(there.fs)._call_s3

    async def forgetful(self: object, method: str, *args: object, **kwargs: object) -> object:
        kwargs.pop("IfNoneMatch", None)
        return await call(self, method, *args, **kwargs)

    monkeypatch.setattr(type(there.fs), "_call_s3", forgetful)
    with pytest.raises(LandingUnreachable, match=r"If-None-Match.*one that replaced an object"):
        Landing.open(Path("never"), create=True, remote=Remote(URL))
    assert not Path("never").exists()


def test_a_listing_is_of_one_folder_and_of_objects_only(there: ObjectStore) -> None:
    remote = Remote(URL)
    for name in ("ledger/c1/0.json", "ledger/c10/0.json", "attempts/a/part"):
        remote.create(name, name.encode())
    assert remote.listing("ledger/c1/").keys() == {"ledger/c1/0.json"}
    assert remote.listing("nothing/") == {}
    assert len(remote.listing()) == 3
    before = remote.listing("attempts/")["attempts/a/part"]
    there.overwrite("attempts/a/part", b"changed, as long")
    assert remote.listing("attempts/")["attempts/a/part"] != before


def test_what_is_gone_can_be_removed_again(there: ObjectStore) -> None:
    remote = Remote(URL)
    remote.create("a", b"")
    remote.remove(["a", "a", "b"])
    assert there.names() == []


def test_a_server_that_is_down_is_one_error_after_bounded_tries(there: ObjectStore) -> None:
    there.stop()
    with pytest.raises(LandingUnreachable) as raised:
        Remote(URL).read("a")
    assert raised.value.where == URL
    assert raised.value.got.startswith("EndpointConnectionError")
    assert "credentials (AWS_..., FSSPEC_S3_...)" in raised.value.fix


def test_a_bucket_that_is_not_there_is_said_so(there: ObjectStore) -> None:
    remote = Remote("s3://nowhere-to-be-found/site")
    for ask in (remote.listing, lambda: remote.create("a", b"")):
        with pytest.raises(LandingUnreachable, match="expected a bucket that exists"):
            ask()


def test_nobody_to_let_in_is_not_tried_again(
    there: ObjectStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(room, "WAITS_S", (100.0,))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    type(there.fs).clear_instance_cache()
    with pytest.raises(LandingUnreachable, match="NoCredentials"):
        Remote(URL).create("a", b"")


def test_a_backend_that_is_not_installed_is_a_usage_error_with_its_command(
    there: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(import_module("fsspec.registry")._registry, "s3")
    with pytest.raises(UsageError, match=r"pip install 'fleet\[s3\]', here and on every node"):
        Remote(URL).read("a")


# the landing


def test_the_ledger_is_written_there_first_and_then_here(
    landing: Landing, there: ObjectStore
) -> None:
    Ledger(landing, "c1").append("campaign")
    (entry,) = read_chain(landing, "c1")
    assert there.read("ledger/c1/000000.json") == entry.to_bytes()
    there.stop()
    with pytest.raises(LandingUnreachable):
        Ledger(landing, "c2").append("campaign")
    assert not (landing.ledger / "c2").exists()


def test_two_drivers_of_two_sites_cannot_write_one_chain(
    landing: Landing, tmp_path: Path, there: ObjectStore
) -> None:
    other = Landing.open(tmp_path / "elsewhere", create=True, remote=Remote(URL))
    first, second = Ledger(landing, "c1"), Ledger(other, "c1")
    first.append("campaign", driver="1")
    with pytest.raises(FileExistsError, match="another writer"):
        second.append("campaign", driver="2")
    assert read_chain(other, "c1") == []


def test_a_landing_of_another_format_is_refused(tmp_path: Path, there: ObjectStore) -> None:
    there.overwrite("FORMAT.json", b'{"format":2}')
    with pytest.raises(StoreError, match="use the fleet version that wrote it"):
        Landing.open(tmp_path / "mirror", create=True, remote=Remote(URL))
    assert FORMAT == b'{"format":1}'


# what --landing may be


def test_a_landing_is_a_folder_or_a_url(tmp_path: Path) -> None:
    assert site("var/landing", tmp_path) == (Path("var/landing"), None)
    assert site("file:///var/my%20landing", tmp_path) == (Path("/var/my landing"), None)
    folder, remote = site("s3://bucket/a/b/", tmp_path)
    assert (folder.parent, remote) == (tmp_path / "landings", Remote("s3://bucket/a/b"))
    assert site("s3://bucket/a/c", tmp_path)[0] != folder
    assert site("s3://bucket", tmp_path)[1] == Remote("s3://bucket")


@pytest.mark.parametrize(
    "url", ["gs://b/p", "memory://x", "ftp://h/p", "file://host/p", "file:relative://x"]
)
def test_a_backend_that_cannot_create_exclusively_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="file:///FOLDER"):
        site(url, tmp_path)


def test_every_verb_refuses_such_a_landing(capfd: pytest.CaptureFixture[str]) -> None:
    for argv in (["status"], ["certify", "toy"], ["store", "ingest"], ["logs", "a"]):
        assert run([*argv, "--landing", "gs://bucket/p"]) == 2
        assert capfd.readouterr().err.startswith("error: --landing: expected a folder, file:///")


@pytest.mark.parametrize(
    "url",
    [
        "s3://key:hunter2@bucket/p",
        "s3://bucket/p?secret=hunter2",
        "s3://",
        "s3://b//hunter2",
        "s3:///p",
    ],
)
def test_a_url_holds_nothing_but_bucket_and_prefix_and_is_not_repeated(url: str) -> None:
    with pytest.raises(UsageError) as raised:
        require_url(url)
    assert "hunter2" not in str(raised.value)
