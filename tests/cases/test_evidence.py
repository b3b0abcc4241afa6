"""Stored bytes that change after the fact, each in a copy of one clean pair's landing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fleet.contract.canonical import canonical_json, sha256, to_text
from fleet.evidence.ledger import chain_folder
from tests.cases.expectations import expect_pass, expect_void
from tests.cases.harness import Outcome, World, again, copied, ingested, rebuilt
from tests.landing_builder import cut, rewrite_part

BRINGS = pytest.mark.parametrize("bring", [ingested, rebuilt], ids=["ingest", "rebuild"])
ALTERED = "evidence-altered"


@pytest.fixture
def landed(clean: Outcome, tmp_path: Path) -> Outcome:
    """A copy, judged: what is edited afterwards has to be noticed by a later ingest."""
    outcome = copied(clean, tmp_path / "copy")
    expect_pass(outcome)
    return outcome


def entry(outcome: Outcome, kind: str, attempt: str = "") -> Path:
    """The file of a ledger entry."""
    seq = next(e.seq for e in outcome.ledger() if (e.kind, e.attempt) == (kind, attempt))
    return chain_folder(outcome.world.landing, outcome.campaign) / f"{seq:06d}.json"


def edit_answer(path: Path) -> None:
    """One more space behind one raw answer."""

    def edit(rows: list[dict[str, object]]) -> list[dict[str, object]]:
        rows[3]["raw_answer"] = f"{rows[3]['raw_answer']} "
        return rows

    rewrite_part(path, edit)


@BRINGS
def test_an_edited_shard_is_void(landed: Outcome, bring: object) -> None:
    edit_answer(landed.part(1))
    edited = again(landed, bring)  # type: ignore[arg-type]
    expect_void(edited, ALTERED, "slot 1", "part-00000.parquet was edited after the fact")


@BRINGS
def test_a_shard_cut_short_is_void(landed: Outcome, bring: object) -> None:
    cut(landed.part(0), 4096)
    edited = again(landed, bring)  # type: ignore[arg-type]
    expect_void(edited, ALTERED, "slot 0", "part-00000.parquet was edited after the fact")


def test_a_deleted_shard_is_void(landed: Outcome) -> None:
    landed.part(1).unlink()
    expect_void(again(landed), ALTERED, "slot 1", "parts on disk []")


def test_an_edited_shard_with_a_manifest_to_match_is_void(landed: Outcome) -> None:
    edit_answer(landed.part(1))
    path = landed.world.landing.manifest(landed.attempts[1])
    manifest = json.loads(path.read_bytes())
    data = landed.part(1).read_bytes()
    manifest["parts"][0] |= {"sha256": to_text(sha256(data)), "num_bytes": len(data)}
    path.write_bytes(canonical_json(manifest))
    words = ("slot 1", "manifest.json is not the one the ledger accepted")
    expect_void(again(landed), ALTERED, *words)


def test_a_deleted_manifest_is_void(landed: Outcome) -> None:
    landed.world.landing.manifest(landed.attempts[1]).unlink()
    expect_void(again(landed), ALTERED, "slot 1", "accepted, but its manifest.json is gone")


def test_a_copied_folder_never_becomes_a_third_attempt(landed: Outcome) -> None:
    landing = landed.world.landing
    shutil.copytree(landing.attempt(landed.attempts[0]), landing.attempt("f" * 16))
    expect_void(again(landed), "not-accepted", "no ledger entry planned this attempt")


def test_a_copy_in_the_place_of_the_second_attempt_is_void(landed: Outcome) -> None:
    landing = landed.world.landing
    first, second = (landing.attempt(a) for a in landed.attempts)
    shutil.rmtree(second)
    shutil.copytree(first, second)
    words = ("slot 1", "manifest.json is not the one the ledger accepted")
    expect_void(again(landed), ALTERED, *words)


def test_a_shard_of_an_older_attempt_in_the_folder_is_void(landed: Outcome) -> None:
    second = landed.world.landing.attempt(landed.attempts[1])
    shutil.copy(landed.part(0), second / "part-00001.parquet")
    words = ("slot 1", "parts on disk ['part-00000.parquet', 'part-00001.parquet']")
    expect_void(again(landed), ALTERED, *words)


def test_a_shard_of_an_older_attempt_in_the_place_of_its_own_is_void(landed: Outcome) -> None:
    shutil.copy(landed.part(0), landed.part(1))
    words = ("slot 1", "part-00000.parquet was edited after the fact")
    expect_void(again(landed), ALTERED, *words)


@BRINGS
def test_a_deleted_ledger_entry_is_void(landed: Outcome, bring: object) -> None:
    entry(landed, "gone", landed.attempts[0]).unlink()
    edited = again(landed, bring)  # type: ignore[arg-type]
    expect_void(edited, "ledger-gap", "is missing")


def test_an_edited_ledger_entry_is_void(landed: Outcome) -> None:
    path = entry(landed, "accepted", landed.attempts[0])
    path.write_bytes(path.read_bytes().replace(b'"COMPLETE"', b'"COMPLET3"'))
    expect_void(again(landed), ALTERED, f"{path.name}: the chain is broken")


def test_a_ledger_that_ends_before_the_second_attempt_does_is_void(landed: Outcome) -> None:
    """To a store that saw more of it, entries are gone; to any other the driver was killed."""
    seen, last = len(landed.ledger()), entry(landed, "started", landed.attempts[1])
    for path in last.parent.iterdir():
        if path.name > last.name:
            path.unlink()
    gone = f"{last.parent.name}/{seen - 1:06d}.json: gone"
    expect_void(again(landed), "ledger-gap", "slot 0", gone)
    landed.world.store.unlink()
    expect_void(again(landed), "ledger-gap", "slot 1", "neither accepted nor given up")


def test_an_attempt_planned_by_two_campaigns_is_never_two_attempts(landed: Outcome) -> None:
    chain = chain_folder(landed.world.landing, landed.campaign)
    shutil.copytree(chain, chain.with_name("another-night"))
    expect_void(again(landed), "ledger-gap", "another-night/000000.json: entry 0")
    other = World(landed.world.root, landed.world.contracts)
    copy = again(Outcome(other, "another-night", landed.answer))
    expect_void(copy, "missing-evidence", "no certification replay")
