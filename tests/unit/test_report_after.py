"""The report that a driver writes after a campaign: it never changes what the campaign answered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fleet.cli import run
from fleet.options import Where
from fleet.report_verbs import Kind, kind_of
from tests.campaigns import FakeLauncher, write_configs

NIGHT = """schema = 1
[night]
budget_minutes = 60
contracts = ["toy"]
[[nodes]]
label = "test-node"
"""


@contextmanager
def launching(_: Where) -> Iterator[FakeLauncher]:
    yield FakeLauncher()


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with configs, in which replays run in this process."""
    configs = write_configs(tmp_path / "configs")
    (configs / "fleets").mkdir()
    (configs / "fleets" / "mine.toml").write_text(NIGHT)
    monkeypatch.setattr(Where, "cluster", launching)
    monkeypatch.setenv("FLEET_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def asked(verb: str, name: str, *more: str) -> int:
    return run([verb, name, "--configs", "configs", "--store", "s.duckdb", "--landing", "l", *more])


def test_a_campaign_writes_the_report_that_was_asked_for(work: Path) -> None:
    assert asked("certify", "toy", "--report", "after.json") == 0
    told = json.loads((work / "after.json").read_text())
    assert {c["contract"]: c["word"] for c in told["cells"]}["toy"] == "PASS"
    assert asked("campaign", "mine", "--report", "night.html") == 0
    assert "<!doctype html>" in (work / "night.html").read_text()


def test_a_report_that_fails_says_so_and_leaves_the_exit_code(
    work: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr("fleet.report.report_data.report_document", broken)
    assert asked("certify", "toy", "--json", "--report", "after.html") == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["contracts"][0]["verdict"] == "PASS"
    assert "no report was written, and the verdicts stand: RuntimeError: a fault of ours" in err
    assert "next: fleet report --output after.html" in err
    assert not (work / "after.html").exists()


def test_a_disk_that_is_full_by_then_changes_no_exit_code(
    work: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    assert asked("certify", "control-racy-synthetic", "--report", "after.html") == 0
    assert "No space left on device" in capfd.readouterr().err


def test_a_place_that_cannot_be_written_is_refused_before_anything_runs(work: Path) -> None:
    assert asked("certify", "toy", "--report", "no/such/folder.html") == 2
    assert not (work / "l").exists()


def test_the_form_follows_the_name_of_the_file() -> None:
    names = {"a.md": Kind.md, "a.json": Kind.json, "a.html": Kind.html, "a": Kind.html}
    assert {name: kind_of(Path(name)) for name in names} == names
    assert kind_of(None) is Kind.html


def test_a_report_is_opened_or_says_where_it_is(
    work: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert asked("certify", "toy") == 0
    shown: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda url: bool(shown.append(url)))
    where = ["--configs", "configs", "--store", "s.duckdb", "--landing", "l"]
    assert run(["report", "--open", *where]) == 0
    assert shown == [(work / "fleet-report.html").as_uri()]
    assert f"no browser here; open {work / 'fleet-report.html'}" in capfd.readouterr().err
    assert run(["report", "--open", "--output", "-", *where]) == 2
    assert run(["report", "--open", "--output", "x.md", *where]) == 2


def test_a_report_is_narrowed_like_a_status(work: Path) -> None:
    assert asked("certify", "toy") == 0
    where = ["--configs", "configs", "--store", "s.duckdb", "--landing", "l"]
    assert run(["report", "--gpu", "H200", "--output", "none.json", *where]) == 0
    assert json.loads((work / "none.json").read_text())["cells"] == []
    assert run(["report", "--state", "pass", "--output", "some.json", *where]) == 0
    assert json.loads((work / "some.json").read_text())["cells"] != []
