"""Two attempts side by side: what counts as a difference, and what never does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.errors import StoreError
from fleet.evidence.landing import Landing
from fleet.evidence.records import SCHEMA, Record
from fleet.evidence.rows import rows
from fleet.evidence.states import Cause
from fleet.store import pairs
from fleet.store.first_difference import first_difference
from fleet.store.hashes import StoredPart, load_hashes
from fleet.store.ingest import ingest
from fleet.store.open import Store, open_writer
from tests.landing_builder import (
    AttemptSpec,
    Edit,
    build_landing,
    cut,
    null_column,
    other_row,
    other_slot,
    remake,
    rewrite_part,
)

A = AttemptSpec("a" * 16)
LOST = {"ends": "given-up", "state": "LOST", "cause": Cause("node-unreachable", "no answer")}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_writer(tmp_path / "fleet.duckdb") as opened:
        yield opened


def pair(tmp_path: Path, edit: Edit, **changes: object) -> Landing:
    b = other_slot(A, "b" * 16, edit=edit, **changes)
    return build_landing(tmp_path / "landing", [A, b])


def differing(store: Store, landing: Landing) -> list[tuple[str, str]]:
    found = pairs.differing_rows(store.con, landing, "a" * 16, "b" * 16)
    return [(ours["arm"], ours["sample_id"]) for ours, _ in found]


def counts(store: Store) -> pairs.Counts:
    return pairs.pair_counts(store.con, "a" * 16, "b" * 16)


def test_equal_attempts_agree_in_every_grade(store: Store, tmp_path: Path) -> None:
    landing = pair(tmp_path, lambda records: records)
    ingest(store, landing)
    exact = {"prediction": (5, 5), "tokens": (5, 5), "logits": (5, 5), "both_unparsed": (0, 5)}
    assert counts(store) == {"controlled": exact, "current": exact}
    assert differing(store, landing) == []
    assert pairs.only_in(store.con, "a" * 16, "b" * 16) == []


def test_counts_are_of_a_grades_own_fields(store: Store, tmp_path: Path) -> None:
    landing = pair(tmp_path, other_row(7, logits="other"))
    ingest(store, landing)
    found = counts(store)["current"]
    assert (found["logits"], found["tokens"], found["prediction"]) == ((4, 5), (5, 5), (5, 5))
    assert differing(store, landing) == [("current", "s00002")]


def test_wide_rows_come_whole_and_in_dataset_order(store: Store, tmp_path: Path) -> None:
    def every_other(records: list[Record]) -> list[Record]:
        return [remake(r, tokens=(8, 8)) if i % 2 else r for i, r in enumerate(records)]

    landing = pair(tmp_path, every_other)
    ingest(store, landing)
    found = list(pairs.differing_rows(store.con, landing, "a" * 16, "b" * 16))
    order = [(ours["position"], ours["arm"]) for ours, _ in found]
    assert order == [
        (0, "current"),
        (1, "controlled"),
        (2, "current"),
        (3, "controlled"),
        (4, "current"),
    ]
    landed = {
        (row["arm"], row["sample_id"]): row for row in rows(landing.parts("b" * 16), in_order=True)
    }
    for ours, theirs in found:
        assert theirs == landed[theirs["arm"], theirs["sample_id"]]
        assert set(ours) == set(SCHEMA.names)
        assert (ours["attempt"], theirs["attempt"]) == ("a" * 16, "b" * 16)


def test_row_order_is_no_difference(store: Store, tmp_path: Path) -> None:
    landing = pair(tmp_path, lambda records: records[::-1], **LOST)
    ingest(store, landing)
    assert differing(store, landing) == []
    assert first_difference(landing.parts("a" * 16), landing.parts("b" * 16)) is None


def test_another_position_or_batch_is_a_difference(store: Store, tmp_path: Path) -> None:
    def moved(records: list[Record]) -> list[Record]:
        return [replace(records[0], batch_ordinal=9), replace(records[1], position=7), *records[2:]]

    landing = pair(tmp_path, moved, **LOST)
    ingest(store, landing)
    assert differing(store, landing) == [("controlled", "s00000"), ("controlled", "s00001")]


def test_a_null_is_neither_equal_nor_different(store: Store, tmp_path: Path) -> None:
    landing = pair(tmp_path, lambda records: records, **LOST)
    for part in landing.parts("b" * 16):
        null_column(part, "tokens_sha256")
    ingest(store, landing)
    assert counts(store)["current"]["tokens"] == (0, 5)
    assert counts(store)["current"]["logits"] == (5, 5)
    assert differing(store, landing) == []
    assert first_difference(landing.parts("a" * 16), landing.parts("b" * 16)) is None


def test_null_against_null_is_not_exact(store: Store, tmp_path: Path) -> None:
    a = replace(A, **LOST)
    landing = build_landing(tmp_path / "landing", [a, other_slot(a, "b" * 16)])
    for part in [*landing.parts("a" * 16), *landing.parts("b" * 16)]:
        null_column(part, "logits_sha256")
    ingest(store, landing)
    assert counts(store)["current"]["logits"] == (0, 5)


def test_a_sample_of_one_side_only_is_listed_and_not_counted(store: Store, tmp_path: Path) -> None:
    landing = pair(tmp_path, lambda records: records[:8], **LOST)
    ingest(store, landing)
    missing = [("current", "s00003"), ("current", "s00004")]
    assert pairs.only_in(store.con, "a" * 16, "b" * 16) == missing
    assert pairs.only_in(store.con, "b" * 16, "a" * 16) == []
    assert counts(store)["current"]["tokens"] == (3, 3)


def test_a_doubled_sample_is_exact_only_when_both_rows_are(store: Store, tmp_path: Path) -> None:
    def doubled(records: list[Record]) -> list[Record]:
        return [records[0], remake(records[0], tokens=(9,)), records[1], *records[1:]]

    landing = pair(tmp_path, doubled, **LOST)
    ingest(store, landing)
    assert counts(store)["controlled"]["tokens"] == (4, 5)
    assert differing(store, landing) == [("controlled", "s00000")]


def test_two_unparsed_answers_count_when_the_raw_ones_are_equal(
    store: Store, tmp_path: Path
) -> None:
    def unparsed(raw: str) -> Edit:
        def edit(records: list[Record]) -> list[Record]:
            first = replace(records[0], unparsed=True, parsed_answer="", raw_answer="?")
            second = replace(records[1], unparsed=True, parsed_answer="", raw_answer=raw)
            return [
                replace(first, is_correct=False),
                replace(second, is_correct=False),
                *records[2:],
            ]

        return edit

    a = replace(A, edit=unparsed("x"))
    b = other_slot(A, "b" * 16, edit=unparsed("y"))
    ingest(store, build_landing(tmp_path / "landing", [a, b]))
    assert counts(store)["controlled"]["both_unparsed"] == (1, 5)
    assert counts(store)["controlled"]["prediction"] == (4, 5)


def test_digests_are_compared_as_bytes_not_as_text(store: Store, tmp_path: Path) -> None:
    landing = pair(tmp_path, lambda records: records, **LOST)
    zeros, trailing = b"\x00" * 32, b"\x00" * 31 + b"\x01"
    for attempt, digest in (("a", zeros), ("b", trailing)):
        for part in landing.parts(attempt * 16):
            rewrite_part(part, lambda rows, d=digest: [r | {"logits_sha256": d} for r in rows])
    for key, attempt in ((1, "a"), (2, "b")):
        paths = landing.parts(attempt * 16)
        parts = [StoredPart(i, path, "whole") for i, path in enumerate(paths)]
        assert load_hashes(store.con, key, attempt * 16, parts) == 10
    found = store.con.execute(
        "SELECT count(*) FROM hashes a JOIN hashes b USING (arm, sample_id) "
        "WHERE a.attempt = 1 AND b.attempt = 2 AND a.logits IS DISTINCT FROM b.logits"
    ).fetchone()
    assert found == (10,)


def test_a_part_that_changed_since_ingest_is_one_clear_message(
    store: Store, tmp_path: Path
) -> None:
    landing = pair(tmp_path, other_row(0, tokens=(9, 9)))
    ingest(store, landing)
    rewrite_part(landing.parts("b" * 16)[0], lambda rows: rows[1:] + rows[:1])
    with pytest.raises(StoreError, match="fleet store ingest"):
        differing(store, landing)
    cut(landing.parts("b" * 16)[0], 50)
    with pytest.raises(StoreError, match="part-00000"):
        differing(store, landing)


def test_one_pair_of_rows_can_be_asked_for(store: Store, tmp_path: Path) -> None:
    landing = pair(tmp_path, lambda records: records[:8], **LOST)
    ingest(store, landing)
    ours, theirs = pairs.row_pair(store.con, landing, "a" * 16, "b" * 16, "current", "s00004")
    assert ours is not None
    assert ours["position"] == 4
    assert theirs is None


@pytest.mark.parametrize("rows_per_part", [4, 7])
def test_the_first_difference_is_by_position_then_arm(tmp_path: Path, rows_per_part: int) -> None:
    """Parts of the same size are compared in place, of another size by a join."""

    def two(records: list[Record]) -> list[Record]:
        return other_row(6, tokens=(9,))(other_row(3, logits="other")(records))

    landing = pair(tmp_path, two, rows_per_part=rows_per_part)
    found = first_difference(landing.parts("a" * 16), landing.parts("b" * 16))
    assert found is not None
    assert (found.position, found.arm, found.sample_id) == (1, "current", "s00001")
    assert found.columns == ("tokens_sha256", "logits_sha256")


def test_the_first_difference_of_unreadable_parts_is_one_clear_message(tmp_path: Path) -> None:
    landing = pair(tmp_path, lambda records: records)
    cut(landing.parts("b" * 16)[2], 64)
    with pytest.raises(StoreError, match="readable parts"):
        first_difference(landing.parts("a" * 16), landing.parts("b" * 16))
