"""The command line from outside: verbs, exit codes, one JSON document, what a person reads.

Everything here ends before a process would be started on a cluster.
"""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
import typer

from fleet.cli import app, run
from fleet.options import Where
from tests.campaigns import CONTROLS
from tests.integration.command_line import ROOT, fleet, tree

VERBS = {
    "certify", "screen", "sweep", "trace", "status", "units", "diff", "replay", "logs", "doctor",
    "matrix", "history", "query", "gate", "campaign", "upgrade-check", "stack freeze", "stack show",
    "contract check", "contract show", "contract new",
    "store ingest", "store rebuild", "store verify", "store snapshot", "store prune", "report",
    "retract",
    "certificate keygen", "certificate issue", "certificate verify", "certificate show",
    "certificate list",
}  # fmt: skip


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    children = getattr(command, "commands", None)
    if not children:
        yield " ".join(path), command
        return
    for name, child in children.items():
        yield from leaves(child, (*path, name))


COMMANDS = dict(leaves(typer.main.get_command(app)))


def test_the_verbs_are_these() -> None:
    assert set(COMMANDS) == VERBS


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_places_are_accepted_after_every_verb_and_every_verb_explains_itself(verb: str) -> None:
    command = COMMANDS[verb]
    options = {option for parameter in command.params for option in parameter.opts}
    assert {"--store", "--landing", "--address", "--configs"} <= options
    assert command.help
    assert "[" not in "".join(getattr(p, "help", "") or "" for p in command.params)  # markup


def test_what_writes_can_be_told_where_and_what_schedules_can_be_tried_dry() -> None:
    def has(option: str) -> set[str]:
        return {v for v, c in COMMANDS.items() if any(option in p.opts for p in c.params)}

    assert {"certify", "screen", "sweep", "trace", "replay", "campaign"} <= has("--dry-run")
    assert {"certify", "screen", "trace", "status", "diff", "replay", "logs"} <= has("--output")
    writes = {"certificate keygen", "certificate issue", "report"}  # a file, in a form of its own
    silent = {"contract new", "store snapshot", "stack freeze"}
    assert has("--json") == VERBS - silent - writes


# reads


def document(out: str) -> dict[str, Any]:
    """Exactly one JSON document, in strict JSON."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    found: dict[str, Any] = json.loads(out, parse_constant=refuse)
    assert out.endswith("}\n") and found["schema"] == 1
    return found


def attempts(root: Path) -> list[str]:
    return sorted(p.name for p in (root / "var" / "landing" / "attempts").iterdir())


READS: list[tuple[list[str], int]] = [
    (["status", "toy", "other"], 0),
    (["status", *CONTROLS], 0),
    (["status"], 3),
    (["diff", "toy", "other"], 1),
    (["diff", "{0}", "{1}"], 1),
    (["matrix"], 0),
    (["history", "toy"], 0),
    (["query", "SELECT contract, state FROM verdicts"], 0),
    (["query", "--views"], 0),
    (["gate", "--policy", "example"], 3),
    (["gate", "--policy", "example", "--mode", "warn"], 0),
    (["logs", "{0}"], 0),
    (["contract", "check", "toy", "other"], 0),
    (["contract", "show", "toy"], 0),
    (["store", "ingest"], 0),
    (["store", "rebuild"], 0),
    (["store", "verify"], 0),
    (["certify", "toy", "--dry-run"], 0),
    (["replay", "toy", "--sample", "s1", "--arm", "current", "--dry-run"], 0),
]


@pytest.mark.parametrize(("argv", "code"), READS, ids=[" ".join(a) for a, _ in READS])
def test_a_read_prints_one_json_document_and_nothing_else(
    certified: Path, capfd: pytest.CaptureFixture[str], argv: list[str], code: int
) -> None:
    racy = duckdb.connect(str(certified / "var" / "fleet.duckdb.snapshot"), read_only=True)
    found = racy.execute(
        "SELECT attempt FROM attempts WHERE contract = ? ORDER BY slot", [CONTROLS[0]]
    ).fetchall()
    racy.close()
    filled = [a.format(*(name for (name,) in found)) for a in argv]
    assert run([*filled, "--json"]) == code
    out, err = capfd.readouterr()
    assert err == ""
    document(out)


@pytest.mark.parametrize(("argv", "code"), READS[:4] + READS[5:13], ids=lambda v: str(v))
def test_the_same_read_for_a_person_exits_alike(
    certified: Path, capfd: pytest.CaptureFixture[str], argv: list[str], code: int
) -> None:
    assert run([a.format(attempts(certified)[0]) for a in argv]) == code
    out, err = capfd.readouterr()
    assert out and err == ""
    with pytest.raises(ValueError, match="Expecting value"):
        json.loads(out)


@pytest.mark.parametrize(
    ("argv", "code", "lines"),
    [
        (["status", "toy", "other"], 0, 3),
        (["status", "toy", "--state", "FAIL"], 3, 1),
        (["matrix", "toy", "other"], 0, 3),
        (["history", "toy"], 0, 2),
        (["query", "SELECT 1 AS a, 'x,y' AS b"], 0, 2),
    ],
)
def test_a_table_is_told_in_csv(
    certified: Path, capfd: pytest.CaptureFixture[str], argv: list[str], code: int, lines: int
) -> None:
    assert run([*argv, "--csv"]) == code
    out, err = capfd.readouterr()
    rows = list(csv.reader(io.StringIO(out, newline="")))
    assert err == "" and out.count("\r\n") == len(rows) == lines
    assert {len(row) for row in rows} == {len(rows[0])}


def test_what_cannot_be_asked_is_a_usage_error_in_one_message(
    certified: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = tree(certified)
    (certified / "bad.toml").write_text("[[rules]]\n")
    for argv in (
        ["query", "COPY (SELECT 1) TO 'out.csv'"],
        ["query", "SELECT * FROM read_text('bad.toml')"],
        ["query", "SELECT 1; DROP VIEW pairs"],
        ["query"],
        ["query", "SELECT 1", "--views"],
        ["query", "SELECT 1", "--limit", "0"],
        ["status", "--json", "--csv"],
        ["status", "--since", "soon"],
        ["matrix", "--package", "torch"],
        ["history", "toy", "--state", "GREEN"],
        ["history", "nobody-s"],
        ["gate"],
        ["gate", "--policy", "nowhere"],
        ["gate", "--policy", "./bad.toml"],
        ["gate", "--policy", "example", "--mode", "loud"],
        ["gate", "--policy", "example", "--json", "--markdown"],
        ["gate", "--policy", "./bad.toml", "--mode", "info"],
    ):
        assert run(argv) == 2, argv
        out, err = capfd.readouterr()
        assert out == "" and err.startswith("error: ") and "  next: " in err, argv
        assert "Traceback" not in err
    (certified / "bad.toml").unlink()
    assert tree(certified) == before


def test_output_goes_where_it_is_told_and_the_screen_stays_empty(
    certified: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for argv in (["status", "toy"], ["diff", "toy", "other"], ["certify", "toy", "--dry-run"]):
        for form in ([], ["--json"]):
            run([*argv, *form, "--output", "out.txt"])
            text = (certified / "out.txt").read_text()
            assert "toy" in text
            assert not form or document(text)
    assert capfd.readouterr() == ("", "")


def test_the_dry_run_shows_the_plan_and_writes_nothing(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = tree(project)
    assert run(["certify", "toy", "--dry-run", "--json"]) == 0
    plan = document(capfd.readouterr().out)
    assert [(p["contract"], p["replay"]) for p in plan["plan"]] == [
        (name, i) for name in (*CONTROLS, "toy") for i in (0, 1)
    ]
    assert set(plan["execution_ids"]) == {*CONTROLS, "toy"}
    assert tree(project) == before


def test_a_rebuilt_store_gives_equal_verdicts(
    certified: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def status() -> list[dict[str, Any]]:
        run(["status", "toy", "other", *CONTROLS, "--json"])
        rows = document(capfd.readouterr().out)["contracts"]
        return [row | {"age_s": None} for row in rows]

    before = status()
    assert [row["state"] for row in before] == ["PASS", "PASS", "FAIL", "PASS"]
    for path in (certified / "var").glob("fleet.duckdb*"):
        path.unlink()
    assert run(["store", "rebuild"]) == 0
    assert "attempts: 10" in capfd.readouterr().out
    assert status() == before


def test_an_edited_shard_is_void_after_the_next_ingest(
    certified: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["status", "toy"]) == 0
    for folder in (certified / "var" / "landing" / "attempts").iterdir():
        part = folder / "part-00000.parquet"
        part.write_bytes(part.read_bytes()[:-1] + b"?")
    assert run(["store", "ingest"]) == 0
    capfd.readouterr()
    assert run(["status", "toy"]) == 3
    assert "evidence-altered" in capfd.readouterr().out


def test_places_come_from_the_environment_and_options_go_before(
    certified: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (certified / "var").rename(certified / "moved")
    assert run(["status", "toy"]) == 2
    monkeypatch.setenv("FLEET_STORE", "moved/fleet.duckdb")
    monkeypatch.setenv("FLEET_LANDING", "moved/landing")
    assert run(["status", "toy"]) == 0
    monkeypatch.setenv("FLEET_STORE", "nowhere")
    assert run(["status", "toy", "--store", "moved/fleet.duckdb"]) == 0
    capfd.readouterr()
    (certified / "configs").rename(certified / "elsewhere")
    monkeypatch.setenv("FLEET_CONFIGS", "elsewhere")
    assert run(["contract", "show", "toy"]) == 0
    assert "decoding.max_new_tokens = 4  # toy.toml" in capfd.readouterr().out


def test_a_new_contract_can_be_checked_at_once(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["contract", "new", "mine"]) == 0
    assert "fleet contract check mine" in capfd.readouterr().out
    assert run(["contract", "show", "mine", "--json"]) == 0
    assert document(capfd.readouterr().out)["keys"]["model.checkpoint"]["from"] == "mine.toml"


def test_logs_are_those_of_the_attempts_own_process(
    certified: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    attempt = attempts(certified)[0]
    path = certified / "var" / "landing" / "attempts" / attempt / "stderr.txt"
    path.write_text("[bold]not markup[/bold] :smile:\n")
    assert run(["logs", attempt[:8]]) == 0
    assert "[bold]not markup[/bold] :smile:" in capfd.readouterr().out


def test_no_verb_is_help_and_a_usage_error(capfd: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    out, err = capfd.readouterr()
    assert "certify" in out
    assert err == ""


def test_the_version_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capfd.readouterr().out.startswith("fleet ")


@pytest.mark.torch
def test_the_doctor_says_what_runs_here_and_what_does_not(project: Path) -> None:
    done = fleet(project, "doctor", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = document(done.stdout)
    assert found["packages"]["ray"] and found["python"] == sys.version.split()[0]
    assert found["backends"]["awq"]["awq_torch"] == ""
    assert "CUDA" in found["backends"]["awq"]["awq_marlin"]
    assert found["processors"]["slow"] == ""
    assert found["contracts"]["toy"] == ""
    assert found["missing"] == []


# faults of ours


def test_a_fault_of_ours_is_exit_3_without_a_traceback_unless_asked_for(
    certified: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("[red]odd[/red]")

    monkeypatch.setattr(Where, "places", broken)
    assert run(["status"]) == 3
    err = capfd.readouterr().err
    assert "internal error (no verdict): ZeroDivisionError: [red]odd[/red]" in err
    assert "Traceback" not in err
    monkeypatch.setenv("FLEET_TRACEBACK", "1")
    assert run(["status"]) == 3
    assert "Traceback" in capfd.readouterr().err


def test_an_interrupt_is_exit_3(
    certified: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Where, "places", interrupted)
    assert run(["status"]) == 3
    assert "interrupted" in capfd.readouterr().err


def test_a_reader_that_leaves_early_is_no_fault(tmp_path: Path) -> None:
    """``fleet ... | head``: nothing is said of it, and no verdict was delivered."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        run = subprocess.run(
            [sys.executable, "-m", "fleet", "contract", "show", "smollm2-bf16"],
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=writer, stderr=subprocess.PIPE, text=True, check=False, timeout=120,
        )  # fmt: skip
    finally:
        os.close(writer)
    assert (run.returncode, run.stderr) == (3, "")
