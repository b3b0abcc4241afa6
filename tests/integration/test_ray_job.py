"""Jobs and metrics on a real Ray with its dashboard and its metrics agent (``ray[default]``)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest
import ray

from fleet.schedule import metrics
from fleet.schedule.cluster import RayCluster
from fleet.schedule.metrics import METRICS, exported
from fleet.schedule.ray_metrics import LINGER_S, RaySink
from fleet.submit import submission_id, submit
from tests.campaigns import write_configs
from tests.two_stacks import write_stack

ROOT = Path(__file__).parents[2]
pytest.importorskip("prometheus_client", reason="the agent needs ray[default]")
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(300)]


def scraped(until: set[str], within_s: float = 60.0) -> dict[str, str]:
    """What Prometheus would get from the agents of all nodes, by line up to its value."""
    end = time.monotonic() + within_s
    found: dict[str, str] = {}
    while not until <= {line.split("{")[0] for line in found}:
        assert time.monotonic() < end, until - {line.split("{")[0] for line in found}
        time.sleep(0.5)
        for node in ray.nodes():
            url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
            try:
                with urllib.request.urlopen(url, timeout=5) as answer:
                    lines = answer.read().decode().splitlines()
            except OSError:
                continue
            found |= dict(line.rsplit(" ", 1) for line in lines if line.startswith("ray_fleet_"))
    return found


def value(found: dict[str, str], name: str, *labels: str) -> float:
    lines = [v for k, v in found.items() if k.split("{")[0] == name and all(x in k for x in labels)]
    (only,) = lines
    return float(only)


def test_a_level_is_served_for_as_long_as_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray forgets a gauge that is not set again: this one is set once."""
    monkeypatch.setenv("RAY_metrics_report_interval_ms", "1000")
    monkeypatch.setattr("fleet.schedule.ray_metrics.AGAIN_S", 0.5)
    with RayCluster() as cluster:
        cluster.meter.quarantined(2)
        for _ in range(5):
            time.sleep(3)
            found = scraped({"ray_fleet_units_quarantined"}, within_s=2)
        assert value(found, "ray_fleet_units_quarantined") == 2.0


def test_everything_declared_is_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_metrics_report_interval_ms", "1000")
    monkeypatch.setenv(LINGER_S, "nonsense")
    with RayCluster() as cluster:
        meter = cluster.meter
        for state, seconds in (("COMPLETE", 3.0), ("COMPLETE", 30.0), ("LOST", 2.0)):
            meter.attempt_ended(state, seconds)
        meter.queue(4, 90.5)
        meter.units(3, 4)
        meter.verdict("PASS", "toy")
        meter.verdict("FAIL", "other", 7)
        meter.passed("toy", "sha256:0123456789abcdef", 1000.0)
        meter.regressed("other", "sha256:0123456789abcdef")
        meter.quarantined(1)
        meter.campaign_started(500.0)
        meter.sink.record(metrics.MISBEHAVED, 1.0, {"contract": "control-racy"})
        meter.sink.record(metrics.ENDED_AT, 400.0, {})
        names = {name for metric in METRICS for name in exported(metric)}
        found = scraped(names)
        assert {line.split("{")[0] for line in found} >= names
        assert value(found, "ray_fleet_attempts_total", 'state="COMPLETE"') == 2.0
        assert value(found, "ray_fleet_attempts_total", 'state="LOST"') == 1.0
        assert value(found, "ray_fleet_replay_spent_seconds_total", 'state="COMPLETE"') == 33.0
        assert value(found, "ray_fleet_replay_seconds_count", 'state="COMPLETE"') == 2.0
        assert value(found, "ray_fleet_mismatches_total", 'contract="other"') == 7.0
        assert value(found, "ray_fleet_queue_pending") == 4.0
        assert value(found, "ray_fleet_queue_oldest_seconds") == 90.5
        assert value(found, "ray_fleet_units_busy_share") == 0.75
        passed = ('contract="toy"', 'platform="0123456789ab"')
        assert value(found, "ray_fleet_last_pass_timestamp_seconds", *passed) == 1000.0
        assert value(found, "ray_fleet_campaign_started_timestamp_seconds") == 500.0


@pytest.mark.parametrize(("given", "waits"), [("0.3", True), ("", False), ("inf", False)])
def test_whoever_reported_stays_until_it_was_scraped(
    given: str, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setenv(LINGER_S, given)
    monkeypatch.setattr(time, "sleep", slept.append)
    RaySink().close(linger=True)
    assert slept == []
    sink = RaySink()
    sink._made["x"] = object()
    sink.close(linger=False)
    assert slept == []
    sink.close(linger=True)
    assert slept == [0.3 if waits else 0.0]


DASHBOARD = """
import os, sys
import ray
context = ray.init(
    address="local", include_dashboard=True, dashboard_port=int(sys.argv[1]), num_cpus=2,
    log_to_driver=False, logging_level="ERROR", _temp_dir=sys.argv[2],
)
print(context.dashboard_url, flush=True)
sys.stdin.read()
ray.shutdown()
"""


@pytest.fixture
def dashboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a local Ray that takes jobs, and runs them in an own folder. It is another
    process's: how Ray authenticates is settled for a process when it first connects."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("FLEET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FLEET_STORE", str(tmp_path / "var" / "fleet.duckdb"))
    monkeypatch.setenv("FLEET_LANDING", str(tmp_path / "var" / "landing"))
    monkeypatch.setenv("FLEET_CONFIGS", str(write_configs(tmp_path / "configs")))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    port = str(8267 + os.getpid() % 500)
    # A job is given the newest Ray of its Ray's folder: in the usual one that may be another's.
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        command = [sys.executable, "-c", DASHBOARD, port, folder]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, text=True, **pipes) as head:
            assert head.stdin is not None and head.stdout is not None
            yield f"http://{head.stdout.readline().strip()}"
            head.stdin.close()


def test_a_night_is_submitted_once_and_its_verdict_is_its_answer(
    dashboard: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script, day = ROOT / "jobs" / "certify.py", date(2026, 11, 30)
    address = ["--address", dashboard]
    assert submit(script, "toy", day, tmp_path, address) == 0
    shown = capfd.readouterr().out
    assert "toy: PASS: " in shown and "fleet exit code: 0" in shown
    name = submission_id("toy", day)
    file = tmp_path / f"{name}.json"
    body = json.loads(file.read_text())
    assert (body["exit_code"], body["contracts"][0]["verdict"]) == (0, "PASS")
    assert body["campaign"] in {p.name for p in (tmp_path / "var/landing/ledger").iterdir()}

    file.unlink()  # as if it still ran: the id alone keeps a second one out
    before = len(list((tmp_path / "var/landing/ledger").iterdir()))
    assert submit(script, "toy", day, tmp_path, address) == 3
    told = capfd.readouterr()
    assert f"ray job status {name}" in told.out and "already exists" in told.out + told.err
    assert len(list((tmp_path / "var/landing/ledger").iterdir())) == before

    assert submit(script, "no-such", day, tmp_path, address) == 2
    command = ["ray", "job", "status", *address, "no-such-2026-11-30"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "FAILED" in (ended.stdout + ended.stderr).upper()


def test_two_stacks_are_compared_by_a_job(dashboard: str, tmp_path: Path) -> None:
    """In effect is not what the second one froze: the job says 3, where Ray says 1."""
    write_stack(tmp_path, "old")
    write_stack(tmp_path, "other", numpy="99.0")
    for name, code, word in (("old", 0, "KEPT"), ("other", 3, "NOT_COVERED")):
        file = tmp_path / f"{name}.json"
        command = ["ray", "job", "submit", "--address", dashboard, "--", sys.executable]
        command += [str(ROOT / "jobs" / "upgrade_check.py"), "old", name, "--contract", "toy"]
        done = subprocess.run(
            [*command, "--verdict-file", str(file)], capture_output=True, text=True, check=False
        )
        assert file.exists(), done.stdout + done.stderr
        body = json.loads(file.read_text())
        (told,) = body["contracts"]
        assert (body["exit_code"], told["verdict"]) == (code, word), told["reason"]
        assert body["campaign"].startswith("upgrades-") and (done.returncode == 0) == (code == 0)
