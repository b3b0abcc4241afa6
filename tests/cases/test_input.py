"""Layer 1: what goes in.

A prompt that differs is named by its sample; pinned content that differs is no comparison at all.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import fleet.cli
from fleet.errors import ContractError
from fleet.replay.task import ReplayTask
from tests.cases.expectations import expect_fail, expect_pass, expect_void, samples
from tests.cases.harness import RECORDS, ContractSpec, Outcome, World, pair

CLOCK = "{{ strftime_now('%Y-%m-%d') }} {{ question }}"


def edit_dataset(index: int, task: ReplayTask) -> None:
    """One more space in one question, before the second process starts."""
    file = Path(task.dataset_file)
    if index == 1:
        file.write_bytes(file.read_bytes().replace(b"costs 7 at", b"costs 7  at"))


def test_two_clean_replays_are_a_pass(clean: Outcome) -> None:
    expect_pass(clean, f"{RECORDS} records of 2 fresh replays agree", "exact repeat")
    assert clean.verdict.warnings == ()
    told = {arm: cells["prediction"] for arm, cells in clean.verdict.arms.items()}
    assert {arm: (c["exact"], c["both_unparsed"], c["rate"]) for arm, c in told.items()} == {
        "controlled": (10, 3, 1.0),
        "current": (10, 5, 1.0),
    }


@pair(before_start=edit_dataset)
def test_a_dataset_edited_for_one_worker_is_void(outcome: Outcome) -> None:
    expect_void(outcome, "pinned-content-changed", "slot 1", "dataset: pinned sha256:")


@pair({1: "other_template"})
def test_another_template_in_one_worker_is_void(outcome: Outcome) -> None:
    expect_void(outcome, "pinned-content-changed", "slot 1", "execution id: pinned sha256:")


@pair({1: "other_raw_record"})
def test_another_raw_record_is_layer_1(outcome: Outcome) -> None:
    expect_fail(outcome, 1, "raw record", stage="raw_record", mismatches=1, broken=None)
    assert samples(outcome.verdict) == [("current", "s08")]


@pair({1: "trailing_space"})
def test_a_trailing_space_in_one_prompt_is_layer_1_and_names_the_sample(outcome: Outcome) -> None:
    words = ("rendered prompt text", "sample s07, arm current", "differ from character")
    expect_fail(outcome, 1, *words, stage="prompt", mismatches=1)
    assert samples(outcome.verdict) == [("current", "s07")]
    assert "settings" not in outcome.verdict.reason
    assert outcome.verdict.warnings == ()


@pair({1: "three_longer_prompts"})
def test_an_added_id_in_three_of_ten_samples_names_exactly_those_three(outcome: Outcome) -> None:
    words = ("prompt token ids", f"3 of {RECORDS} records differ", "one side has id 256 more")
    expect_fail(outcome, 1, *words, stage="prompt_ids", mismatches=3)
    assert samples(outcome.verdict) == [("current", s) for s in ("s01", "s04", "s08")]
    arms = outcome.verdict.arms
    assert (arms["current"]["tokens"]["exact"], arms["current"]["tokens"]["total"]) == (7, 10)
    assert {cell["verdict"] for cell in arms["controlled"].values()} == {"PASS"}


@pair({1: "other_mask"})
def test_another_attention_mask_is_layer_1(outcome: Outcome) -> None:
    words = ("attention masks differ, prompt ids equal", "sample s05")
    expect_fail(outcome, 1, *words, stage="attention_mask", mismatches=1, broken=None)
    assert samples(outcome.verdict) == [("current", "s05")]


@pair({1: "decomposed_unicode"})
def test_a_decomposed_letter_is_layer_1_with_a_hint(outcome: Outcome) -> None:
    words = ("sample s02", "equal after NFC")
    expect_fail(outcome, 1, *words, stage="prompt", mismatches=1)


def test_a_template_that_reads_the_clock_is_refused_before_any_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ContractError, match="does not depend on the time of day"):
        World.make(tmp_path, case=ContractSpec(template=CLOCK))
    places = ["--store", str(tmp_path / "s.duckdb"), "--landing", str(tmp_path / "landing")]
    configs = ["--configs", str(tmp_path / "configs")]
    assert fleet.cli.run(["certify", "case", *places, *configs]) == 2
    assert "under two clocks" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "landing").exists()


@pair(spec=ContractSpec(template=CLOCK, clock="2026-01-01T00:00:00Z"))
def test_a_template_that_reads_a_pinned_clock_is_a_pass(outcome: Outcome) -> None:
    expect_pass(outcome)
