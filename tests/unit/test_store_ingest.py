"""The store takes in a landing: once, again, and after something in it changed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fleet.contract.canonical import canonical_json, to_text
from fleet.errors import StoreError
from fleet.evidence.landing import Landing
from fleet.evidence.ledger import Ledger, chain_folder, chain_head, read_chain
from fleet.evidence.states import Cause
from fleet.evidence.summarise import summarise
from fleet.store import queries
from fleet.store.ingest import ingest
from fleet.store.open import Store, open_reader, open_writer
from fleet.store.rebuild import rebuild
from tests.landing_builder import (
    AttemptSpec,
    build_landing,
    cut,
    drop_column,
    null_column,
    other_row,
    other_slot,
    rewrite_part,
)

A = AttemptSpec("a" * 16)
B = other_slot(A, "b" * 16)
LOST = other_slot(
    A, "c" * 16, ends="given-up", state="LOST", cause=Cause("node-unreachable", "no answer")
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_writer(tmp_path / "fleet.duckdb") as opened:
        yield opened


def asked_for(spec: AttemptSpec) -> dict[str, str]:
    return {"name": spec.contract, "execution_id": to_text(spec.contract_id)}


def landing_of(tmp_path: Path, *specs: AttemptSpec) -> Landing:
    return build_landing(tmp_path / "landing", specs)


def ends(store: Store) -> dict[str, str]:
    """Attempt -> its state, with the cause's code when there is one."""
    found = queries.summaries(store.con)
    return {s.attempt[0]: s.state + (f" {s.cause.code}" if s.cause else "") for s in found}


def narrow_rows(store: Store, letter: str) -> int:
    found = store.con.execute(
        "SELECT count(*) FROM hashes h JOIN attempts t ON t.key = h.attempt WHERE t.attempt = ?",
        [letter * 16],
    ).fetchone()
    assert found is not None
    return int(found[0])


def everything(store: Store) -> dict[str, list[tuple[object, ...]]]:
    """All tables, without the numbers that only this file gives out."""
    asked = {
        "attempts": "SELECT * EXCLUDE (key) FROM attempts",
        "summaries": "SELECT t.attempt, s.* EXCLUDE (attempt) FROM summaries s "
        "JOIN attempts t ON t.key = s.attempt",
        "hashes": "SELECT t.attempt, h.* EXCLUDE (attempt) FROM hashes h "
        "JOIN attempts t ON t.key = h.attempt",
        "parts": "SELECT t.attempt, p.* EXCLUDE (attempt) FROM parts p "
        "JOIN attempts t ON t.key = p.attempt",
        **{name: f"SELECT * FROM {name}" for name in ("campaigns", "contracts", "platforms")},
        **{name: f"SELECT * FROM {name}" for name in ("units", "controls", "meta")},
    }
    return {k: store.con.execute(f"{sql} ORDER BY ALL").fetchall() for k, sql in asked.items()}


def test_a_summary_comes_back_as_it_was_made(store: Store, tmp_path: Path) -> None:
    landing = landing_of(tmp_path, A, B)
    ingest(store, landing)
    made = [summarise(landing, s.attempt, read_chain(landing, "c1")) for s in (A, B)]
    assert queries.summaries(store.con) == made
    assert queries.summary(store.con, A.attempt) == made[0]
    assert queries.summary(store.con, "f" * 16) is None


def test_ingesting_twice_equals_once(store: Store, tmp_path: Path) -> None:
    landing = landing_of(tmp_path, A, B, LOST)
    first = ingest(store, landing)
    before = everything(store)
    second = ingest(store, landing)
    assert (first.new, first.rows, first.unchanged) == (3, 30, 0)
    assert (second.new, second.changed, second.rows, second.unchanged) == (0, 0, 0, 3)
    assert everything(store) == before


def test_a_rebuild_equals_the_store_it_replaces(tmp_path: Path) -> None:
    landing = landing_of(tmp_path, A, replace(B, edit=other_row(2, tokens=(9, 9))), LOST)
    path = tmp_path / "fleet.duckdb"
    with open_writer(path) as store:
        ingest(store, landing)
        before, summaries = everything(store), queries.summaries(store.con)
    rebuild(path, landing)
    with open_writer(path) as store:
        assert everything(store) == before
        assert queries.summaries(store.con) == summaries


def test_an_edited_shard_is_noticed_at_the_next_ingest(store: Store, tmp_path: Path) -> None:
    landing = landing_of(tmp_path, A, B)
    ingest(store, landing)
    assert ends(store) == {"a": "COMPLETE", "b": "COMPLETE"}
    part = landing.parts(B.attempt)[0]
    was = part.stat()
    rewrite_part(part, lambda rows: [rows[0] | {"raw_answer": "Z"}, *rows[1:]])
    os.utime(part, ns=(was.st_atime_ns, was.st_mtime_ns))
    report = ingest(store, landing)
    assert (report.changed, report.unchanged) == (1, 1)
    assert ends(store) == {"a": "COMPLETE", "b": "VOID evidence-altered"}


def test_the_rows_of_an_edited_shard_do_not_count(store: Store, tmp_path: Path) -> None:
    landing = landing_of(tmp_path, A, B)
    rewrite_part(landing.parts(B.attempt)[0], lambda rows: rows)
    ingest(store, landing)
    assert narrow_rows(store, "a") == 10
    assert narrow_rows(store, "b") == 6  # parts of 4, 4 and 2 rows, the first one edited


def test_an_unreadable_part_is_void_and_the_readable_ones_count(
    store: Store, tmp_path: Path
) -> None:
    landing = landing_of(tmp_path, A, B, replace(LOST, attempt="d" * 16))
    cut(landing.parts(B.attempt)[1], 100)
    cut(landing.parts("d" * 16)[1], 100)
    ingest(store, landing)
    assert ends(store)["b"] == "VOID evidence-altered"
    assert narrow_rows(store, "b") == 6
    assert narrow_rows(store, "d") == 6
    states = store.con.execute("SELECT DISTINCT state FROM parts ORDER BY 1").fetchall()
    assert states == [("altered",), ("unreadable",), ("whole",)]
    counted = store.con.execute("SELECT count(*) FROM records").fetchone()
    assert counted == (22,)


def test_a_part_with_bytes_that_no_text_has_is_unreadable(store: Store, tmp_path: Path) -> None:
    landing = landing_of(tmp_path, A, LOST)
    part = landing.parts(LOST.attempt)[0]
    table = pq.read_table(part)
    broken = pa.array([b"\xff\xfe"] * table.num_rows, pa.binary()).view(pa.string())
    at = table.schema.get_field_index("sample_id")
    pq.write_table(table.set_column(at, table.schema.field(at), broken), part)
    ingest(store, landing)
    assert narrow_rows(store, "c") == 6


def test_a_null_column_is_void_and_stays_null(store: Store, tmp_path: Path) -> None:
    landing = landing_of(tmp_path, A, LOST)
    for part in landing.parts(LOST.attempt):
        null_column(part, "logits_sha256")
    ingest(store, landing)
    nulls = store.con.execute("SELECT count(*) FROM hashes WHERE logits IS NULL").fetchone()
    assert nulls == (10,)


def test_a_missing_column_counts_as_nulls(store: Store, tmp_path: Path) -> None:
    landing = landing_of(tmp_path, A, LOST)
    drop_column(landing.parts(LOST.attempt)[0], "tokens_sha256")
    ingest(store, landing)
    assert narrow_rows(store, "c") == 10
    nulls = store.con.execute("SELECT count(*) FROM hashes WHERE tokens IS NULL").fetchone()
    assert nulls == (4,)


def test_the_part_of_an_older_attempt_makes_void_and_adds_no_row(
    store: Store, tmp_path: Path
) -> None:
    landing = landing_of(tmp_path, A, B, LOST)
    older = landing.parts(A.attempt)[0]
    shutil.copy(older, landing.parts(B.attempt)[0])
    shutil.copy(older, landing.parts(LOST.attempt)[0])
    ingest(store, landing)
    assert ends(store)["b"] == "VOID evidence-altered"
    assert narrow_rows(store, "b") == 6
    assert narrow_rows(store, "c") == 6


def test_a_copied_attempt_is_void_and_counts_once(store: Store, tmp_path: Path) -> None:
    landing = landing_of(tmp_path, A, B)
    shutil.copytree(landing.attempt(A.attempt), landing.attempt("e" * 16))
    ingest(store, landing)
    assert ends(store) == {"a": "COMPLETE", "b": "COMPLETE", "e": "VOID not-accepted"}
    assert narrow_rows(store, "e") == 0
    assert [s.state for s in queries.summaries(store.con)].count("COMPLETE") == 2


def test_a_copied_campaign_offers_nothing_twice(store: Store, tmp_path: Path) -> None:
    landing = landing_of(tmp_path, A, B)
    shutil.copytree(chain_folder(landing, "c1"), chain_folder(landing, "c2"))
    report = ingest(store, landing)
    assert ends(store) == {"a": "COMPLETE", "b": "COMPLETE"}
    assert len(report.warnings) == 1
    assert "c2" in report.warnings[0]


def test_an_attempt_planned_by_two_campaigns_is_void(store: Store, tmp_path: Path) -> None:
    landing = landing_of(tmp_path, A, B)
    other = Ledger(landing, "c2")
    other.append("campaign", contracts=[], argv=[])
    other.append("planned", A.attempt, slot=0, contract="toy", execution_id="", arms=[])
    ingest(store, landing)
    assert ends(store) == {"a": "VOID duplicate-attempt", "b": "COMPLETE"}


def test_rows_that_no_ledger_planned_are_kept_as_void(store: Store, tmp_path: Path) -> None:
    landing = landing_of(tmp_path, A, replace(B, ends="unplanned"))
    ingest(store, landing)
    assert ends(store)["b"] == "VOID not-accepted"
    assert narrow_rows(store, "b") == 10


def test_an_attempt_without_an_end_is_void_until_it_has_one(store: Store, tmp_path: Path) -> None:
    landing = landing_of(tmp_path, A, replace(B, ends="open"))
    ingest(store, landing)
    assert ends(store)["b"] == "VOID ledger-gap"
    seq = len(list(chain_folder(landing, "c1").iterdir()))
    ledger = Ledger(landing, "c1", seq, chain_head(landing, "c1"))
    cause = Cause("killed", "signal 9").to_json()
    ledger.append("given_up", B.attempt, state="FAILED", cause=cause)
    assert ingest(store, landing).changed == 1
    assert ends(store)["b"] == "FAILED killed"


def test_a_broken_chain_makes_its_attempts_void_and_no_others(store: Store, tmp_path: Path) -> None:
    landing = landing_of(tmp_path, A, B, replace(LOST, campaign="c2"))
    entry = chain_folder(landing, "c1") / "000003.json"
    entry.write_bytes(entry.read_bytes().replace(b'"seq":3', b'"seq":3 '))
    report = ingest(store, landing)
    assert ends(store) == {
        "a": "VOID evidence-altered",
        "b": "VOID evidence-altered",
        "c": "LOST node-unreachable",
    }
    (told,) = report.warnings
    assert told.endswith("c1/000003.json: not in canonical form")
    assert queries.campaigns(store.con)[0].fault is not None


def test_a_missing_entry_loses_no_attempt(store: Store, tmp_path: Path) -> None:
    landing = landing_of(tmp_path, A, B)
    (chain_folder(landing, "c1") / "000004.json").unlink()
    ingest(store, landing)
    assert ends(store) == {"a": "VOID ledger-gap", "b": "VOID ledger-gap"}


def test_evidence_that_left_the_landing_stops_all_until_it_is_back(
    store: Store, tmp_path: Path
) -> None:
    landing = landing_of(tmp_path, A, replace(B, campaign="c2", unit="unit-1"))
    ingest(store, landing)
    chain, away = chain_folder(landing, "c2"), tmp_path / "away"
    chain.rename(away)
    shutil.rmtree(landing.attempt(B.attempt))
    gone = pytest.raises(StoreError, match=r"c2/000007\.json: gone")
    with gone:
        ingest(store, landing)
    assert set(ends(store)) == {"a", "b"}
    store.close()
    with gone:
        rebuild(store.path, landing)
    with gone:
        open_reader(store.path)
    away.rename(chain)
    with open_writer(store.path) as again:
        ingest(again, landing)
    with open_reader(store.path) as reader:
        assert ends(reader) == {"a": "COMPLETE", "b": "VOID evidence-altered"}
    shutil.rmtree(chain)
    store.path.rename(tmp_path / "old.duckdb")
    rebuild(store.path, landing)
    with open_reader(store.path) as fresh:
        assert ends(fresh) == {"a": "COMPLETE"}
        assert list(queries.units(fresh.con)) == ["unit-0"]


def test_facts_and_names_can_be_read_back(store: Store, tmp_path: Path) -> None:
    landing = landing_of(tmp_path, A, replace(B, contract="other", facts=(("driver", "580"),)))
    ingest(store, landing)
    assert [row.name for row in queries.contracts(store.con)] == ["other", "toy"]
    assert queries.contracts(store.con)[1].body == A.body | {"asked": asked_for(A)}
    drivers = {p["facts"]["driver"] for p in queries.platforms(store.con).values()}
    assert drivers == {"580", "not applicable"}
    (campaign,) = queries.campaigns(store.con)
    assert campaign.argv == ("fleet", "certify")
    assert campaign.closed_at_s is not None


def test_summaries_can_be_narrowed(store: Store, tmp_path: Path) -> None:
    landing = landing_of(tmp_path, A, replace(B, contract="other", campaign="c2"))
    ingest(store, landing)
    con = store.con
    assert [s.attempt for s in queries.summaries(con, contract="other")] == [B.attempt]
    assert [s.attempt for s in queries.summaries(con, campaign="c1")] == [A.attempt]
    execution_id = queries.summaries(con, campaign="c1")[0].execution_id
    assert [s.attempt for s in queries.summaries(con, execution_id=execution_id)] == [A.attempt]
    assert queries.summaries(con, contract="toy", campaign="c2") == []


def test_a_purpose_of_newer_code_is_one_clear_message(store: Store, tmp_path: Path) -> None:
    landing = landing_of(tmp_path, A)
    newer = Ledger(landing, "c2")
    newer.append("campaign", contracts=[], argv=[])
    newer.append("planned", "f" * 16, slot=0, purpose="divine")
    with pytest.raises(StoreError) as raised:
        ingest(store, landing)
    assert "ffffffffffffffff" in raised.value.key
    assert ends(store) == {"a": "COMPLETE"}


def test_the_views_answer_over_an_empty_landing(store: Store, tmp_path: Path) -> None:
    ingest(store, Landing.open(tmp_path / "landing", create=True))
    for view in ("records", "pairs", "status", "classes", "margins"):
        assert store.con.execute(f"SELECT count(*) FROM {view}").fetchone() == (0,)


def test_the_views_count_classes_and_pairs(store: Store, tmp_path: Path) -> None:
    landing = landing_of(tmp_path, A, replace(B, edit=other_row(0, logits="other")), LOST)
    ingest(store, landing)
    con = store.con
    classes = con.execute(
        "SELECT arm, grade, count(*) FROM classes GROUP BY ALL HAVING count(*) > 1"
    ).fetchall()
    assert classes == [("controlled", "logits", 2)]
    unequal = con.execute("SELECT arm, grade, same_unit FROM pairs WHERE NOT same_root").fetchall()
    assert unequal == [("controlled", "logits", True)]
    assert con.execute("SELECT sum(complete), sum(lost) FROM status").fetchone() == (2, 1)
    smallest = con.execute(
        "SELECT min(smallest_margin), bool_or(exact_tie) FROM margins"
    ).fetchone()
    assert smallest == (0.5, False)


def test_a_stored_summary_is_plain_json(store: Store, tmp_path: Path) -> None:
    ingest(store, landing_of(tmp_path, A))
    row = store.con.execute("SELECT summary FROM attempts").fetchone()
    assert row is not None
    assert json.loads(row[0])["attempt"] == A.attempt


def test_a_contract_body_that_does_not_read_is_a_warning(store: Store, tmp_path: Path) -> None:
    landing = landing_of(tmp_path, A)
    (landing.root / "contracts" / f"{A.contract_id.hex()}.json").write_text("{")
    report = ingest(store, landing)
    words = f"contracts/{A.contract_id.hex()}.json: not what its name is the digest of"
    assert report.warnings == (words,)
    assert ends(store) == {"a": "VOID evidence-altered"}
    assert queries.contracts(store.con)[0].body == {"asked": asked_for(A)}


@pytest.mark.parametrize(
    "change", [{"purpose": "cartify"}, {"slot": "x"}, {"slot": 2**40}, {"num_samples": None},
               {"contract": 7}, {"vary": [1]}],
)  # fmt: skip
def test_whatever_a_broken_chain_says_is_taken_in_as_void(
    store: Store, tmp_path: Path, change: dict[str, object]
) -> None:
    landing = landing_of(tmp_path, A, B)
    path = chain_folder(landing, "c1") / "000001.json"
    raw = json.loads(path.read_bytes())
    assert raw["kind"] == "planned"
    path.write_bytes(canonical_json(raw | {"body": raw["body"] | change}))
    (warning,) = ingest(store, landing).warnings
    assert f"{path}: the chain is broken before" in warning
    assert set(ends(store).values()) == {"VOID evidence-altered"}
