"""The command line from outside: exit codes, one clear message, one JSON document, nothing half
written. Everything here ends before a process would be started on a cluster."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pytest
import typer

from fleet.cli import app, run
from fleet.options import Where
from tests.campaigns import (
    CONTRACT,
    CONTROLS,
    questions,
    write_configs,
    write_contract,
    write_dataset,
)

ROOT = Path(__file__).parents[2]
VERBS = {
    "certify", "status", "diff", "replay", "logs", "doctor",
    "contract check", "contract show", "contract new",
    "store ingest", "store rebuild", "store snapshot",
}  # fmt: skip


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An own folder as working directory: configs with the contract ``toy``, nothing certified."""
    for name in ("FLEET_STORE", "FLEET_LANDING", "FLEET_CONFIGS", "FLEET_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FLEET_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "project"
    write_configs(root / "configs")
    monkeypatch.chdir(root)
    return root


@pytest.fixture
def certified(project: Path, campaigned: Path) -> Path:
    """The same with evidence: ``toy`` and ``other`` PASS, the racy control FAILs."""
    shutil.rmtree(project / "configs")
    for name in ("configs", "var"):
        shutil.copytree(campaigned / name, project / name)
    return project


def tree(root: Path) -> dict[str, bytes | None]:
    return {str(p): p.read_bytes() if p.is_file() else None for p in sorted(root.rglob("*"))}


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


def test_what_writes_can_be_told_where_and_what_schedules_can_be_tried_dry() -> None:
    def has(option: str) -> set[str]:
        return {v for v, c in COMMANDS.items() if any(option in p.opts for p in c.params)}

    assert {"certify", "replay"} <= has("--dry-run")
    assert {"certify", "status", "diff", "replay", "logs", "doctor"} <= has("--output")
    assert has("--json") == VERBS - {"contract new", "store snapshot"}


# bad input


@dataclass(frozen=True)
class Bad:
    """One thing wrong: how it is made so, the command line, and what the message must say."""

    make: Callable[[Path], object]
    argv: list[str]
    words: tuple[str, ...]


def nothing(_: Path) -> None:
    return None


def toy(old: str, new: str) -> Callable[[Path], object]:
    assert old in CONTRACT
    return lambda root: write_contract(root / "configs", "toy", CONTRACT.replace(old, new))


def model(lines: str) -> Callable[[Path], object]:
    ours = 'checkpoint = "demo:synthetic"\nengine = "synthetic"\ndtype = "float32"\n'
    return toy(ours, lines + 'dtype = "bfloat16"\n')


def dataset(data: bytes, digest: str | None = None) -> Callable[[Path], object]:
    return lambda root: write_dataset(root / "configs", "five", data, digest)


def file(name: str, text: str = "mine") -> Callable[[Path], object]:
    def make(root: Path) -> None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)

    return make


def newer_store(root: Path) -> None:
    (root / "var").mkdir()
    with duckdb.connect(str(root / "var" / "fleet.duckdb")) as con:
        con.execute("CREATE TABLE meta(key VARCHAR PRIMARY KEY, value VARCHAR NOT NULL)")
        con.execute("INSERT INTO meta VALUES ('schema', '99')")


def rows(*lines: str) -> bytes:
    return "".join(line + "\n" for line in lines).encode()


GOOD = '{"id": "a", "question": "q", "answer": "A"}'
TOY = "configs/contracts/toy.toml"
FIVE = "five.jsonl: line "
CERTIFY = ["certify", "toy"]

BAD: dict[str, Bad] = {
    "an unknown key": Bad(
        toy("num_beams = 1", "num_beams = 1\nnum_beam = 2"), CERTIFY,
        (TOY, "decoding.num_beam", "unknown key", 'did you mean "num_beams"'),
    ),
    "an unknown table": Bad(toy("[require]", "[requires]"), CERTIFY, (TOY, "requires", "require")),
    "a wrong type": Bad(
        toy("max_new_tokens = 4", 'max_new_tokens = "4"'), CERTIFY,
        (TOY, "decoding.max_new_tokens", "an integer", "'4' (string)"),
    ),
    "true for a number": Bad(
        toy("seed = 0\npy", "seed = true\npy"), CERTIFY, (TOY, "seed", "true"),
    ),
    "no TOML": Bad(toy("[decoding]", "[decoding"), CERTIFY, (TOY, "line ", "valid TOML")),
    "one replay": Bad(toy("replays = 2", "replays = 1"), CERTIFY, ("require.replays", ">= 2")),
    "an unpinned hub revision": Bad(
        model('checkpoint = "hf:org/model"\nrevision = "main"\n'), CERTIFY,
        (TOY, "model.revision", "40 hexadecimal digits", "'main'"),
    ),
    "no hub revision": Bad(model('checkpoint = "hf:org/model"\n'), CERTIFY, ("model.revision",)),
    "a missing checkpoint": Bad(
        model('checkpoint = "path:nowhere"\n'), CERTIFY, ("nowhere", "expected", "got"),
    ),
    "an unknown demo": Bad(
        model('checkpoint = "demo:nothing"\n'), CERTIFY, ("demo:nothing", "demo:tiny-llama"),
    ),
    "an engine and another model": Bad(
        toy('dtype = "float32"', 'dtype = "bfloat16"'), CERTIFY, (TOY, "model.dtype", '"float32"'),
    ),
    "a grade of a later version": Bad(
        toy('grade = "logits"', 'grade = "modules"'), CERTIFY, ("require.grade", "not supported"),
    ),
    "a dataset that changed": Bad(
        dataset(questions(), "sha256:" + "0" * 64), CERTIFY,
        ("datasets/five.toml", "sha256", "0000", "another execution id"),
    ),
    "a missing dataset": Bad(toy('"five"', '"fife"'), CERTIFY, ("'fife'", 'did you mean "five"')),
    "duplicate ids": Bad(dataset(rows(GOOD, GOOD)), CERTIFY, (FIVE + "2", "first on line 1")),
    "an empty id": Bad(
        dataset(rows(GOOD.replace('"a"', '" "'))), CERTIFY, (FIVE + "1", "non-empty", "id"),
    ),
    "an id that is a number": Bad(
        dataset(rows(GOOD.replace('"a"', "7"))), CERTIFY, (FIVE + "1", 'a string as "id"', "7"),
    ),
    "no id": Bad(dataset(rows('{"answer": "A"}')), CERTIFY, (FIVE + "1", 'a field "id"')),
    "an empty dataset": Bad(dataset(b""), CERTIFY, ("five.jsonl", "at least one record")),
    "a malformed line": Bad(
        dataset(rows(GOOD, GOOD.replace('"a"', '"b"'), '{"id": "c"')), CERTIFY,
        (FIVE + "3", "a JSON object", "column", "correct line 3"),
    ),
    "a blank line": Bad(dataset(rows(GOOD, "")), CERTIFY, (FIVE + "2", "blank line")),
    "bytes that are no text": Bad(dataset(b'{"id": "\xff"}\n'), CERTIFY, (FIVE + "1", "UTF-8")),
    "a template that names no field": Bad(
        toy('template = "{{ question }}"', 'template = "{{ qestion }}"'), CERTIFY,
        (TOY, "arms.current.template", "'qestion' is undefined", "question"),
    ),
    "a template that divides by zero": Bad(
        toy('template = "{{ question }}"', 'template = "{{ 1 / 0 }}"'), CERTIFY,
        ("arms.current.template", "division by zero"),
    ),
    "a template that reads the clock": Bad(
        toy('template = "{{ question }}"', "template = \"{{ strftime_now('%Y') }}\""), CERTIFY,
        ("arms.current.template", "time of day", "clock ="),
    ),
    "an unknown parser": Bad(
        toy('parser = "letter"', 'parser = "leter"'), CERTIFY, ("parser", "leter", "letter"),
    ),
    "an unknown contract": Bad(nothing, ["certify", "tyo"], ("'tyo'", 'did you mean "toy"')),
    "a contract file that is not there": Bad(nothing, ["certify", "x/y.toml"], ("no such file",)),
    "a contract twice": Bad(nothing, ["certify", "toy", "toy"], ("toy", "each contract once")),
    "a store below a file": Bad(
        file("file"), [*CERTIFY, "--store", "file/s.duckdb"], ("expected a folder", "--store FILE"),
    ),
    "a store that is a folder": Bad(
        nothing, [*CERTIFY, "--store", "configs"], ("configs", "a store file", "--store"),
    ),
    "a store that is something else": Bad(
        file("notes.txt"), [*CERTIFY, "--store", "notes.txt"], ("notes.txt", "a fleet store"),
    ),
    "a store newer than the code": Bad(
        newer_store, CERTIFY, ("var/fleet.duckdb", "schema", "at most 1", "99"),
    ),
    "a landing that is a file": Bad(
        file("file"), [*CERTIFY, "--landing", "file"], ("file", "expected a folder", "--landing"),
    ),
    "a landing newer than the code": Bad(
        file("var/landing/FORMAT.json", '{"format": 2}'), CERTIFY,
        ("FORMAT.json", "landing format 1", "got 2", "fleet version that wrote it"),
    ),
    "an output folder that is not there": Bad(
        nothing, [*CERTIFY, "--output", "no/such/file.json"], ("existing folder", "no/such/file"),
    ),
    "a config folder that is not there": Bad(
        nothing, [*CERTIFY, "--configs", "nowhere"], ("--configs", "'nowhere'"),
    ),
    "a sample that is not there": Bad(
        nothing, ["replay", "toy", "--sample", "s9", "--arm", "current"], ("--sample", "s0, s1"),
    ),
    "an arm that is not there": Bad(
        nothing, ["replay", "toy", "--sample", "s1", "--arm", "x"], ("controlled, current",),
    ),
    "no sample": Bad(nothing, ["replay", "toy", "--arm", "current"], ("--sample",)),
    "no contract": Bad(nothing, ["certify"], ("Missing argument 'contracts'",)),
    "an unknown verb": Bad(nothing, ["certfy", "toy"], ("certfy",)),
    "an unknown option": Bad(nothing, [*CERTIFY, "--jsn"], ("--jsn",)),
    "a value that is no number": Bad(nothing, [*CERTIFY, "--retries", "x"], ("--retries",)),
    "status without a store": Bad(nothing, ["status"], ("var/fleet.duckdb", "a store", "none")),
    "diff without a store": Bad(nothing, ["diff", "a", "b"], ("var/fleet.duckdb", "a store")),
    "logs without a landing": Bad(nothing, ["logs", "abcd"], ("var/landing", "a landing folder")),
    "ingest without a landing": Bad(nothing, ["store", "ingest"], ("var/landing", "fleet certify")),
    "rebuild without a landing": Bad(nothing, ["store", "rebuild"], ("var/landing",)),
    "snapshot without a store": Bad(nothing, ["store", "snapshot"], ("var/fleet.duckdb",)),
    "a new contract over an old one": Bad(nothing, ["contract", "new", "toy"], (TOY, "existing")),
    "a new contract with no name for a file": Bad(nothing, ["contract", "new", "a/b"], ("'a/b'",)),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_exit_2_with_one_message_and_nothing_written(
    project: Path, capfd: pytest.CaptureFixture[str], case: str
) -> None:
    bad = BAD[case]
    bad.make(project)
    before = tree(project)
    code = run(bad.argv)
    out, err = capfd.readouterr()
    assert code == 2, err
    assert out == ""
    assert "Traceback" not in err and "internal error" not in err
    assert err.count("error: ") == 1 and err.startswith("error: ")
    assert err.count("\n  next: ") == 1, err
    for word in bad.words:
        assert word in err, err
    assert tree(project) == before
    assert not (project.parent / "cache").exists()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["logs", "ffff"], "0 attempts that begin so"),
        (["diff", "ffff", "toy"], "at least one that is none of them"),
        (["diff", "toy", "nobody"], "at least one that is none of them"),
        (["status", "tyo"], "neither has it"),
        (["status", "--landing", "nowhere"], "a landing folder, got none"),
        (["status", "--store", "nowhere.duckdb"], "a store, got none"),
    ],
)
def test_a_name_without_evidence_is_a_usage_error_too(
    certified: Path, capfd: pytest.CaptureFixture[str], argv: list[str], words: str
) -> None:
    before = tree(certified)
    assert run(argv) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("error: "), err.count("next: ")) == ("", 1, 1)
    assert words in err
    assert tree(certified) == before


def fleet(root: Path, *argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """One command line in a process of its own."""
    given = {k: v for k, v in os.environ.items() if not k.startswith("FLEET_")}
    given |= {"PYTHONPATH": str(ROOT), "FLEET_CACHE": str(root / "cache")} | environment
    command = [sys.executable, "-m", "fleet", *argv]
    return subprocess.run(
        command, cwd=root, env=given, capture_output=True, text=True, check=False, timeout=120
    )


def test_a_process_of_its_own_says_the_same(project: Path) -> None:
    write_contract(project / "configs", "toy", CONTRACT.replace("[require]", "[requires]"))
    done = fleet(project, "certify", "toy", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 2
    assert not (project / "var").exists()


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
    (["logs", "{0}"], 0),
    (["contract", "check", "toy", "other"], 0),
    (["contract", "show", "toy"], 0),
    (["store", "ingest"], 0),
    (["store", "rebuild"], 0),
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


@pytest.mark.parametrize(("argv", "code"), READS[:4] + READS[5:7], ids=lambda v: str(v))
def test_the_same_read_for_a_person_exits_alike(
    certified: Path, capfd: pytest.CaptureFixture[str], argv: list[str], code: int
) -> None:
    assert run([a.format(attempts(certified)[0]) for a in argv]) == code
    out, err = capfd.readouterr()
    assert out and err == ""
    with pytest.raises(ValueError, match="Expecting value"):
        json.loads(out)


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
