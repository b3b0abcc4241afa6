"""Packed sample ids answer as the list of them does."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.contract.sample_ids import SampleIds, held_once
from fleet.evidence.landing import Landing
from fleet.evidence.ledger import Ledger, chain_folder, read_chain

IDS = ["q1", "", "größe", "😀", "it's", "q1"]


@pytest.mark.parametrize("ids", [[], ["a"], IDS])
def test_packed_ids_are_read_as_the_list_is(ids: list[str]) -> None:
    packed = SampleIds(ids)
    assert (list(packed), len(packed), repr(packed)) == (ids, len(ids), repr(ids))
    assert (packed[1:], packed[::-2], packed[:3]) == (ids[1:], ids[::-2], ids[:3])
    assert [packed[i] for i in range(-len(ids), len(ids))] == ids + ids
    assert bool(packed) == bool(ids)
    for outside in (len(ids), -len(ids) - 1):
        with pytest.raises(IndexError):
            packed[outside]


def test_packed_ids_equal_the_same_ids_and_no_others() -> None:
    assert SampleIds(IDS) == SampleIds(tuple(IDS)) == IDS
    assert SampleIds(IDS) == tuple(IDS)
    assert SampleIds(["ab", "c"]) != SampleIds(["a", "bc"])
    assert SampleIds(["a"]) != ["a", "b"]
    assert SampleIds(["a"]) != "a"


def test_the_ledger_writes_packed_ids_as_the_list_and_reads_them_back_packed(
    tmp_path: Path,
) -> None:
    listed, packed = Landing(tmp_path / "listed"), Landing(tmp_path / "packed")
    written = Ledger(listed, "c").append("planned", "a", sample_ids=IDS)
    again = Ledger(packed, "c").append("planned", "a", sample_ids=SampleIds(IDS))
    assert again.body == written.body
    text = b'"body":{"sample_ids":["q1","","gr\xc3\xb6\xc3\x9fe","\xf0\x9f\x98\x80","it\'s","q1"]}'
    for landing in (listed, packed):
        assert text in (chain_folder(landing, "c") / "000000.json").read_bytes()
        (entry,) = read_chain(landing, "c")
        assert entry.body["sample_ids"] == IDS
        assert isinstance(entry.body["sample_ids"], SampleIds)
        assert entry.to_bytes() == (chain_folder(landing, "c") / "000000.json").read_bytes()


def test_replays_of_one_data_set_share_its_ids(tmp_path: Path) -> None:
    landing = Landing(tmp_path)
    for campaign in "cd":
        ledger = Ledger(landing, campaign)
        for attempt, ids in (("a", IDS), ("b", IDS), ("c", IDS[1:])):
            ledger.append("planned", attempt, sample_ids=ids)
    dataset = held_once(iter(IDS))
    for campaign in "cd":
        first, second, third = (e.body["sample_ids"] for e in read_chain(landing, campaign))
        assert first is second is dataset
        assert third == IDS[1:]
