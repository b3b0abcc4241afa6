"""What people and programs are shown: diff, logs, documents, the terminal, a contract's keys."""

from __future__ import annotations

import io
import itertools
import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fleet.contract.load import load_contract
from fleet.errors import UsageError
from fleet.evidence.landing import Landing
from fleet.judge.verdict import Verdict
from fleet.report.answers import Answers, CampaignAnswer, ControlAnswer
from fleet.report.contract_view import contract_rows
from fleet.report.diff import Diff, PairDiff, changes, compare, print_diff
from fleet.report.document import campaign_document, status_document
from fleet.report.logs import read_logs
from fleet.report.screen import progress
from fleet.report.status import StatusRow
from fleet.report.terminal import print_campaign, print_status
from fleet.schedule.doctor import Findings, print_findings
from fleet.store.ingest import ingest
from fleet.store.open import Store, open_reader, open_writer
from tests.campaigns import CONTROLS, places_in, write_contract
from tests.landing_builder import AttemptSpec, build_landing, other_row, rewrite_part

VERDICT = Verdict(
    contract="toy",
    execution_id="sha256:" + "0" * 64,
    platform="sha256:" + "1" * 64,
    verdict="PASS",
    state="PASS",
    required_grade="logits",
    attained_grade="logits",
    scope="same-unit",
    reason="PASS: 10 records",
    records=10,
    bounds={"record": 0.0605, "process": None},
    roots={"logits": ["sha256:" + "ab" * 32]},
    arms={
        "current": {g: {"verdict": "PASS", "exact": 10, "total": 10} for g in ("tokens", "logits")}
    },
)
ODD = "[dataset] clock, [/b] [bold]x[/bold] :smile: [red"


def printed(draw: Any, *args: Any, width: int = 200) -> str:
    file = io.StringIO()
    draw(Console(file=file, width=width), *args)
    return file.getvalue()


def answered(*verdicts: Verdict, controls: tuple[ControlAnswer, ...] = ()) -> CampaignAnswer:
    return CampaignAnswer("c1", verdicts, controls, frozenset())


# diff


@pytest.fixture(scope="module")
def answers(campaigned: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("diff") / "copy"
    shutil.copytree(campaigned, root)
    with open_reader(places_in(root).store) as store:
        yield Answers(store, Landing.open(places_in(root).landing))


def attempts(answers: Answers, contract: str) -> list[str]:
    found = answers.store.con.execute(
        "SELECT attempt FROM attempts WHERE contract = ? ORDER BY slot", [contract]
    ).fetchall()
    return [attempt for (attempt,) in found]


def test_two_attempts_of_one_contract_are_equal_and_that_is_no_verdict(answers: Answers) -> None:
    a, b = attempts(answers, "toy")
    found = compare(answers, a, b[:8])
    assert (found.kind, found.exit_code()) == ("attempts", 0)
    (pair,) = found.pairs
    assert (pair.result, pair.words) == (
        "EQUAL", "logits equal in 10 of 10 shared records; no difference seen, which is no verdict",
    )  # fmt: skip
    assert found.fields == {} or all(k.startswith("effective.") for k in found.fields)


def test_a_difference_names_the_stage_and_the_first_sample(answers: Answers) -> None:
    found = compare(answers, *attempts(answers, CONTROLS[0]))
    (pair,) = found.pairs
    assert (pair.result, found.exit_code()) == ("DIFFERS", 1)
    text = printed(print_diff, found)
    assert "records of arm controlled differ first at logits" in text
    assert "q001" in text
    document = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert set(document) == {"schema", "kind", "a", "b", "fields", "pairs"}


def test_two_contracts_are_two_sets_of_bits_and_no_kernel_is_to_blame(answers: Answers) -> None:
    found = compare(answers, "toy", "other")
    (pair,) = found.pairs
    assert (found.kind, pair.contract, pair.result) == ("contracts", "toy / other", "DIFFERS")
    assert "two different contracts (contract.decoding.max_new_tokens)" in pair.words
    assert "no kernel is to blame" in pair.words
    assert found.fields["contract.decoding.max_new_tokens"] == (4, 2)


def test_an_attempt_is_no_evidence_against_itself(answers: Answers) -> None:
    a, _ = attempts(answers, "toy")
    found = compare(answers, a, a)
    assert (found.pairs[0].result, found.exit_code()) == ("NO_EVIDENCE", 3)


@pytest.mark.parametrize("names", [("toy", "nobody"), ("ffff0000", "toy"), ("", ""), ("toy", "")])
def test_a_name_that_is_nothing_is_a_usage_error(answers: Answers, names: tuple[str, str]) -> None:
    with pytest.raises(UsageError, match="at least one that is none of them"):
        compare(answers, *names)


def test_an_attempt_and_a_contract_are_of_two_kinds(answers: Answers) -> None:
    with pytest.raises(UsageError, match="two attempts, platform digests or contract names"):
        compare(answers, attempts(answers, "toy")[0], "toy")


A = AttemptSpec("aaaa" + "0" * 12, facts=(("glibc", "2.31"),))
B = AttemptSpec("bbbb" + "0" * 12, campaign="c2", facts=(("glibc", "2.36"),))


def landed(tmp_path: Path, *specs: AttemptSpec) -> tuple[Store, Landing]:
    landing = build_landing(tmp_path / "landing", specs)
    store = open_writer(tmp_path / "store.duckdb")
    ingest(store, landing)
    return store, landing


def platforms(store: Store) -> list[str]:
    found = store.con.execute("SELECT platform FROM attempts ORDER BY attempt").fetchall()
    return list(dict.fromkeys("sha256:" + digest.hex() for (digest,) in found))


def test_two_platforms_are_compared_contract_by_contract(tmp_path: Path) -> None:
    other = replace(B, edit=other_row(0, logits="other"))
    store, landing = landed(tmp_path, A, other)
    with store:
        found = compare(Answers(store, landing), *platforms(store))
    assert (found.kind, found.exit_code()) == ("platforms", 1)
    assert found.fields == {"glibc": ("2.31", "2.36")}
    assert (
        found.pairs[0].words
        == "one contract on two platforms: logits equal in 9 of 10 shared records"
    )


def test_one_sample_looked_at_again_does_not_stand_for_its_platform(tmp_path: Path) -> None:
    """Newer, COMPLETE, and one row: compared with ten it would differ by what it lacks."""
    look = replace(
        B, attempt="cccc" + "0" * 12, campaign="c3", slot=1, purpose="replay", num_samples=1
    )
    store, landing = landed(tmp_path, A, B, look)
    with store:
        found = compare(Answers(store, landing), *platforms(store))
    assert [(p.b, p.result) for p in found.pairs] == [(B.attempt, "EQUAL")]


def test_rows_that_count_for_nothing_are_not_called_equal(tmp_path: Path) -> None:
    store, landing = landed(tmp_path, A, B)
    for part in landing.parts(B.attempt):
        rewrite_part(part, lambda rows: rows)
    with store:
        ingest(store, landing)
        found = compare(Answers(store, landing), A.attempt, B.attempt)
    assert (found.pairs[0].result, found.exit_code()) == ("NO_EVIDENCE", 3)


def test_a_killed_attempt_lacks_rows_and_does_not_differ_by_that(tmp_path: Path) -> None:
    killed = replace(B, ends="given-up", state="FAILED", edit=lambda rows: rows[:4])
    store, landing = landed(tmp_path, A, killed)
    with store:
        found = compare(Answers(store, landing), A.attempt, B.attempt)
    (pair,) = found.pairs
    assert (pair.result, found.exit_code()) == ("EQUAL", 0)
    assert "equal in 4 of 4 shared records (6 only in a, 0 only in b)" in pair.words


def test_an_ambiguous_beginning_is_a_usage_error(tmp_path: Path) -> None:
    twin = replace(A, attempt="aaaa" + "1" * 12, slot=1)
    store, landing = landed(tmp_path, A, twin)
    with store, pytest.raises(UsageError, match="2 that begin so"):
        compare(Answers(store, landing), "aaaa", twin.attempt)


def test_changes_are_typed_and_an_absent_key_is_none() -> None:
    a = {"x": 1, "t": {"y": True, "z": 0}, "gone": "g"}
    b = {"x": 1.0, "t": {"y": 1, "z": 0}, "new": None}
    assert changes(a, b) == {"gone": ("g", None), "t.y": (True, 1), "x": (1, 1.0)}


def test_the_exit_code_of_a_diff_is_the_worst_of_its_pairs() -> None:
    def code(*results: str) -> int:
        pairs = tuple(PairDiff("c", "a", "b", result, "") for result in results)
        return Diff("a", "b", "platforms", {}, pairs).exit_code()

    assert (code("EQUAL"), code("EQUAL", "NO_EVIDENCE"), code()) == (0, 3, 3)
    assert code("EQUAL", "NO_EVIDENCE", "DIFFERS") == 1


# logs


def test_logs_are_found_by_an_unambiguous_beginning(tmp_path: Path) -> None:
    landing = Landing.open(tmp_path, create=True)
    for name in ("abcd01", "abcd02"):
        landing.attempt(name).mkdir(parents=True)
    (landing.attempt("abcd01") / "stdout.txt").write_bytes(b"caf\xe9 [bold]\n")
    found = read_logs(landing, "abcd01")
    assert (found.stdout, found.stderr) == ("caf\ufffd [bold]\n", "")
    assert (found.to_json()["schema"], found.altered) == (1, ()), "nobody says what it printed"
    for beginning, count in (("abcd", 2), ("ffff", 0), ("", 2), ("../..", 0)):
        with pytest.raises(UsageError, match=f"{count} attempts that begin so"):
            read_logs(landing, beginning)


# documents


ISSUE_KEYS = [
    "contract", "execution_id", "platform", "verdict", "attained_grade", "required_grade", "scope",
    "vary", "traced", "layer", "layers", "reason", "arms", "records", "mismatches", "bounds",
    "power", "envelope", "attempts", "roots", "first_difference", "warnings",
]  # fmt: skip


def test_the_document_of_a_campaign_has_every_key_and_keeps_the_order() -> None:
    control = ControlAnswer(replace(VERDICT, contract="control"), ("verdict: expected 'FAIL'",))
    other = replace(VERDICT, contract="z")
    document = campaign_document(answered(other, VERDICT, controls=(control,)))
    assert list(document) == ["schema", "campaign", "contracts", "controls"]
    assert [c["contract"] for c in document["contracts"]] == ["z", "toy"]
    for entry in (*document["contracts"], *document["controls"]):
        assert set(ISSUE_KEYS) <= set(entry)
    assert document["controls"][0]["behaves"] is False
    json.dumps(document, allow_nan=False)


def test_the_document_of_a_status_has_the_same_form() -> None:
    rows = [
        StatusRow("toy", VERDICT.execution_id, VERDICT.platform, "cpu", "STALE", VERDICT, 3.0),
        StatusRow("new", "", "", "", "UNTESTED", None, None, "never tested"),
    ]
    document = status_document(rows)
    assert list(document) == ["schema", "campaign", "contracts", "controls"]
    assert [c["state"] for c in document["contracts"]] == ["STALE", "UNTESTED"]
    assert document["contracts"][1]["execution_id"] is None


# terminal


def test_the_table_and_the_lines_say_the_verdict() -> None:
    text = printed(print_campaign, answered(VERDICT))
    for words in ("campaign c1", "toy", "PASS", "10/10", "abababababab", "<= 6.050%"):
        assert words in text
    assert "CURRENT_METHOD_TOKENS: PASS" in text
    assert "ALL_ARMS_BITWISE: PASS" in text


def test_evidence_is_shown_verbatim_whatever_brackets_and_colons_it_holds() -> None:
    difference = {"sample_id": ODD, "arm": "current", "words": ODD, "excerpts": [ODD, ODD]}
    failed = replace(
        VERDICT, verdict="FAIL", state="FAIL", reason=f"FAIL: {ODD}", warnings=(ODD,),
        first_difference=difference, mismatches=1,
    )  # fmt: skip
    control = ControlAnswer(replace(VERDICT, contract="control"), (ODD,))
    text = printed(print_campaign, answered(failed, controls=(control,)))
    assert text.count(ODD) == 9
    assert f"look again: fleet replay toy --sample {shlex.quote(ODD)} --arm current" in text
    row = StatusRow("toy", "", "", ODD, "FAIL", failed, 1.0)
    assert printed(print_status, [row]).count(ODD) == 2
    pair = PairDiff("toy", "a", "b", "DIFFERS", ODD)
    diff = Diff("a", "b", "attempts", {"k": (ODD, None)}, (pair,))
    assert printed(print_diff, diff).count(ODD) == 2


def test_a_control_that_does_not_behave_is_loud() -> None:
    control = ControlAnswer(replace(VERDICT, contract="control-racy"), ("verdict: expected FAIL",))
    text = printed(print_campaign, answered(VERDICT, controls=(control,)))
    assert "control control-racy: DOES NOT BEHAVE: verdict: expected FAIL" in text
    assert answered(VERDICT, controls=(control,)).exit_code() == 3


@pytest.mark.parametrize(
    ("age_s", "words"),
    [(None, "-"), (119, "119 s"), (600, "10 min"), (7300, "2 h"), (864000, "10 d")],
)
def test_ages_are_said_in_one_unit(age_s: float | None, words: str) -> None:
    row = StatusRow("toy", "", "", "cpu", "PASS", VERDICT, age_s)
    assert f" {words} " in printed(print_status, [row])


LONG_NAME = "smollm2-awq-aten-full-and-a-rather-long-name"
LONG_LABEL = "AMD EPYC 9V84 96-Core Processor, torch 2.13.0+cpu"
NARROW = 80


def narrow(draw: Any, *args: Any) -> list[str]:
    """Lines of a terminal of 80 columns, on which nothing may be cut off."""
    lines = printed(draw, *args, width=NARROW).splitlines()
    assert len(lines[2]) <= NARROW  # the rule below the names is as wide as the table
    table = list(itertools.takewhile(lambda line: len(line) == len(lines[2]), lines[1:]))
    assert "\N{HORIZONTAL ELLIPSIS}" not in "".join(lines)
    return table


def column(table: list[str], name: str, following: str = "") -> str:
    """All that stands below a name, without its blanks."""
    start = table[0].index(name)
    end = table[0].index(following) if following else None
    return "".join("".join(line[start:end] for line in table[2:]).split())


def test_a_status_folds_on_a_narrow_screen_and_loses_nothing() -> None:
    verdict = replace(VERDICT, attained_grade="prediction", records=123456)
    row = StatusRow(LONG_NAME, "", "", LONG_LABEL, "REGRESSED", verdict, 7100.0)
    table = narrow(print_status, [row])
    assert column(table, "contract", "state") == LONG_NAME
    assert column(table, "state", "grade") == "REGRESSED"
    assert column(table, "grade", "scope") == "prediction"
    assert column(table, "n ", "record") == "123456"
    assert column(table, "process", "age") == "notbounded"
    assert column(table, "platform") == LONG_LABEL.replace(" ", "")


def test_verdicts_fold_on_a_narrow_screen_and_their_words_stay_whole() -> None:
    roots = {"logits": ["sha256:" + "ab" * 32, "sha256:" + "cd" * 32]}
    verdict = replace(VERDICT, contract=LONG_NAME, roots=roots, records=123456)
    table = narrow(print_campaign, answered(verdict))
    assert column(table, "contract", "verdict") == LONG_NAME
    for word in ("PASS", "logits", "123456/123456", "ab" * 6, "cd" * 6, "<= 6.050%"):
        assert word in "\n".join(table)


def test_what_the_doctor_found_folds_on_a_narrow_screen() -> None:
    name = "a-fact-with-a-name-that-is-longer-than-half-a-line-is-wide"
    facts = {name: LONG_LABEL, "environment": []}
    table = narrow(print_findings, Findings("3.11", facts, {}, {"ray": ""}))
    assert column(table, "what", "found") == f"ray{name}environment"
    assert column(table, "found") == f"missing{LONG_LABEL}nothingset".replace(" ", "")


def test_progress_is_silent_off_a_terminal_and_never_trips_over_what_it_is_told(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("FLEET_PROGRESS", raising=False)
    with progress("begin") as say:
        say(ODD)
    assert capfd.readouterr() == ("", "")
    monkeypatch.setenv("FLEET_PROGRESS", "plain")
    with progress("begin") as say:
        say(ODD)
    assert capfd.readouterr() == ("", f"fleet: {ODD}\n")
    monkeypatch.delenv("FLEET_PROGRESS")
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes this for a terminal
    with progress(ODD) as say:
        say(ODD)
    assert ODD in capfd.readouterr().err


# a contract's keys


def test_every_key_is_shown_with_the_file_it_came_from(tmp_path: Path) -> None:
    write_contract(tmp_path, "base")
    text = 'schema = 1\nextends = "base"\n[decoding]\nmax_new_tokens = 9\n'
    path = write_contract(tmp_path, "longer", text)
    rows = {r.key: r for r in contract_rows(load_contract(str(path), [tmp_path]))}
    assert (rows["decoding.max_new_tokens"].value, rows["decoding.max_new_tokens"].origin) == (
        9, "longer.toml",
    )  # fmt: skip
    assert rows["determinism.seed"].origin == "base.toml"
    assert rows["attention.sdpa_kernels"].origin == "default"
    assert rows["arms.current.template"].value == "{{ question }}"
    assert len(rows) == len(set(rows))
