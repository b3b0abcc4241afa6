"""The document and the table of a sweep, from hand-made verdicts and figures."""

from __future__ import annotations

from typing import Any

import pytest

from fleet.judge.verdict import Verdict
from fleet.report.measured import Measured
from fleet.report.sweep import (
    bytes_words,
    fastest_line,
    number,
    print_sweep,
    print_sweep_plan,
)
from fleet.report.swept import entry_of, exit_code, sweep_document
from tests.unit.screens import shown

CULPRIT = {
    "path": "model.layers.0.mlp.up_proj", "class": "AwqTorchLinear", "backend": None,
    "mode": "inference", "gap": None, "kind": "race",
}  # fmt: skip


def verdict(word: Any, **changes: Any) -> Verdict:
    values: dict[str, Any] = {
        "contract": "x", "execution_id": "sha256:e", "platform": "sha256:p", "verdict": word,
        "state": word, "required_grade": "logits", "scope": "same-unit", "records": 48,
        "reason": f"{word}(because)", "attained_grade": "logits" if word == "PASS" else None,
    }  # fmt: skip
    return Verdict(**values | changes)


def ran(backend: str, word: str, speed: float | None, **changes: Any) -> dict[str, Any]:
    figures = Measured("certify", speed, 1.25, 300 * 2**20, {"AwqTorchLinear/inference": 14})
    values: dict[str, Any] = {
        "contract": f"base@{backend}", "backend": backend, "dtype": "bfloat16", "reason": None,
        "verdict": verdict(word), "figures": figures, "screen": "NO_DIFFERENCE_SEEN",
    }  # fmt: skip
    return entry_of(**values | changes)


def refused(backend: str, reason: str = "needs CUDA") -> dict[str, Any]:
    return entry_of(f"base@{backend}", backend, None, reason)


def document(*entries: dict[str, Any], controls: Any = ()) -> dict[str, Any]:
    return sweep_document("base", entries, controls, "c1")


FAILED = ran("awq_racy", "FAIL", 900.0, verdict=verdict("FAIL", mismatches=3, culprit=CULPRIT,
             fault="race"))  # fmt: skip
MIXED = document(
    refused("awq_marlin"), ran("awq_slow", "PASS", 50.0), FAILED, refused("awq_bitblas"),
    ran("awq_void", "VOID", 70.0), ran("awq_fast", "PASS", 125.0),
    controls=[{"contract": "control-racy", "behaves": True, "mismatches": []}],
)  # fmt: skip


def test_the_fast_ones_that_pass_stand_first_and_what_cannot_run_last() -> None:
    names = [entry["backend"] for entry in MIXED["contracts"]]
    assert names == [
        "awq_fast", "awq_slow", "awq_racy", "awq_void", "awq_bitblas", "awq_marlin",
    ]  # fmt: skip


def test_the_fastest_passes_and_is_held_against_the_next_that_does() -> None:
    assert MIXED["fastest"] == {
        "contract": "base@awq_fast", "backend": "awq_fast", "dtype": "bfloat16",
        "tokens_per_s": 125.0, "times_next": 2.5,
    }  # fmt: skip
    words = "fastest backend that PASSes: awq_fast, 125 tokens/s (2.5x the next)"
    assert fastest_line(MIXED) == words
    alone = document(ran("a", "PASS", 12.34), FAILED)
    assert fastest_line(alone) == "fastest backend that PASSes: a, 12.3 tokens/s"
    unknown = document(ran("a", "PASS", None))
    assert fastest_line(unknown) == "fastest backend that PASSes: a, speed unknown"
    assert fastest_line(document(FAILED)) == "no backend PASSes"
    other = document(ran("a", "PASS", 5.0, contract="base@a:float16", dtype="float16"))
    assert fastest_line(other) == "fastest backend that PASSes: a in float16, 5.0 tokens/s"


def test_the_exit_code_is_that_of_what_ran() -> None:
    passed, void = ran("a", "PASS", 1.0), ran("b", "VOID", 1.0)
    assert exit_code(document(passed, refused("x"))) == 0
    assert exit_code(document(passed, void)) == 3
    assert exit_code(document(passed, void, FAILED)) == 1
    assert exit_code(document(refused("x"))) == 3
    assert exit_code(document()) == 3
    broken = [{"contract": "control-racy", "behaves": False, "mismatches": ["verdict"]}]
    assert exit_code(document(passed, controls=broken)) == 3
    assert exit_code(document(FAILED, controls=broken)) == 1


def test_a_load_that_failed_has_no_verdict_whatever_was_judged() -> None:
    entry = ran("a", "VOID", None, reason="load-error: no compiler")
    assert (entry["runnable"], entry["verdict"], entry["grade"]) == (False, None, None)
    assert exit_code(document(entry, ran("b", "PASS", 1.0))) == 0


@pytest.mark.parametrize("width", [80, 100, 132, 140, 200])
def test_nothing_is_lost_and_nothing_runs_over_at_any_width(width: int) -> None:
    text = shown(print_sweep, MIXED, width)
    flat = "".join(text.split())
    for word in (
        "awq_fast", "awq_racy", "race", "model.layers.0.mlp.up_proj", "AwqTorchLinear/inference",
        "x14", "45/48", "300MiB", "awq_marlin:needsCUDA", "base@awq_racy:FAIL(because)",
        "controlsthatbehaveasexpected:control-racy", "awq_fast,125tokens/s(2.5xthenext)",
    ):  # fmt: skip
        assert word in flat, word
    table = text.split("cannot run here")[0].splitlines()[1 : 2 + 2 + 4]
    assert all(len(line) <= width for line in table)
    assert text.splitlines()[-1].startswith("fastest backend that PASSes")


@pytest.mark.parametrize("width", [80, 140])
def test_each_backend_is_one_line_where_no_column_is_long(width: int) -> None:
    passing = document(*(ran(f"awq_backend_{n}", "PASS", 10.0 + n) for n in range(4)))
    lines = shown(print_sweep, passing, width).splitlines()
    rows = [line for line in lines if line.lstrip().startswith("awq_backend") and "PASS" in line]
    assert len(rows) == 4
    assert all("48/48" in row and "300 MiB" in row and "1.2" in row for row in rows)


def test_a_speed_of_the_screening_is_marked_and_a_fail_without_a_culprit_says_what_to_do() -> None:
    figures = Measured("screen", 10.0, None, None, {})
    entry = ran("a", "FAIL", None, verdict=verdict("FAIL"), figures=figures)
    text = shown(print_sweep, document(entry), 80)
    assert "10.0*" in text
    assert "* of the screening's few samples" in text
    assert "its cause: fleet trace base@a" in text


def test_a_control_that_does_not_behave_is_told() -> None:
    broken = [{"contract": "control-racy", "behaves": False, "mismatches": ["verdict: PASS"]}]
    text = shown(print_sweep, document(ran("a", "VOID", 1.0), controls=broken), 80)
    assert "control control-racy: DOES NOT BEHAVE: verdict: PASS" in text
    assert "base@a: VOID(because)" in text


def test_a_sweep_in_which_nothing_can_run_has_no_table() -> None:
    text = shown(print_sweep, document(refused("a", "no [CUDA] :bug:")), 80)
    assert text == "cannot run here:\n  a: no [CUDA] :bug:\nno backend PASSes\n"


def test_a_dry_run_lists_what_would_run_and_what_cannot() -> None:
    able = entry_of("base@a", "a", "bfloat16", None)
    plan = [{"contract": "control-racy"}, {"contract": "base@a"}, {"contract": "base@a"}]
    body = document(able, refused("b")) | {"plan": plan, "screen": True}
    assert shown(print_sweep_plan, body, 80).splitlines() == [
        "would run:",
        "  base@a in bfloat16",
        "cannot run here:",
        "  b: needs CUDA",
        "in this order: a screening of all of them, then control-racy (1 replays), "
        "base@a (2 replays)",
    ]
    nothing = document(refused("b")) | {"plan": [], "screen": True}
    assert shown(print_sweep_plan, nothing, 80).startswith("nothing can run here\n")


def test_sizes_and_speeds_in_few_figures() -> None:
    assert [bytes_words(n) for n in (None, 2**20, 20 * 2**30)] == ["-", "1 MiB", "20.0 GiB"]
    assert [number(n) for n in (3.14159, 99.94, 1234.5)] == ["3.1", "99.9", "1234"]
