"""A job's verdict file is its answer: written last, once, and never better than what was shown."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from fleet import job as room
from fleet.job import VERDICT_FILE, job
from fleet.submit import exit_code_of, submission_id, submit

ROOT = Path(__file__).parents[2]
ENTRY = {
    "contract": "toy",
    "execution_id": "sha256:01",
    "platform": "sha256:02",
    "vary": [],
    "verdict": "PASS",
    "state": "PASS",
    "attained_grade": "logits",
    "reason": "PASS(logits)",
}
DOCUMENT = {"schema": 1, "campaign": "c1", "contracts": [ENTRY], "controls": []}
Asked = list[list[str]]
Fleet = Callable[..., Asked]


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """A command line that writes a document and ends with a code, in place of the product's."""
    monkeypatch.delenv(VERDICT_FILE, raising=False)

    def stand_in(code: int, document: dict[str, Any] | None = DOCUMENT, status: int = 0) -> Asked:
        asked: Asked = []

        def run(argv: Sequence[str]) -> int:
            asked.append(list(argv))
            if document is not None and "--output" in argv:
                Path(argv[list(argv).index("--output") + 1]).write_text(json.dumps(document))
            return status if argv[0] == "status" else code

        monkeypatch.setattr(room, "run", run)
        return asked

    return stand_in


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.mark.parametrize("code", [0, 1, 3])
def test_the_file_says_what_the_verb_ended_with(
    code: int, fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = fleet(code)
    file = tmp_path / "new" / "v.json"
    assert job("certify", ["toy", "--verdict-file", str(file), "--store", "s"]) == code
    assert asked[0][:6] == ["certify", "toy", "--store", "s", "--address", "auto"]
    body = read(file)
    assert (body["schema"], body["exit_code"], body["campaign"]) == (1, code, "c1")
    assert body["job"] == ["certify", "toy", "--store", "s"]
    assert body["contracts"] == [
        {
            "contract": "toy", "execution_id": "sha256:01", "platform": "sha256:02", "vary": [],
            "verdict": "PASS", "grade": "logits", "reason": "PASS(logits)",
        }
    ]  # fmt: skip
    assert body["started"] <= body["ended"] and body["ended"].endswith("Z")
    assert capsys.readouterr().out.splitlines()[-1] == f"fleet exit code: {code}"


def test_the_environment_may_name_the_file(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet(0)
    monkeypatch.setenv(VERDICT_FILE, str(tmp_path / "v.json"))
    assert job("certify", ["toy"]) == 0
    assert read(tmp_path / "v.json")["exit_code"] == 0


def test_a_trace_has_a_result_in_place_of_a_verdict(fleet: Fleet, tmp_path: Path) -> None:
    fleet(1, DOCUMENT | {"contracts": [{"contract": "toy", "result": "DIFFERENT"}]})
    assert job("trace", ["toy", f"--verdict-file={tmp_path / 'v.json'}"]) == 1
    assert read(tmp_path / "v.json")["contracts"][0]["verdict"] == "DIFFERENT"


def test_a_night_tells_where_every_contract_stands(fleet: Fleet, tmp_path: Path) -> None:
    asked = fleet(1, DOCUMENT | {"campaign": None}, status=3)
    file = tmp_path / "v.json"
    argv = ["nightly", "--landing=l", "--store", "s", "--campaign-id", "n1"]
    assert job("campaign", [*argv, "--verdict-file", str(file)], ["status"]) == 1
    assert asked[0] == ["campaign", *argv, "--address", "auto"]
    assert asked[1][:5] == ["status", "--store", "s", "--landing", "l"]
    assert (read(file)["campaign"], read(file)["exit_code"]) == ("n1", 1)
    assert read(file)["contracts"][0]["contract"] == "toy"


@pytest.mark.parametrize("document", [None, DOCUMENT | {"contracts": []}])
def test_a_zero_that_tells_of_no_contract_is_no_pass(
    document: dict[str, Any] | None, fleet: Fleet, tmp_path: Path
) -> None:
    fleet(0, document)
    for number, then in enumerate(([], ["status"])):
        file = tmp_path / f"{number}.json"
        assert job("certify", ["toy", "--verdict-file", str(file)], then) == 3
        assert read(file)["exit_code"] == 3


@pytest.mark.parametrize(
    "option", ["--dry-run", "--help", "--json", "--output=x", "--output", "--version"]
)
def test_what_gives_no_verdict_is_refused(option: str, fleet: Fleet, tmp_path: Path) -> None:
    asked = fleet(0)
    assert job("certify", ["toy", option, "--verdict-file", str(tmp_path / "v.json")]) == 2
    assert asked == []
    assert read(tmp_path / "v.json")["exit_code"] == 2


def test_a_verdict_is_never_written_over(
    fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = fleet(0)
    file = tmp_path / "v.json"
    file.write_text("of another run")
    assert job("certify", ["toy", "--verdict-file", str(file)]) == 2
    assert asked == [] and file.read_text() == "of another run"
    assert "its exit_code is the answer" in capsys.readouterr().err


def test_a_verdict_that_cannot_be_written_down_is_not_claimed(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet(0)
    file = tmp_path / "v.json"

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "link", full)
    assert job("certify", ["toy", "--verdict-file", str(file)]) == 3
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_found_before_the_work(
    fleet: Fleet, tmp_path: Path
) -> None:
    asked = fleet(0)
    (tmp_path / "file").write_text("")
    assert job("certify", ["toy", "--verdict-file", str(tmp_path / "file" / "v.json")]) == 2
    assert asked == []


def test_the_scripts_run_the_verbs_and_hold_no_logic() -> None:
    for name, verb in {"certify": "certify", "trace": "trace", "nightly": "campaign"}.items():
        text = (ROOT / "jobs" / f"{name}.py").read_text()
        assert f'main("{verb}"' in text and len(text.splitlines()) <= 15


def test_a_script_says_a_wrong_contract_in_its_file(tmp_path: Path) -> None:
    file = tmp_path / "v.json"
    given = {k: v for k, v in os.environ.items() if not k.startswith("FLEET_")}
    done = subprocess.run(
        [sys.executable, str(ROOT / "jobs" / "certify.py"), "no-such", "--verdict-file", str(file)],
        cwd=tmp_path, env=given | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert done.stdout.splitlines()[-1] == "fleet exit code: 2"
    assert read(file)["contracts"] == [] and "no-such" in done.stderr


# submitting

DAY = date(2026, 11, 30)


def ray_program(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> Path:
    """A ``ray`` that notes its arguments and then does what ``body`` says; ends with 1, as ever."""
    program, log = folder / "bin" / "ray", folder / "asked"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> {log}\nfor last; do :; done\n{body}\nexit 1\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(program.with_name("python")))
    return log


def test_the_id_is_the_fleet_and_the_day() -> None:
    assert submission_id("nightly", DAY) == "nightly-2026-11-30"
    assert submission_id("configs/fleets/rack-1.toml", DAY) == "rack-1-2026-11-30"


@pytest.mark.parametrize("code", [0, 1, 2, 3])
def test_the_answer_is_the_verdict_file_whatever_ray_says(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = f'echo \'{{"exit_code": {code}}}\' > "$last"'
    log = ray_program(tmp_path, monkeypatch, write)
    for _ in range(2):  # the second time the night is there already
        assert submit(Path("j.py"), "nightly", DAY, tmp_path, ["--address", "a"], ["-x"]) == code
    (asked,) = log.read_text().splitlines()
    file = tmp_path / "nightly-2026-11-30.json"
    assert asked == (
        "job submit --address a --submission-id nightly-2026-11-30 "
        f"-- python j.py nightly -x --verdict-file {file}"
    )


def test_a_night_that_was_refused_or_still_runs_establishes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ray_program(tmp_path, monkeypatch, "true")
    assert submit(Path("j.py"), "nightly", DAY, tmp_path) == 3
    assert "ray job status nightly-2026-11-30" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"exit_code": true}', '{"exit_code": 7}'])
def test_a_file_that_says_nothing_is_no_pass(text: str, tmp_path: Path) -> None:
    (tmp_path / "v.json").write_text(text)
    assert exit_code_of(tmp_path / "v.json") == 3
    assert exit_code_of(tmp_path / "none.json") is None


def test_the_script_submits_today_and_without_ray_establishes_nothing(tmp_path: Path) -> None:
    log, program = tmp_path / "asked", tmp_path / "bin" / "ray"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexit 1\n')
    program.chmod(0o755)
    shown = []
    for path in (str(program.parent), str(tmp_path)):
        command = [sys.executable, str(ROOT / "jobs" / "submit.py"), "nightly", "--day"]
        command += ["2026-11-30", "--verdicts", str(tmp_path), "--address", "a", "--", "--budget"]
        program_here = "import sys; sys.executable = '/nowhere/python'; import runpy; "
        program_here += "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
        done = subprocess.run(
            [command[0], "-c", program_here, *command[1:], "1h"],
            env={"PATH": path, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 3, done.stderr
        shown.append(done.stderr)
    assert "--submission-id nightly-2026-11-30" in log.read_text()
    assert "nightly.py nightly --budget 1h --verdict-file" in log.read_text()
    assert shown[0] == "" and "ray[default]" in shown[1]
