"""Layer 5 and the protocol: processes that die, hang or were not fresh, and platforms that part."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fleet.evidence.ledger import campaigns, ends, read_chain
from fleet.replay.task import ReplayTask
from tests.cases.expectations import expect_fail, expect_pass, expect_void
from tests.cases.harness import (
    LIMITS,
    ORDINARY,
    RACY_CONTROL,
    RECORDS,
    Outcome,
    World,
    again,
    judged,
    not_yet,
    pair,
    run_campaign,
)

RETRY = replace(LIMITS, retries=1)


def states(outcome: Outcome) -> list[str]:
    return [end.state for end in outcome.ends]


@pair({1: "killed"})
def test_a_killed_worker_is_void_never_a_difference(outcome: Outcome) -> None:
    expect_void(outcome, "killed", "slot 1", "the process ended by SIGKILL")
    assert states(outcome) == ["COMPLETE", "FAILED"]


@pair({1: "killed"}, limits=RETRY)
def test_a_killed_worker_that_is_retried_is_a_pass_with_three_attempts_shown(
    outcome: Outcome,
) -> None:
    expect_pass(outcome)
    assert states(outcome) == ["COMPLETE", "FAILED", "COMPLETE"]
    shown = [(a["state"], a["cause"] and a["cause"]["code"]) for a in outcome.verdict.attempts]
    assert sorted(shown, key=str) == [("COMPLETE", None), ("COMPLETE", None), ("FAILED", "killed")]
    power = outcome.verdict.power
    assert power is not None
    assert (power["attempts_started"], power["attempts_used"]) == (3, 2)


@pair({1: "out_of_memory"})
def test_out_of_memory_is_void(outcome: Outcome) -> None:
    expect_void(outcome, "out-of-memory", "slot 1", "MemoryError")


@pair({1: "raises"})
def test_an_engine_that_raises_is_void(outcome: Outcome) -> None:
    expect_void(outcome, "engine-error", "slot 1", "RuntimeError: kernel launch failed")


@pair({1: "hangs"}, deadlines={1: 2.0})
def test_a_hang_is_void(outcome: Outcome) -> None:
    expect_void(outcome, "hang", "slot 1", "no end within 2 s")
    assert states(outcome) == ["COMPLETE", "FAILED"]


@pair({1: "disk_full_at_a_part"})
def test_a_disk_that_is_full_for_rows_is_void(outcome: Outcome) -> None:
    expect_void(outcome, "disk-full", "slot 1", "No space left on device")


@pair({1: "disk_full_for_everything"})
def test_a_disk_that_is_full_for_the_manifest_too_is_void(outcome: Outcome) -> None:
    expect_void(outcome, "disk-full", "slot 1", "No space left on device")


@pair(unobserved={1})
def test_a_death_that_nobody_saw_is_void_although_the_rows_agree(outcome: Outcome) -> None:
    expect_void(outcome, "death-not-observed", "slot 1")
    assert states(outcome) == ["COMPLETE", "LOST"]
    assert outcome.world.landing.manifest(outcome.attempts[1]).exists()


@pair(unobserved={1}, late={1})
def test_rows_that_land_after_the_attempt_was_given_up_help_nothing(outcome: Outcome) -> None:
    assert outcome.verdict.code == "death-not-observed"
    part = outcome.world.landing.attempt(outcome.attempts[1]) / "part-00000.parquet"
    not_yet(part).rename(part)
    late = again(outcome)
    expect_void(late, "death-not-observed", "slot 1")
    rows = {a["attempt"]: a["rows"] for a in late.verdict.attempts}
    assert rows == dict.fromkeys(outcome.attempts, RECORDS)


@pair(unobserved={1}, limits=RETRY)
def test_a_lost_attempt_that_is_retried_is_a_pass_from_the_other_two(outcome: Outcome) -> None:
    expect_pass(outcome)
    assert states(outcome) == ["COMPLETE", "LOST", "COMPLETE"]


@pair({1: "flipped_bit"}, unobserved={1}, limits=RETRY)
def test_a_late_writer_whose_row_differs_is_a_fail_that_a_retry_does_not_erase(
    outcome: Outcome,
) -> None:
    words = (f"rows of attempt {outcome.attempts[1]} (LOST: death-not-observed) differ",)
    expect_fail(outcome, (2, 3), *words, stage="logits", mismatches=1)
    assert states(outcome) == ["COMPLETE", "LOST", "COMPLETE"]


@pair({1: "differs_then_out_of_memory"}, limits=RETRY)
def test_a_mismatch_of_an_attempt_that_failed_is_never_erased(outcome: Outcome) -> None:
    words = (f"rows of attempt {outcome.attempts[1]} (FAILED: out-of-memory) differ",)
    expect_fail(outcome, (2, 3), *words, stage="logits", mismatches=1)
    assert states(outcome) == ["COMPLETE", "FAILED", "COMPLETE"]


@pair({1: "differs_with_other_settings_then_out_of_memory"}, limits=RETRY)
def test_a_mismatch_of_a_failed_attempt_under_other_settings_does_not_count(
    outcome: Outcome,
) -> None:
    expect_pass(outcome)
    assert states(outcome) == ["COMPLETE", "FAILED", "COMPLETE"]


def resume(index: int, task: ReplayTask) -> None:
    """Rows lie in the attempt's folder before its process starts: those of the attempt before."""
    if index == 1:
        task.folder.mkdir()
        (before,) = task.folder.parent.glob("*/part-00000.parquet")
        (task.folder / before.name).write_bytes(before.read_bytes())


@pair(before_start=resume)
def test_a_resumed_run_is_void(outcome: Outcome) -> None:
    expect_void(outcome, "not-fresh", "slot 1", "there before the process: part-00000.parquet")
    assert states(outcome) == ["COMPLETE", "VOID"]


@pair({1: "another_writer"})
def test_a_second_writer_in_the_folder_of_an_attempt_is_void(outcome: Outcome) -> None:
    expect_void(outcome, "evidence-altered", "slot 1", "another process wrote into this attempt")


@pair({1: "another_process"})
def test_a_manifest_of_another_process_than_the_one_seen_is_void(outcome: Outcome) -> None:
    expect_void(outcome, "not-fresh", "slot 1", "the manifest comes from another process")


@pair({1: "torch_at_entry"})
def test_a_process_with_torch_at_entry_is_void(outcome: Outcome) -> None:
    expect_void(outcome, "not-fresh", "slot 1", "imported before entry: torch")


@pair({1: "no_nonce"})
def test_a_process_without_its_nonce_is_void(outcome: Outcome) -> None:
    expect_void(outcome, "not-fresh", "slot 1", "does not carry this attempt's nonce")


@pair(extra_environment={1: {"FLEET_NONCE": "0123456789abcdef"}})
def test_a_process_with_another_nonce_is_void(outcome: Outcome) -> None:
    expect_void(outcome, "not-fresh", "slot 1", "does not carry this attempt's nonce")


@pair({0: "lives_on"}, left_alive={0})
def test_a_predecessor_that_still_lives_is_void(outcome: Outcome) -> None:
    expect_void(outcome, "not-fresh", "slot 1", "the replay before this one still lives")


@pair({1: "unreadable_packages"})
def test_a_fact_that_one_replay_cannot_read_is_void_and_named(outcome: Outcome) -> None:
    expect_void(outcome, "cannot-observe", "fact packages unreadable")


@pair({0: "unreadable_packages", 1: "unreadable_packages"})
def test_a_fact_that_both_replays_cannot_read_is_void_too(outcome: Outcome) -> None:
    expect_void(outcome, "cannot-observe", "fact packages unreadable")


@pair(extra_environment={1: {"MKL_CBWR": "0"}})
def test_a_variable_set_to_0_is_not_a_variable_that_is_absent(outcome: Outcome) -> None:
    words = (
        "the replays ran on different platforms",
        "environment differs (MKL_CBWR '0' or absent)",
    )
    expect_void(outcome, "missing-evidence", *words)


def test_two_interrupted_drivers_leave_ledgers_with_an_end_for_every_attempt(
    tmp_path: Path,
) -> None:
    world = World.make(tmp_path, case=ORDINARY)
    for at in (0, 1):
        known = campaigns(world.landing)
        with pytest.raises(KeyboardInterrupt):
            run_campaign(world, ["case"], interrupted={at})
        (campaign,) = set(campaigns(world.landing)) - set(known)
        chain = read_chain(world.landing, campaign)
        assert chain[-1].kind == "closed"
        kinds = [end.kind if end else None for _, end in ends(chain)]
        assert kinds == ["accepted"] * at + ["given_up"]
        expect_void(judged(world, campaign), "driver-gone", "the driver was interrupted")


def test_an_earlier_campaign_with_another_root_is_a_fail_whatever_the_night(
    tmp_path: Path,
) -> None:
    world = World.make(tmp_path, case=ORDINARY)
    first = run_campaign(world, ["case"], {0: "flipped_bit", 1: "flipped_bit"})
    expect_pass(first)
    tonight = run_campaign(world, ["case"])
    expect_fail(tonight, (2, 3), "2 classes on unit", stage="logits", mismatches=1)


def test_a_control_that_does_not_behave_voids_a_pass_and_spares_a_fail(tmp_path: Path) -> None:
    world = World.make(tmp_path, case=ORDINARY, other=ORDINARY, racy=RACY_CONTROL)
    tame = {0: "tame_control", 1: "tame_control"}
    passes = run_campaign(world, ["case"], tame, controls=("racy",))
    expect_void(passes, "control-failed", "control racy did not behave")
    mismatches = passes.answer.controls[0].mismatches
    assert mismatches[0] == "verdict: expected 'FAIL', got 'PASS'"
    fails = run_campaign(world, ["case"], {**tame, 3: "flipped_bit"}, controls=("racy",))
    expect_fail(fails, (2, 3), stage="logits", mismatches=1)


def test_a_control_that_behaves_lets_a_pass_stand(tmp_path: Path) -> None:
    world = World.make(tmp_path, case=ORDINARY, racy=RACY_CONTROL)
    outcome = run_campaign(world, ["case"], controls=("racy",))
    expect_pass(outcome)
    (control,) = outcome.answer.controls
    assert (control.verdict.verdict, control.mismatches) == ("FAIL", ())
