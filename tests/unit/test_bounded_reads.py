"""Reads that stay small however much landed: margins of one replay, summaries some at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.errors import StoreError
from fleet.evidence.landing import Landing
from fleet.store import ahead, queries
from fleet.store.ahead import Ahead
from fleet.store.ingest import ingest
from fleet.store.margins import margins_of
from fleet.store.open import Store, open_writer
from tests.landing_builder import AttemptSpec, build_landing

NAMES = [f"{letter * 4}{'0' * 12}" for letter in "abcdef"]
SPECS = [
    AttemptSpec(name, contract=f"c{i // 2}", slot=i, num_samples=6, rows_per_part=4)
    for i, name in enumerate(NAMES)
]


@pytest.fixture
def landed(tmp_path: Path) -> Iterator[tuple[Store, Landing]]:
    landing = build_landing(tmp_path / "landing", SPECS)
    with open_writer(tmp_path / "store.duckdb") as store:
        ingest(store, landing)
        yield store, landing


def test_margins_are_of_the_attempt_that_was_asked_for(landed: tuple[Store, Landing]) -> None:
    store, landing = landed
    rows = margins_of(store.con, landing, NAMES[0])
    assert len(rows) == 12
    assert {(r.ulps, r.logits, r.exact_tie) for r in rows} == {(64, 0.5, False)}
    assert margins_of(store.con, landing, "no such attempt") == []


def test_no_part_is_opened_once_enough_rows_were_read(landed: tuple[Store, Landing]) -> None:
    store, landing = landed
    first, second, last = landing.parts(NAMES[0])
    last.unlink()
    second.write_bytes(b"damaged")
    assert len(margins_of(store.con, landing, NAMES[0], enough=4)) == 4
    with pytest.raises(StoreError, match="the parts that were ingested"):
        margins_of(store.con, landing, NAMES[0], enough=5)
    first.unlink()
    with pytest.raises(StoreError):
        margins_of(store.con, landing, NAMES[0], enough=1)


@pytest.mark.parametrize("at_once", [1, 3, 4, 100])
def test_summaries_ahead_are_those_of_each_contract(
    landed: tuple[Store, Landing], monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    store, _ = landed
    monkeypatch.setattr(ahead, "AT_ONCE", at_once)
    ids = [row.execution_id for row in queries.contracts(store.con)]
    asked: list[list[str]] = []
    real = queries.summaries_by_contract

    def counted(con: object, wanted: list[str]) -> dict[str, list[queries.AttemptSummary]]:
        asked.append(list(wanted))
        return real(store.con, wanted)

    monkeypatch.setattr(queries, "summaries_by_contract", counted)
    reader = Ahead(store.con, [*ids, ids[0]])
    for each in ids:
        assert reader.summaries(each) == queries.summaries(store.con, execution_id=each)
    assert len(asked) == {1: 3, 3: 3, 4: 2, 100: 1}[at_once]
    assert reader.summaries("sha256:" + "f" * 64) == []
