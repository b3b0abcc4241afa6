"""The script of the CronJob, with a ``kubectl`` that answers as one of a cluster would."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from fleet import job as room
from tests.unit.test_job import DOCUMENT

KUBERAY = Path(__file__).parents[2] / "infra" / "kuberay"
NAME = "nightly-2026-11-30"

KUBECTL = r"""#!/bin/sh
here=$(dirname "$0")
echo "$@" >> "$here/asked"
case "$1 $2" in
  "get rayjobs") cat "$here/jobs" ;;
  "create -f") cat > "$here/created"; cat "$here/told"; exit "$(cat "$here/code")" ;;
  "get rayjob") next=$(head -n 1 "$here/states"); sed -i 1d "$here/states"
    [ "$next" != gone ] || exit 1
    printf %s "$next" ;;
  *) exit 9 ;;
esac
"""


class Cluster:
    """``states``: the states of today's RayJob, one an asking."""

    def __init__(self, folder: Path, states: str, jobs: str = "") -> None:
        self.folder = folder
        for name, text in {
            "kubectl": KUBECTL, "states": states, "jobs": jobs, "told": "created", "code": "0",
        }.items():  # fmt: skip
            (folder / name).write_text(text)
        (folder / "kubectl").chmod(0o755)

    def run(self) -> subprocess.CompletedProcess[str]:
        given = {
            "PATH": f"{self.folder}:{os.environ['PATH']}", "FLEET_NAME": "nightly",
            "FLEET_DAY": "2026-11-30", "FLEET_POLL_S": "0", "FLEET_VERDICTS": str(self.folder),
            "FLEET_TEMPLATE": str(KUBERAY / "rayjob.yaml"),
        }  # fmt: skip
        return subprocess.run(
            ["sh", str(KUBERAY / "nightly.sh")], env=given, capture_output=True, text=True,
            check=False, timeout=60,
        )  # fmt: skip


def verdict(folder: Path, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the job itself writes it."""

    def run(argv: list[str]) -> int:
        Path(argv[argv.index("--output") + 1]).write_text(json.dumps(DOCUMENT))
        return code

    monkeypatch.setattr(room, "run", run)
    assert room.job("certify", ["toy", "--verdict-file", str(folder / f"{NAME}.json")]) == code


@pytest.mark.parametrize(("code", "state"), [(0, "Complete"), (1, "Failed"), (3, "Failed")])
def test_it_ends_with_the_exit_code_of_the_verdict(
    code: int, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, f"\nRunning\n{state}\n")
    verdict(tmp_path, code, monkeypatch)
    done = cluster.run()
    assert done.returncode == code, done.stderr
    made = (tmp_path / "created").read_text()
    assert f"name: {NAME}" in made and "FLEET_NIGHT" not in made
    assert f'"exit_code": {code}' in done.stdout


def test_a_second_start_of_one_night_waits_for_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, "Running\nComplete\n", f"{NAME}=Running\nnightly-old=Complete\n")
    (tmp_path / "told").write_text("Error from server (AlreadyExists): it already exists")
    (tmp_path / "code").write_text("1")
    verdict(tmp_path, 0, monkeypatch)
    done = cluster.run()
    assert done.returncode == 0 and f"{NAME} was created before" in done.stdout


def test_another_night_that_runs_is_left_alone(tmp_path: Path) -> None:
    done = Cluster(tmp_path, "Complete\n", "by-hand=Running\nold=Failed\n").run()
    assert done.returncode == 3 and "by-hand=Running" in done.stderr
    assert not (tmp_path / "created").exists()


def test_a_night_without_a_verdict_establishes_nothing(tmp_path: Path) -> None:
    for states, words in (
        ("Complete\n", "without a verdict"),
        ("ValidationFailed\n", "ended as ValidationFailed"),
        ("Running\ngone\n", "it is gone"),
    ):
        done = Cluster(tmp_path, states).run()
        assert done.returncode == 3 and words in done.stderr


def test_a_refusal_of_the_cluster_is_no_fail(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "Complete\n")
    (tmp_path / "told").write_text("Error from server (Forbidden): no")
    (tmp_path / "code").write_text("1")
    done = cluster.run()
    assert done.returncode == 3 and "Forbidden" in done.stderr


def test_a_verdict_that_cannot_be_read_is_no_pass(tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.json").write_text('{\n  "exit_code": 17,\n')
    done = Cluster(tmp_path, "Complete\n").run()
    assert done.returncode == 3 and "no exit code" in done.stderr
