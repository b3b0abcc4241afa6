"""Bad input from outside: exit 2, one clear message with its fix, nothing half written.

Everything here ends before a process would be started on a cluster.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pytest

from fleet.cli import run
from fleet.contract.canonical import sha256, to_text
from fleet.contract.load import BUILTIN
from fleet.store.migrations import SCHEMA
from tests.campaigns import CONTRACT, questions, write_contract, write_dataset
from tests.integration.command_line import fleet, tree

DATASETS = BUILTIN / "datasets"


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


def rack(line: str = 'contracts = ["toy"]') -> Callable[[Path], object]:
    text = f"[night]\nbudget_minutes = 9\n{line}\n[[nodes]]\n"
    return file("configs/fleets/rack.toml", text)


def pictures(line: str, vision: bool = True) -> Callable[[Path], object]:
    """A contract over one record, which may name an image; ``one.png`` is beside the dataset."""

    def make(root: Path) -> None:
        data = (DATASETS / "shapes-191" / "s001.png").read_bytes()
        line_of = line.replace("DIGEST", to_text(sha256(data)))
        write_dataset(root / "configs", "one", rows(line_of))
        (root / "configs" / "datasets" / "one.png").write_bytes(data)
        (root / "configs" / "one.png").write_bytes(data)
        text = (DATASETS.parent / "contracts" / "tiny-qwen2-vl.toml").read_text()
        if not vision:
            text = text.replace('kind = "vision"\nprocessor = "slow"\n', "")
        write_contract(root / "configs", "toy", text.replace("shapes-24", "one"))

    return make


PLAIN = {"id": "a", "question": "q", "choices": "c", "answer": "A"}


def picture(file: str, digest: str = "DIGEST") -> str:
    images = [{"file": file, "sha256": digest}]
    return json.dumps(PLAIN | {"images": images})


def rows(*lines: str) -> bytes:
    return "".join(line + "\n" for line in lines).encode()


GOOD = '{"id": "a", "question": "q", "answer": "A"}'
TOY = "configs/contracts/toy.toml"
FIVE = "five.jsonl: line "
CERTIFY = ["certify", "toy"]

BAD: dict[str, Bad] = {
    "a missing image": Bad(
        pictures(picture("two.png")), CERTIFY, ("record a: images", "two.png: No such file"),
    ),
    "an image with another digest": Bad(
        pictures(picture("one.png", f"sha256:{'0' * 64}")), CERTIFY,
        ("record a: images", f"sha256:{'0' * 64}", "one.png", "restore the file"),
    ),
    "an image outside the dataset's folder": Bad(
        pictures(picture("../one.png")), CERTIFY, ("record a: images", "inside", "'../one.png'"),
    ),
    "a vision contract over a dataset without images": Bad(
        pictures(json.dumps(PLAIN)), CERTIFY,
        (TOY, "dataset.name", "record a without images", 'kind = "text"'),
    ),
    "a text contract over a dataset with images": Bad(
        pictures(picture("one.png"), vision=False), CERTIFY,
        (TOY, "model.kind", "record a with images", 'kind = "vision"'),
    ),
    "a vision contract without a processor": Bad(
        toy("[model]", '[model]\nkind = "vision"'), CERTIFY,
        (TOY, "model.processor", '"fast" or "slow"'),
    ),
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
        newer_store, CERTIFY, ("var/fleet.duckdb", "schema", f"at most {SCHEMA}", "99"),
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
    "a trace of a sample that is not there": Bad(
        nothing, ["trace", "toy", "--sample", "s9"], ("--sample", "s0, s1"),
    ),
    "a trace of an arm that is not there": Bad(
        nothing, ["trace", "toy", "--arm", "x"], ("controlled, current",),
    ),
    "a trace of an engine without modules": Bad(
        nothing, ["trace", "toy"], ("model.engine", "an engine with modules"),
    ),
    "a step that is none": Bad(
        nothing, ["trace", "toy", "--step", "x"], ("--step", "prefill, or a step number"),
    ),
    "a trace of one replay": Bad(nothing, ["trace", "toy", "--replays", "1"], ("--replays",)),
    "a trace mode that is none": Bad(nothing, [*CERTIFY, "--trace", "yes"], ("--trace", "on-fail")),
    "a sweep of weights that have no backends": Bad(
        nothing, ["sweep", "toy"], (TOY, "quantization.method", "only quantised weights"),
    ),
    "a sweep of a variant": Bad(nothing, ["sweep", "toy@awq_torch"], ("fleet sweep toy",)),
    "a sweep of an unknown contract": Bad(nothing, ["sweep", "tyo"], ('did you mean "toy"',)),
    "a sweep of no backends": Bad(
        nothing, ["sweep", "tiny-awq-torch", "--backends", ","], ("--backends", "by commas"),
    ),
    "a variant without a backend": Bad(
        nothing, ["certify", "toy@"], ("'toy@'", "quantization.backend", "nothing"),
    ),
    "a variant by auto": Bad(
        nothing, ["certify", "tiny-awq-torch@auto"], ("'auto'", "differently by machine"),
    ),
    "a variant in a dtype that is none": Bad(
        nothing, ["certify", "tiny-awq-torch@awq_torch:fp16"], ("model.dtype", "'fp16'"),
    ),
    "a variant of weights that have no backends": Bad(
        nothing, ["certify", "toy@awq_torch"], (TOY, "quantization.method", "'toy@awq_torch'"),
    ),
    "a screening of nothing": Bad(nothing, ["screen"], ("Missing argument 'contracts'",)),
    "an unknown fleet": Bad(
        nothing, ["campaign", "one-machin"], ("'one-machin'", 'did you mean "one-machine"'),
    ),
    "a doctor of an unknown fleet": Bad(
        nothing, ["doctor", "--fleet", "x", "--address", "there:1"], ("a fleet named 'x'",),
    ),
    "a fleet file that is not there": Bad(nothing, ["campaign", "x/y.toml"], ("no such file",)),
    "a fleet with an unknown key": Bad(
        rack("budgets = 3"), ["campaign", "rack", "--dry-run"],
        ("rack.toml", "night.budgets", "an unknown key", "budget_minutes"),
    ),
    "a fleet of an unknown contract": Bad(
        rack('contracts = ["tyo"]'), ["campaign", "rack", "--dry-run"], ('did you mean "toy"',),
    ),
    "a fleet of a control": Bad(
        rack('contracts = ["control-racy"]'), ["campaign", "rack"], ("control-racy", "every night"),
    ),
    "a night without a minute": Bad(
        rack(), ["campaign", "rack", "--budget", "0"], ("--budget", "greater than or equal to 1"),
    ),
    "a campaign id that is a path": Bad(
        rack(), ["campaign", "rack", "--campaign-id", "../x"], ("--campaign-id", "'../x'"),
    ),
    "no fleet": Bad(nothing, ["campaign"], ("Missing argument 'fleet'",)),
    "no sample": Bad(nothing, ["replay", "toy", "--arm", "current"], ("--sample",)),
    "no contract": Bad(nothing, ["certify"], ("Missing argument 'contracts'",)),
    "an unknown verb": Bad(nothing, ["certfy", "toy"], ("certfy",)),
    "an unknown option": Bad(nothing, [*CERTIFY, "--jsn"], ("--jsn",)),
    "a value that is no number": Bad(nothing, [*CERTIFY, "--retries", "x"], ("--retries",)),
    "status without a store": Bad(nothing, ["status"], ("var/fleet.duckdb", "a store", "none")),
    "diff of a stack and none": Bad(
        nothing, ["diff", "cpu-base", "b"], ("stack named 'b'", "cpu-base"),
    ),
    "two environments frozen": Bad(
        nothing, ["stack", "freeze", "--output", "a.toml", "--python", "p", "--image", "i"],
        ("--image", "one environment"),
    ),
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


def test_a_process_of_its_own_says_the_same(project: Path) -> None:
    write_contract(project / "configs", "toy", CONTRACT.replace("[require]", "[requires]"))
    done = fleet(project, "certify", "toy", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 2
    assert not (project / "var").exists()
