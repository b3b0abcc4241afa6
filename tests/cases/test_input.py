"""Layer 1: what goes in. A prompt that differs is named by sample; pinned content that differs is
no comparison at all."""

from __future__ import annotations

from pathlib import Path

from tests.cases.harness import (
    ORDINARY,
    RECORDS,
    Outcome,
    expect_fail,
    expect_pass,
    expect_void,
    run_pair,
    samples,
)


def test_two_clean_replays_are_a_pass(clean: Outcome) -> None:
    expect_pass(clean, f"{RECORDS} records of 2 fresh replays agree", "exact repeat")
    assert clean.verdict.warnings == ()
