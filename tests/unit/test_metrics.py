"""What a campaign reports to whoever watches, and that it needs nobody to listen."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fleet.schedule import metrics
from fleet.schedule.metrics import METRICS, SILENT, Meter, Metric, exported, meter_of
from tests.campaigns import CONTROLS, FakeLauncher, certified, write_configs

RACY, CLEAN = CONTROLS


@dataclass
class Kept:
    """A sink that keeps what it is given."""

    values: list[tuple[str, float, dict[str, str]]] = field(default_factory=list)

    def record(self, metric: Metric, value: float, tags: Mapping[str, str]) -> None:
        assert set(tags) == set(metric.tags), metric.name
        self.values.append((metric.name, value, dict(tags)))

    def of(self, metric: Metric) -> list[tuple[float, dict[str, str]]]:
        return [(value, tags) for name, value, tags in self.values if name == metric.name]


@dataclass
class MeteredLauncher(FakeLauncher):
    """Somebody listens."""

    kept: Kept = field(default_factory=Kept)

    @property
    def meter(self) -> Meter:
        return Meter(self.kept)


@pytest.fixture
def root(campaigned: Path, tmp_path: Path) -> Path:
    shutil.copytree(campaigned, tmp_path / "copy")
    return tmp_path / "copy"


def another_alphabet(monkeypatch: pytest.MonkeyPatch, attempt: int = 4) -> dict[int, Any]:
    """From that attempt on a replay answers with other bits; the controls come before it."""

    def change(_: object) -> None:
        monkeypatch.setattr("fleet.replay.engines.synthetic.LIKELY", b"ABCE .()")

    return {attempt: change}


def test_a_campaign_says_when_it_ran_and_what_passed(tmp_path: Path) -> None:
    write_configs(tmp_path / "configs")
    launcher = MeteredLauncher()
    assert certified(tmp_path, "toy", launcher=launcher).exit_code() == 0
    kept = launcher.kept
    assert kept.of(metrics.VERDICTS) == [(1.0, {"word": "PASS", "contract": "toy"})]
    ((at_s, tags),) = kept.of(metrics.PASSED_AT)
    assert tags["contract"] == "toy" and len(tags["platform"]) == 12
    (begun, _), (over, _) = kept.of(metrics.STARTED_AT)
    ((ended, _),) = kept.of(metrics.ENDED_AT)
    assert over == 0.0 and begun <= at_s <= ended
    assert kept.of(metrics.QUARANTINED) == [(0.0, {})]
    for silent in (metrics.MISMATCHES, metrics.REGRESSIONS, metrics.MISBEHAVED):
        assert kept.of(silent) == []


def test_a_regression_is_counted_with_its_mismatches(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = MeteredLauncher(script=another_alphabet(monkeypatch))
    assert certified(root, launcher=launcher).exit_code() == 1
    kept = launcher.kept
    assert kept.of(metrics.VERDICTS) == [(1.0, {"word": "FAIL", "contract": "toy"})]
    ((differing, tags),) = kept.of(metrics.MISMATCHES)
    assert differing > 0 and tags == {"contract": "toy"}
    ((times, where),) = kept.of(metrics.REGRESSIONS)
    assert times == 1.0 and where["contract"] == "toy"
    assert kept.of(metrics.PASSED_AT) == []


def test_a_control_that_behaves_is_no_mismatch_of_the_fleet(root: Path) -> None:
    launcher = MeteredLauncher()
    answer = certified(root, RACY, launcher=launcher)
    assert answer.contracts[0].verdict == "FAIL" and answer.exit_code() == 0
    for quiet in (metrics.VERDICTS, metrics.MISMATCHES, metrics.REGRESSIONS, metrics.MISBEHAVED):
        assert launcher.kept.of(quiet) == []


def test_a_control_that_does_not_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_configs(tmp_path / "configs")
    monkeypatch.setattr(os, "urandom", lambda n: bytes(n))
    launcher = MeteredLauncher()
    assert certified(tmp_path, "toy", launcher=launcher).exit_code() == 3
    assert launcher.kept.of(metrics.MISBEHAVED) == [(1.0, {"contract": RACY})]
    assert launcher.kept.of(metrics.VERDICTS) == [(1.0, {"word": "VOID", "contract": "toy"})]


def test_what_the_driver_reports_has_one_call_each() -> None:
    kept = Kept()
    meter = Meter(kept)
    meter.attempt_ended("LOST", 12.5)
    meter.queue(3, 90.0)
    meter.units(3, 4)
    meter.units(0, 0)
    assert kept.values == [
        ("fleet_attempts", 1.0, {"state": "LOST"}),
        ("fleet_replay_seconds", 12.5, {"state": "LOST"}),
        ("fleet_replay_spent_seconds", 12.5, {"state": "LOST"}),
        ("fleet_queue_pending", 3.0, {}),
        ("fleet_queue_oldest_seconds", 90.0, {}),
        ("fleet_units_busy_share", 0.75, {}),
        ("fleet_units_busy_share", 0.0, {}),
    ]


def test_without_a_listener_everything_goes_nowhere() -> None:
    assert meter_of(FakeLauncher()) is SILENT
    SILENT.attempt_ended("COMPLETE", 1.0)
    SILENT.queue(1, 1.0)


def test_every_metric_is_declared_once() -> None:
    declared = [value for value in vars(metrics).values() if isinstance(value, Metric)]
    assert sorted(m.name for m in METRICS) == sorted(m.name for m in declared)
    names = [name for metric in METRICS for name in exported(metric)]
    assert len(set(names)) == len(names)
    assert all(list(m.bounds) == sorted(m.bounds) for m in METRICS)


def test_a_fresh_process_is_not_given_more_to_import() -> None:
    """It imports the cluster's module, and with it this one."""
    program = "import sys, fleet.schedule.metrics as _; print('duckdb' in sys.modules)"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
