"""The landing folder: write-once objects, the ledger's chains, Parquet parts, the manifest."""

from __future__ import annotations

import errno
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from fleet.contract.canonical import canonical_json, sha256, to_text
from fleet.errors import EvidenceError, StoreError
from fleet.evidence import ledger
from fleet.evidence.landing import Landing, file_sha256, write_once
from fleet.evidence.ledger import START, Ledger, landing_head, read_chain
from fleet.evidence.manifest import MANIFEST_FORMAT, Manifest
from fleet.evidence.parts import PartWriter
from fleet.evidence.records import SCHEMA
from tests.landing_builder import AttemptSpec, build_landing, make_record

A = AttemptSpec("a" * 16)


@pytest.fixture
def landing(tmp_path: Path) -> Landing:
    return Landing.open(tmp_path / "landing", create=True)


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


# write_once


def test_an_object_is_written_once_and_never_changed(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "object"
    write_once(path, b"first")
    with pytest.raises(FileExistsError):
        write_once(path, b"second")
    assert path.read_bytes() == b"first"
    assert names(path.parent) == ["object"]


def test_a_write_that_the_disk_refuses_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_once(tmp_path / "object", b"data")
    assert names(tmp_path) == []


def test_a_file_digest_is_that_of_its_bytes(tmp_path: Path) -> None:
    data = bytes(range(256)) * 20000  # more than one chunk of 4 MiB
    (tmp_path / "f").write_bytes(data)
    assert file_sha256(tmp_path / "f") == to_text(sha256(data))


# opening


def test_a_landing_that_is_not_there_is_made_only_when_asked(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="expected a landing folder, got none"):
        Landing.open(tmp_path / "x")
    assert names(tmp_path) == []
    Landing.open(tmp_path / "x", create=True)
    assert json.loads((tmp_path / "x" / "FORMAT.json").read_bytes()) == {"format": 1}
    assert Landing.open(tmp_path / "x").root == tmp_path / "x"


@pytest.mark.parametrize("text", ['{"format": 2}', '{"format": "1"}', "{}", "[1]", "no json", ""])
def test_a_landing_of_another_format_is_refused_and_left_alone(tmp_path: Path, text: str) -> None:
    (tmp_path / "FORMAT.json").write_text(text)
    for create in (False, True):
        with pytest.raises(StoreError, match="landing format 1") as raised:
            Landing.open(tmp_path, create=create)
        assert "fleet version that wrote it" in raised.value.fix
    assert (tmp_path / "FORMAT.json").read_text() == text


def test_a_landing_that_is_a_file_or_below_one_is_one_clear_message(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StoreError, match="a writable folder") as raised:
            Landing.open(root, create=True)
        assert "--landing" in raised.value.fix
    assert (tmp_path / "file").read_text() == "mine"


def test_a_second_writer_of_a_contract_changes_nothing(landing: Landing) -> None:
    digest = sha256(b"id")
    landing.write_contract(digest, {"name": "a"})
    landing.write_contract(digest, {"name": "b"})
    assert json.loads(landing.contract(digest).read_bytes()) == {"name": "a"}


# ledger


def chain(landing: Landing) -> Ledger:
    writer = Ledger(landing, "c1")
    writer.append("campaign", contracts=[], argv=[])
    writer.append("planned", "a" * 16, slot=0)
    writer.append("closed")
    return writer


def test_a_chain_reads_back_and_each_entry_holds_the_digest_of_the_one_before(
    landing: Landing,
) -> None:
    chain(landing)
    entries = read_chain(landing, "c1")
    assert [(e.seq, e.kind) for e in entries] == [(0, "campaign"), (1, "planned"), (2, "closed")]
    assert [e.previous for e in entries] == [
        START,
        *(to_text(sha256(e.to_bytes())) for e in entries[:-1]),
    ]
    assert ledger.chain_head(landing, "c1") == to_text(sha256(entries[-1].to_bytes()))


def test_every_entry_is_whole_json_on_disk(landing: Landing) -> None:
    chain(landing)
    for path in sorted((landing.ledger / "c1").iterdir()):
        data = path.read_bytes()
        assert canonical_json(json.loads(data)) == data


def edit(path: Path, **changes: Any) -> None:
    path.write_bytes(canonical_json(json.loads(path.read_bytes()) | changes))


def test_an_edited_entry_breaks_the_chain_after_it(landing: Landing) -> None:
    chain(landing)
    edit(landing.ledger / "c1" / "000001.json", at_s=1.0)
    with pytest.raises(EvidenceError, match="evidence-altered"):
        read_chain(landing, "c1")


def test_an_edited_last_entry_shows_in_the_head_of_the_landing(landing: Landing) -> None:
    chain(landing)
    before = landing_head(landing)
    edit(landing.ledger / "c1" / "000002.json", at_s=1.0)
    read_chain(landing, "c1")
    assert landing_head(landing) != before


def test_a_missing_entry_is_a_gap(landing: Landing) -> None:
    chain(landing)
    (landing.ledger / "c1" / "000001.json").unlink()
    with pytest.raises(EvidenceError, match="ledger-gap"):
        read_chain(landing, "c1")


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", b'{"campaign": "c1"}'])
def test_bytes_that_are_no_entry_are_altered_evidence(landing: Landing, data: bytes) -> None:
    chain(landing)
    (landing.ledger / "c1" / "000002.json").write_bytes(data)
    with pytest.raises(EvidenceError, match="evidence-altered"):
        read_chain(landing, "c1")


def test_an_entry_that_is_not_canonical_or_of_another_format_is_altered(landing: Landing) -> None:
    chain(landing)
    path = landing.ledger / "c1" / "000002.json"
    good = path.read_bytes()
    path.write_bytes(good + b"\n")
    with pytest.raises(EvidenceError, match="canonical form"):
        read_chain(landing, "c1")
    path.write_bytes(good)
    edit(path, format=2)
    with pytest.raises(EvidenceError, match="ledger format 2"):
        read_chain(landing, "c1")


def test_an_entry_of_another_campaign_is_refused(landing: Landing) -> None:
    chain(landing)
    edit(landing.ledger / "c1" / "000002.json", campaign="c2")
    with pytest.raises(EvidenceError, match="ledger-gap"):
        read_chain(landing, "c1")


def test_two_drivers_cannot_write_one_chain(landing: Landing) -> None:
    chain(landing)
    with pytest.raises(FileExistsError):
        Ledger(landing, "c1").append("campaign")


def test_the_head_covers_every_campaign_and_not_their_order(landing: Landing) -> None:
    empty = landing_head(landing)
    chain(landing)
    one = landing_head(landing)
    Ledger(landing, "c0").append("campaign")
    assert len({empty, one, landing_head(landing)}) == 3
    assert ledger.campaigns(landing) == ["c0", "c1"]


def test_an_attempt_without_an_end_is_found(landing: Landing) -> None:
    writer = chain(landing)
    writer.append("planned", "b" * 16)
    writer.append("accepted", "b" * 16)
    ends = [(attempt, end and end.kind) for attempt, end in ledger.ends(read_chain(landing, "c1"))]
    assert ends == [("a" * 16, None), ("b" * 16, "accepted")]


# parts


def records(count: int) -> list[Any]:
    return [make_record("x", "current", i, f"s{i}") for i in range(count)]


def test_parts_land_as_rows_come_and_the_rest_at_the_flush(tmp_path: Path) -> None:
    writer = PartWriter(tmp_path, rows_per_part=2)
    for record in records(5):
        writer.add([record])
    assert names(tmp_path) == ["part-00000.parquet", "part-00001.parquet"]
    writer.flush()
    writer.flush()
    assert [part.rows for part in writer.parts] == [2, 2, 1]
    for part in writer.parts:
        path = tmp_path / part.name
        assert (part.num_bytes, part.sha256) == (path.stat().st_size, file_sha256(path))
        schema = pq.read_schema(path)
        assert (schema.equals(SCHEMA), schema.metadata) == (True, SCHEMA.metadata)


def test_a_row_does_not_wait_longer_than_told(tmp_path: Path) -> None:
    writer = PartWriter(tmp_path, rows_per_part=100, seconds_per_part=0.0)
    writer.add(records(1))
    assert names(tmp_path) == ["part-00000.parquet"]


def test_an_attempt_is_never_resumed(tmp_path: Path) -> None:
    first = PartWriter(tmp_path)
    first.add(records(1))
    first.flush()
    second = PartWriter(tmp_path)
    second.add(records(2))
    with pytest.raises(EvidenceError, match="another process wrote into this attempt"):
        second.flush()
    assert pq.read_metadata(tmp_path / "part-00000.parquet").num_rows == 1


def test_a_null_never_lands(tmp_path: Path) -> None:
    writer = PartWriter(tmp_path)
    writer.add([replace(records(1)[0], raw_answer=None)])
    with pytest.raises((ValueError, AttributeError)):
        writer.flush()
    assert names(tmp_path) == []


# manifest


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    built = build_landing(tmp_path / "built", [A])
    return Manifest.from_bytes(built.manifest(A.attempt).read_bytes())


def test_a_manifest_reads_back_as_itself(manifest: Manifest) -> None:
    again = Manifest.from_bytes(manifest.to_bytes())
    assert again == manifest
    assert again.digest == sha256(manifest.to_bytes())


def altered(manifest: Manifest, **changes: Any) -> bytes:
    return canonical_json(json.loads(manifest.to_bytes()) | changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"format": MANIFEST_FORMAT - 1},
        {"format": MANIFEST_FORMAT + 1},
        {"format": None},
        {"unknown": 1},
        {"unit": []},
        {"freshness": "fresh"},
        {"slot": "0"},
        {"slot": True},
        {"state": None},
        {"traced": 0},
        {"cause": {"code": "a new word", "text": "x", "details": {}}},
        {"process": {"pid": 1}},
        {"parts": [{"name": "part-00000.parquet"}]},
        {"parts": 3},
    ],
    ids=lambda changes: ",".join(f"{k}={v}"[:30] for k, v in changes.items()),
)
def test_a_manifest_that_is_none_is_altered_evidence(
    manifest: Manifest, changes: dict[str, Any]
) -> None:
    with pytest.raises(EvidenceError, match="evidence-altered"):
        Manifest.from_bytes(altered(manifest, **changes))


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"null", b"\xff\xfe"])
def test_other_bytes_are_no_manifest(data: bytes) -> None:
    with pytest.raises(EvidenceError, match="evidence-altered"):
        Manifest.from_bytes(data)


def test_a_missing_key_is_named(manifest: Manifest) -> None:
    raw = json.loads(manifest.to_bytes())
    del raw["roots"]
    with pytest.raises(EvidenceError, match=re.escape("['roots']")):
        Manifest.from_bytes(canonical_json(raw))
