"""Figures of replays: which attempts they are taken from, and what is unknown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from fleet.evidence.landing import Landing
from fleet.evidence.manifest import Manifest
from fleet.evidence.summary import AttemptSummary
from fleet.report.measured import Measured, kernel_counts, measured
from tests.landing_builder import AttemptSpec, build_landing
from tests.unit.evidence_builders import dataset, summary

ROWS = dataset()  # 4 samples, 2 arms, 3 steps: 24 generated tokens
MARKS = {"import_s": 1.0, "prepare_s": 2.0, "load_s": 5.0, "generate_s": 11.0}


def landed(
    root: Path, attempt: str, volatile: dict[str, Any], kernels: Any = None, **changes: Any
) -> tuple[Landing, AttemptSummary]:
    """One attempt with these marks, and its summary."""
    landing = build_landing(root, [AttemptSpec(attempt, campaign=attempt)])
    path = landing.manifest(attempt)
    manifest = Manifest.from_bytes(path.read_bytes())
    census = {"kernels": kernels or {}}
    path.write_bytes(replace(manifest, volatile=volatile, census=census).to_bytes())
    return landing, summary(attempt, ROWS, **changes)


def test_speed_is_generated_tokens_by_seconds_of_generation(tmp_path: Path) -> None:
    landing, one = landed(tmp_path, "a", MARKS)
    assert measured(landing, [one]) == Measured("certify", 4.0, 3.0, None, {})


def test_the_median_counts_and_the_largest_peak(tmp_path: Path) -> None:
    kernel = {"l": {"class": "K", "mode": "inference"}}
    mine = []
    for name, end, peak in (("a", 11.0, 5), ("b", 29.0, 7), ("c", 8.0, None)):
        volatile = MARKS | {"generate_s": end} | ({"peak_bytes": peak} if peak else {})
        landing, one = landed(tmp_path, name, volatile, kernel)
        mine.append(one)
    assert measured(landing, mine) == Measured("certify", 4.0, 3.0, 7, {"K/inference": 1})


def test_screened_replays_count_only_where_none_was_certified(tmp_path: Path) -> None:
    landing, certified = landed(tmp_path, "a", MARKS)
    _, screened = landed(tmp_path, "b", MARKS | {"generate_s": 6.0}, purpose="screen")
    assert measured(landing, [screened, certified]).tokens_per_s == 4.0
    found = measured(landing, [screened])
    assert (found.source, found.tokens_per_s) == ("screen", 24.0)


def test_traced_and_incomplete_replays_never_count(tmp_path: Path) -> None:
    landing, one = landed(tmp_path, "a", MARKS)
    for changes in ({"traced": True}, {"purpose": "trace"}, {"state": "VOID"}):
        assert measured(landing, [replace(one, **changes)]) == Measured()


def test_what_a_manifest_does_not_state_is_unknown(tmp_path: Path) -> None:
    landing, one = landed(tmp_path, "a", {"load_s": 5.0, "peak_bytes": "much"})
    assert measured(landing, [one]) == Measured("certify")
    _, still = landed(tmp_path, "b", MARKS | {"generate_s": 5.0})
    assert measured(landing, [still]).tokens_per_s is None
    landing.manifest("a").write_bytes(b"no manifest")
    assert measured(landing, [one, replace(one, attempt="gone")]) == Measured()


def test_kernels_are_counted_by_class_and_mode() -> None:
    kernels = {
        "l.0": {"class": "A", "mode": "inference"},
        "l.1": {"class": "A", "mode": "inference"},
        "l.2": {"class": "B", "mode": None},
    }
    assert kernel_counts({"kernels": kernels}) == {"A/inference": 2, "B": 1}
    assert kernel_counts({}) == {}
