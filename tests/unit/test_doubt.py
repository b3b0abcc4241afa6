"""What was altered takes every PASS of its contract, whichever campaign or platform it is of."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.contract.canonical import canonical_json, to_text
from fleet.evidence.landing import Landing
from fleet.evidence.ledger import Ledger, chain_folder, chain_head, read_chain
from fleet.evidence.states import IN_LANDING, Cause
from fleet.evidence.summarise import summarise
from fleet.evidence.summary import AttemptSummary, Withdrawal
from fleet.judge import rules
from fleet.report.answers import Answers, known_contracts
from fleet.report.derived import rows_about
from fleet.report.filters import Filters
from fleet.report.history import history_of
from fleet.store.open import open_reader
from fleet.store.rebuild import rebuild
from tests.landing_builder import AttemptSpec, build_landing, cut, other_row, other_slot

A = AttemptSpec("a" * 16)
B = other_slot(A, "b" * 16)
C = replace(A, attempt="c" * 16, campaign="c2")
ODD = other_slot(B, "d" * 16, campaign="c2", edit=other_row(0, logits="odd"))
ELSEWHERE = replace(ODD, facts=(("driver", "580"),))
OTHER = replace(A, attempt="e" * 16, campaign="c3", contract="other")


def states(landing: Landing, tmp_path: Path) -> set[tuple[str, str]]:
    """Verdict and reason of ``toy`` wherever it has evidence, to a new store."""
    path = tmp_path / "fleet.duckdb"
    path.unlink(missing_ok=True)
    rebuild(path, landing)
    with open_reader(path) as store:
        answers = Answers(store, landing)
        (asked,) = (a for a in known_contracts(store) if a.name == "toy")
        found = {
            (row.verdict.verdict, row.verdict.reason)
            for row in rows_about(answers, asked)
            if row.verdict
        }
        told = history_of(answers, "toy", (), tmp_path, Filters()).moments
        passed = any(moment.step.after == "PASS" for moment in told)
    assert passed or "PASS" not in {verdict for verdict, _ in found}
    assert not passed or {verdict for verdict, _ in found} & {"PASS", "FAIL"}
    return found


def drop_a_part(landing: Landing) -> None:
    landing.parts(ODD.attempt)[0].unlink()


def drop_the_manifest(landing: Landing) -> None:
    landing.manifest(ODD.attempt).unlink()


def drop_the_attempt(landing: Landing) -> None:
    shutil.rmtree(landing.attempt(ODD.attempt))


def move_the_manifest_elsewhere(landing: Landing) -> None:
    """To another platform, where it would stand alone."""
    path = landing.manifest(ODD.attempt)
    path.write_bytes(path.read_bytes().replace(b'"driver":"', b'"driver":"x'))


def touch_an_entry(landing: Landing) -> None:
    path = chain_folder(landing, "c2") / "000003.json"
    path.write_bytes(path.read_bytes().replace(b'"seq":3', b'"seq":3 '))


def drop_all_that_names_it(landing: Landing) -> None:
    """The folder and every entry of the odd attempt, and of the one before it."""
    for entry in read_chain(landing, "c2"):
        if entry.attempt in (C.attempt, ODD.attempt):
            (chain_folder(landing, "c2") / f"{entry.seq:06d}.json").unlink()
    for spec in (C, ODD):
        shutil.rmtree(landing.attempt(spec.attempt))


def drop_the_opening_too(landing: Landing) -> None:
    drop_all_that_names_it(landing)
    (chain_folder(landing, "c2") / "000000.json").unlink()


def change_what_its_id_stands_for(landing: Landing) -> None:
    landing.contract(A.contract_id).write_bytes(canonical_json({"execution_part": {}}))


CHANGES: list[Callable[[Landing], None]] = [
    drop_a_part, drop_the_manifest, drop_the_attempt, move_the_manifest_elsewhere, touch_an_entry,
    drop_all_that_names_it, drop_the_opening_too, change_what_its_id_stands_for,
]  # fmt: skip


@pytest.mark.parametrize("odd", [ODD, ELSEWHERE], ids=["here", "on another platform"])
@pytest.mark.parametrize("change", CHANGES)
def test_an_older_campaign_carries_no_pass_past_what_was_altered(
    tmp_path: Path, change: Callable[[Landing], None], odd: AttemptSpec
) -> None:
    landing = build_landing(tmp_path / "landing", [A, B, C, odd, OTHER])
    before = {verdict for verdict, _ in states(landing, tmp_path)}
    assert before == ({"FAIL"} if odd is ODD else {"PASS", "VOID"})
    change(landing)
    assert "PASS" not in {verdict for verdict, _ in states(landing, tmp_path)}


def test_another_contract_passes_on(tmp_path: Path) -> None:
    landing = build_landing(tmp_path / "landing", [A, B, replace(C, contract="other"), OTHER])
    landing.parts(C.attempt)[0].unlink()
    assert {verdict for verdict, _ in states(landing, tmp_path)} == {"PASS"}


def summary(attempt: str, **changes: object) -> AttemptSummary:
    base = summarise(Landing(Path("nowhere")), attempt, [])
    return replace(base, **changes)  # type: ignore[arg-type]


def test_a_retraction_that_counts_lifts_it_and_one_that_is_ignored_does_not() -> None:
    cause = Cause("evidence-altered", "part-00000.parquet is gone", dict(IN_LANDING))
    altered = summary("a" * 16, slot=1, cause=cause)
    found = rules.doubt_of([altered], [])
    assert found is not None
    assert found.text == f"slot 1 (attempt {'a' * 16}): part-00000.parquet is gone"
    for ignored, lifted in ((None, True), ("its key is not among the trusted ones", False)):
        each = Withdrawal(altered.attempt, "lost disk", "key", "me", "then", ignored)
        doubt = rules.doubt_of([replace(altered, withdrawals=(each,))], [])
        assert (doubt is None) == lifted
    chain = Cause("ledger-gap", "a chain")
    assert rules.doubt_of([], [chain]) is chain


def test_what_a_process_said_of_itself_is_no_tampering() -> None:
    own = summary("a" * 16, cause=Cause("evidence-altered", "landed before"))
    assert rules.doubt_of([own], []) is None


def given_up(tmp_path: Path, **landed: str) -> Landing:
    """A LOST attempt, of which the ledger says what had landed."""
    landing = build_landing(tmp_path / "landing", [replace(A, ends="open")])
    seq = len(list(chain_folder(landing, "c1").iterdir()))
    chain = Ledger(landing, "c1", seq, chain_head(landing, "c1"))
    cause = Cause("killed", "signal 9").to_json()
    parts = landed or landing.landed(A.attempt)
    chain.append("given_up", A.attempt, state="LOST", cause=cause, landed=parts)
    return landing


def test_the_parts_of_an_attempt_that_was_given_up_are_bound_too(tmp_path: Path) -> None:
    landing = given_up(tmp_path)
    assert len(landing.landed(A.attempt)) == 3

    def state() -> tuple[str, str]:
        found = summarise(landing, A.attempt, read_chain(landing, "c1"))
        assert found.cause is not None
        return found.state, found.cause.text

    assert state() == ("LOST", "signal 9")
    late = landing.attempt(A.attempt) / "part-00009.parquet"
    shutil.copy(landing.parts(A.attempt)[0], late)
    assert state() == ("LOST", "signal 9"), "a late writer adds to it"
    cut(landing.parts(A.attempt)[1], 100)
    assert state() == ("VOID", "part-00001.parquet was edited after the fact")
    landing.parts(A.attempt)[0].unlink()
    assert state() == ("VOID", "part-00000.parquet is gone")


def test_an_id_is_held_against_what_it_stands_for(tmp_path: Path) -> None:
    landing = build_landing(tmp_path / "landing", [A, B])
    path = landing.contract(A.contract_id)
    whole = path.read_bytes()
    assert to_text(A.contract_id).endswith(path.stem)
    for data in (b"", b"[]", b"{}", whole + b"\n", whole.replace(b"toy", b"tou"), None):
        path.unlink() if data is None else path.write_bytes(data)
        ((verdict, reason),) = states(landing, tmp_path)
        assert verdict == "VOID" and f"contracts/{path.name}" in reason
