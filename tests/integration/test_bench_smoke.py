"""The benchmarks still run: tiny sizes, no figure looked at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.result import Result, figure

ROOT = Path(__file__).parents[2]


def bench(output: Path, *names: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.bench", *names, "--quick", "--output", str(output)],
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "160"},
        capture_output=True,
        text=True,
    )


def test_the_benchmarks_without_torch_run_and_print_one_table(tmp_path: Path) -> None:
    done = bench(tmp_path / "results.jsonl", "memory", "ingest", "schedule", "dispatch")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [line["bench"].split(",")[0] for line in lines] == [
        "peak driver memory",
        "peak driver memory",
        "ingest of the narrow hash table",
        "ingest of two attempts",
        "plan of a night",
        "end of a night above the least possible",
        "useful seconds of a night that loses 2 of 64 units",
    ]
    assert all(line["median"] > 0 and line["n"] > 0 for line in lines)
    assert "median" in done.stdout
    assert "met" in done.stdout or "missed" in done.stdout


@pytest.mark.torch
def test_the_digest_benchmark_runs(tmp_path: Path) -> None:
    done = bench(tmp_path / "results.jsonl", "digests")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [line["bench"].rpartition(", ")[0] for line in lines[:2]] == [
        "digest on the host, 4 MiB",
        "digest on the host, 4 MiB",
    ]
    assert all(line["median"] > 0 for line in lines)


@pytest.mark.torch
def test_the_images_benchmark_runs(tmp_path: Path) -> None:
    done = bench(tmp_path / "results.jsonl", "images")
    assert done.returncode == 0, done.stderr
    (line,) = (json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines())
    assert line["bench"] == "peak memory of preparing, 200 images over 20"
    assert line["many"]["distinct"] == 200


@pytest.mark.slow
@pytest.mark.torch
def test_the_cost_benchmark_runs(tmp_path: Path) -> None:
    done = bench(tmp_path / "results.jsonl", "cost")
    assert done.returncode == 0, done.stderr
    (line,) = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert line["n"] == 4


@pytest.mark.slow
@pytest.mark.torch
def test_the_trace_benchmark_runs_and_the_evidence_stays_small(tmp_path: Path) -> None:
    done = bench(tmp_path / "results.jsonl", "trace")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    whole, hooks, size = lines
    assert whole["median"] > hooks["median"]
    assert size["met"] is True


@pytest.mark.slow
@pytest.mark.ray
def test_the_fixed_cost_benchmark_runs(tmp_path: Path) -> None:
    done = bench(tmp_path / "results.jsonl", "fixed")
    assert done.returncode == 0, done.stderr


def test_an_unknown_benchmark_is_a_usage_error(tmp_path: Path) -> None:
    done = bench(tmp_path / "results.jsonl", "speed")
    assert done.returncode == 2
    assert "unknown: speed" in done.stderr


def test_a_target_is_held_against_the_median() -> None:
    assert Result("x", 2.0, (1.0, 1.5, 9.0), "s").met is True
    assert Result("x", 2.0, (1.0, 1.5, 9.0), "s", "higher").met is False
    assert Result("x", None, (1.0,), "s").met is None


def test_figures_have_three_digits_or_thousands_in_groups() -> None:
    assert [figure(v) for v in (0.01234, 1.05, 412_345.6)] == ["0.0123", "1.05", "412,346"]
