"""The grade modules: what is digested, when it is missing, and what a difference there means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from fleet.contract.model import Require
from fleet.errors import EvidenceError
from fleet.evidence import modules
from fleet.evidence.modules import Coverage, in_turn, read_modules
from fleet.evidence.trace import (
    CALLS_1,
    MODULES,
    UNCHANGED,
    Call,
    ModuleRow,
    calls_table,
    root_of,
    to_table,
)
from fleet.judge.tracing.culprit import Localisation
from fleet.judge.tracing.localise import localise
from fleet.judge.tracing.throughout import proven_by, with_execution
from tests.unit.evidence_builders import dataset, judged, pair, replay, sha
from tests.unit.trace_builders import layer, step_of, trace

FILES = ("trace-00000.parquet", "trace-modules.parquet", "trace-weights.parquet")


def landed(folder: Path, calls: list[Call], *modules: ModuleRow) -> Path:
    folder.mkdir(exist_ok=True)
    pq.write_table(calls_table(calls), folder / FILES[0])
    pq.write_table(to_table(modules, MODULES), folder / FILES[1])
    return folder


def digest_of(folder: Path, calls: list[Call]) -> bytes:
    return read_modules(landed(folder, calls), FILES, UNCHANGED).digests["a", 0]


CHANGES: dict[str, Callable[[list[Call]], list[Call]]] = {
    "an input": lambda calls: [replace(calls[0], args_sha256=sha("other")), *calls[1:]],
    "what a module owns": lambda calls: [replace(calls[0], own_sha256=sha("other")), *calls[1:]],
    "a cache": lambda calls: [replace(calls[0], cache_sha256=sha("other")), *calls[1:]],
    "an output": lambda calls: [*calls[:-1], replace(calls[-1], out_sha256=sha("other"))],
    "no output": lambda calls: [*calls[:-1], replace(calls[-1], out_sha256=None)],
    "a path": lambda calls: [replace(calls[0], path="l.c"), *calls[1:]],
    "a place": lambda calls: [replace(calls[0], end=99), *calls[1:]],
    "one call fewer": lambda calls: calls[:-1],
    "two calls in the other order": lambda calls: [calls[1], calls[0], *calls[2:]],
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_batchs_digest_sees(name: str, tmp_path: Path) -> None:
    calls = step_of(layer())
    before = digest_of(tmp_path, calls)
    assert digest_of(tmp_path, list(calls)) == before
    assert digest_of(tmp_path, CHANGES[name](calls)) != before


def test_a_batch_landed_in_format_1_has_the_same_digest_and_no_other_in_roots(
    tmp_path: Path,
) -> None:
    calls = step_of(layer())
    now = digest_of(tmp_path, calls)
    before = [replace(c, in_sha256=root_of((c.args_sha256, None, None))) for c in calls]
    path = tmp_path / FILES[0]
    pq.write_table(to_table(before, CALLS_1), path)
    assert read_modules(tmp_path, FILES, UNCHANGED).digests["a", 0] == now
    before[1] = replace(before[1], in_sha256=sha("other"))
    pq.write_table(to_table(before, CALLS_1), path)
    with pytest.raises(EvidenceError, match="an in-root is not of its parts"):
        read_modules(tmp_path, FILES, UNCHANGED)


def test_every_batch_has_its_own_digest_in_the_order_they_ran(tmp_path: Path) -> None:
    calls = [c for batch in (1, 0) for c in step_of(layer(), batch=batch)]
    found = read_modules(landed(tmp_path, calls), FILES, UNCHANGED)
    assert list(found.digests) == [("a", 1), ("a", 0)]
    assert found.digests["a", 0] == digest_of(tmp_path, step_of(layer()))
    assert found.coverage.calls == len(calls)


def test_batches_come_in_turn_and_what_lies_behind_the_last_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modules, "BATCH_ROWS", 3)
    calls = [c for batch in (1, 0, 2) for c in step_of(layer(), batch=batch)]
    folder = landed(tmp_path, calls)
    whole = read_modules(folder, FILES, UNCHANGED).digests
    assert list(in_turn(folder, FILES)) == list(whole.items())
    (folder / "trace-00001.parquet").write_bytes(b"not reached")
    found = in_turn(folder, [*FILES, "trace-00001.parquet"])
    assert [next(found), next(found)] == list(whole.items())[:2]
    with pytest.raises(EvidenceError, match="trace-00001"):
        next(found)


GAPS: dict[str, dict[str, Any]] = {
    "no call was traced": {"calls": 0},
    "2 calls had nothing hashable going in": {"unknown": 2},
    "1 calls were given something that is not hashed": {"unhashed": 1},
    "1 calls never returned": {"never_returned": 1},
    "1 modules never fired, l.b among them": {"silent": ["l.b"]},
}


@pytest.mark.parametrize("words", GAPS)
def test_a_trace_that_does_not_cover_everything_says_why(words: str) -> None:
    whole: dict[str, Any] = {"calls": 9, "hooks": UNCHANGED}
    assert Coverage(**whole).gap() is None
    assert Coverage(**whole | GAPS[words]).gap() == words
    assert Coverage(**whole | GAPS[words]).doubt() is None


def test_hooks_that_may_have_changed_a_bit_are_a_doubt() -> None:
    assert Coverage(calls=9).doubt() == "the hooks were not looked at"
    assert Coverage(calls=9, hooks="undecidable").doubt() == "undecidable"


def test_coverage_is_read_from_the_calls_and_the_modules(tmp_path: Path) -> None:
    calls = step_of([("", "x>k", [("l", "?>k", [])])])
    silent = ModuleRow("l.b", "M", "{}", "{}", True, 0)
    idle = ModuleRow("list", "ModuleList", "{}", "{}", False, 0)
    coverage = read_modules(landed(tmp_path, calls, silent, idle), FILES, UNCHANGED).coverage
    assert (coverage.calls, coverage.unknown, coverage.silent) == (2, 1, ["l.b"])


def traced_pair(
    modules: tuple[str, str], gap: str | None = None, doubt: str | None = None
) -> list[Any]:
    """Two replays that agree up to the logits, with these roots at the grade modules."""
    found, trace = [], {"gap": gap, "doubt": doubt}
    for slot, root in enumerate(modules):
        made, rows = replay("ab"[slot], dataset(), slot=slot, traced=True, trace=trace)
        arms = {
            arm: replace(own, roots=own.roots | {"modules": root}) for arm, own in made.arms.items()
        }
        found.append((replace(made, arms=arms, roots=made.roots | {"modules": root}), rows))
    return found


def test_equal_calls_attain_modules() -> None:
    verdict = judged(traced_pair(("r", "r")), Require(grade="modules"))
    assert (verdict.verdict, verdict.attained_grade) == ("PASS", "modules")


def test_a_difference_that_heals_before_the_logits_fails_at_modules_and_is_told_below() -> None:
    both = traced_pair(("r", "s"))
    verdict = judged(both, Require(grade="modules"))
    assert (verdict.verdict, verdict.first_broken_grade) == ("FAIL", "modules")
    assert verdict.attained_grade == "logits"
    lower = judged(both, Require(grade="logits"))
    assert lower.verdict == "PASS"
    assert any("modules differ above the required grade" in w for w in lower.warnings)


def test_a_trace_with_a_gap_cannot_pass_at_modules() -> None:
    verdict = judged(traced_pair(("r", "r"), "2 calls never returned"), Require(grade="modules"))
    assert (verdict.verdict, verdict.code) == ("VOID", "missing-evidence")
    assert "2 calls never returned" in verdict.reason


@pytest.mark.parametrize("words", [{"gap": "5 unknown calls"}, {"doubt": "the hooks changed bits"}])
def test_nobody_is_told_modules_by_a_trace_that_does_not_carry_it(words: dict[str, str]) -> None:
    """Whatever was asked for: a grade that is shown is relied on."""
    whole = judged(traced_pair(("r", "r")), Require(grade="logits"))
    assert (whole.verdict, whole.attained_grade, whole.warnings) == ("PASS", "modules", ())
    verdict = judged(traced_pair(("r", "r"), **words), Require(grade="logits"))
    assert (verdict.verdict, verdict.attained_grade) == ("PASS", "logits")
    assert [w for w in verdict.warnings if next(iter(words.values())) in w]
    assert "grade logits" in verdict.reason


def test_doubted_hooks_are_in_the_way_of_a_pass_and_not_of_a_fail() -> None:
    doubt = "undecidable: without hooks the contract differs from itself"
    verdict = judged(traced_pair(("r", "r"), doubt=doubt), Require(grade="modules"))
    assert (verdict.verdict, verdict.code) == ("VOID", "cannot-observe")
    assert doubt in verdict.reason
    assert judged(traced_pair(("r", "r"), doubt=doubt), Require(grade="logits")).verdict == "PASS"
    verdict = judged(traced_pair(("r", "s"), doubt=doubt), Require(grade="modules"))
    assert (verdict.verdict, len(verdict.roots["modules"])) == ("FAIL", 2)


def test_an_untraced_pair_has_nothing_at_modules() -> None:
    verdict = judged(pair(dataset(), dataset()), Require(grade="modules"))
    assert (verdict.verdict, verdict.code) == ("VOID", "missing-evidence")


def test_a_pass_of_traced_replays_says_whether_an_untraced_one_showed_the_same() -> None:
    both = traced_pair(("r", "r"))
    verdict, summaries = judged(both, Require(grade="modules")), [each for each, _ in both]
    assert with_execution(verdict, summaries).reason.endswith("; traced execution")
    untraced, _ = replay("c", dataset(), slot=2)
    told = with_execution(verdict, [*summaries, untraced]).reason
    assert told.endswith("; an untraced replay has the same logits root")
    elsewhere = replace(untraced, platform="sha256:other")
    told = with_execution(verdict, [*summaries, elsewhere]).reason
    assert told.endswith("; traced execution")


def where_they_part(first: str) -> Localisation:
    return localise([trace(layer()), trace(layer(inner=first, out="z", second=f"{first[-1]}>z"))])


def test_a_later_proof_counts_for_the_same_module_only() -> None:
    own = where_they_part("i>w")
    assert own.culprit is not None
    assert proven_by(own, None) is own
    proven = replace(own.culprit, kind="race", unique=3, repeats=9, words="3 of 9", source="later")
    same = proven_by(own, replace(own, culprit=proven)).culprit
    assert same is not None
    assert (same.kind, same.unique, same.source) == ("race", 3, own.culprit.source)
    other = replace(own, culprit=replace(proven, path="l.b"))
    assert proven_by(own, other) is own
    unproven = replace(own, culprit=replace(proven, repeats=0))
    assert proven_by(own, unproven) is own
