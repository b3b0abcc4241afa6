"""``fleet sweep`` over the synthetic engine: what runs, what is left out, and what is said of it.

The candidates are given: which backends a node can run is the business of ``test_backends``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleet.contract import load
from fleet.errors import AttemptFailed, ContractError, UsageError
from fleet.evidence.landing import Landing
from fleet.evidence.states import Cause
from fleet.replay.backends import Backend
from fleet.replay.checkpoint import default_cache
from fleet.report.answers import Answers
from fleet.report.status import status_rows
from fleet.report.swept import exit_code
from fleet.schedule import sweep
from fleet.schedule.candidates import (
    Candidate,
    SweepRequest,
    base_of,
    candidates_of,
    split_backends,
)
from fleet.schedule.resolve import resolve_contract
from fleet.schedule.sweep import load_failure, run_sweep, sweep_plan
from fleet.store.open import open_reader
from tests.campaigns import (
    CONTRACT,
    QUICK,
    RACY,
    FakeLauncher,
    places_in,
    raises,
    write_configs,
    write_contract,
)
from tests.unit.evidence_builders import dataset, summary

AWQ = '[quantization]\nmethod = "awq"\nbits = 4\ngroup_size = 64\nbackend = "awq_torch"\n'
QUANTISED = AWQ + CONTRACT.replace("schema = 1\n", "")
CANNOT = Candidate("toy@awq_marlin", Backend("awq_marlin", None, "needs CUDA"), None)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    configs = write_configs(tmp_path / "configs")
    write_contract(configs, "toy", QUANTISED)
    write_contract(configs, "racy", QUANTISED + RACY)
    return tmp_path


def candidate(root: Path, name: str) -> Candidate:
    places = places_in(root)
    resolved = resolve_contract(name, places.search, places.cache, lambda _: None)
    return Candidate(name, Backend(name.partition("@")[2] or name, "float32"), resolved)


def swept(
    root: Path, candidates: Sequence[Candidate], screen: bool = True, **launcher: Any
) -> tuple[dict[str, Any], FakeLauncher]:
    asked = SweepRequest("toy", screen=screen, limits=QUICK)
    fake = FakeLauncher(**launcher)
    return run_sweep(asked, candidates, places_in(root), fake, lambda _: None), fake


def by_name(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {entry["contract"]: entry for entry in document["contracts"]}


def test_survivors_pass_and_what_cannot_run_has_its_reason(root: Path) -> None:
    names = ["toy@awq_torch", "toy@awq_torch_aten"]
    document, launcher = swept(root, [CANNOT, *(candidate(root, name) for name in names)])
    assert set(document) == {"schema", "campaign", "base", "contracts", "controls", "fastest"}
    assert exit_code(document) == 0
    entries = by_name(document)
    assert [e["contract"] for e in document["contracts"]][-1] == "toy@awq_marlin"
    cannot = entries["toy@awq_marlin"]
    assert (cannot["runnable"], cannot["reason"], cannot["verdict"]) == (False, "needs CUDA", None)
    for name in names:
        entry = entries[name]
        assert (entry["verdict"], entry["grade"], entry["records"]) == ("PASS", "logits", 10)
        assert entry["screen"] == "NO_DIFFERENCE_SEEN"
        assert entry["campaigns"]["certify"] == document["campaign"]
        assert entry["campaigns"]["screen"] != document["campaign"]
        assert entry["measured_in"] == "certify"
        assert entry["peak_bytes"] > 1 << 20
        assert entry["tokens_per_s"] > 0 and entry["load_s"] >= 0
    assert all(control["behaves"] for control in document["controls"])
    assert document["fastest"]["contract"] == document["contracts"][0]["contract"]
    assert document["fastest"]["times_next"] >= 1
    assert {task.purpose for task in launcher.tasks} == {"screen", "certify"}


def test_what_differed_at_the_screen_is_not_certified_and_fails(root: Path) -> None:
    document, launcher = swept(root, [candidate(root, "toy@awq_torch"), candidate(root, "racy@a")])
    entry = by_name(document)["racy@a"]
    assert (entry["screen"], entry["verdict"]) == ("DIFFERENT", "FAIL")
    assert entry["campaigns"]["certify"] is None
    assert (entry["measured_in"], entry["culprit"]) == ("screen", None)
    certified = {t.contract_name for t in launcher.tasks if t.purpose == "certify"}
    assert "toy@awq_torch" in certified and "racy@a" not in certified
    assert exit_code(document) == 1
    assert document["fastest"]["backend"] == "awq_torch"
    assert document["fastest"]["times_next"] is None


def test_what_the_screening_did_not_localise_is_traced_once_more(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the synthetic engine has no modules, so its traced replays end early: the verdict stays
    monkeypatch.setattr(sweep, "_wants_a_trace", lambda resolved, verdict: True)
    document, launcher = swept(root, [candidate(root, "racy@a"), candidate(root, "racy@b")])
    traces = [t for t in launcher.tasks if t.purpose == "trace"]
    assert [t.contract_name for t in traces] == ["racy@a", "racy@a", "racy@b", "racy@b"]
    assert [t.slot for t in traces] == [0, 1, 2, 3]
    for entry in document["contracts"]:
        (first,) = {t.sample_ids[0] for t in traces if t.contract_name == entry["contract"]}
        assert first == "s0"
        assert entry["verdict"] == "FAIL" and entry["culprit"] is None
        assert entry["campaigns"]["trace"] not in (None, entry["campaigns"]["screen"])
    assert exit_code(document) == 1


def stands(root: Path, name: str) -> tuple[str, str]:
    """State and note of one variant, as ``fleet status`` has them."""
    places = places_in(root)
    with open_reader(places.store) as store:
        answers = Answers(store, Landing.open(places.landing))
        (row,) = status_rows(answers, [name], places.search, places.cache, time.time())
    return row.state, row.note


def test_status_knows_variants_and_what_their_file_says_today(root: Path) -> None:
    swept(root, [candidate(root, "toy@awq_torch"), candidate(root, "racy@a")])
    assert stands(root, "toy@awq_torch") == ("PASS", "")
    assert stands(root, "racy@a")[0] == "FAIL"
    never = ("UNTESTED", "never tested: fleet certify toy@awq_marlin")
    assert stands(root, "toy@awq_marlin") == never
    for name in ("toy@auto", "toy@", "nowhere@a", "control-clean-synthetic@a"):
        with pytest.raises(ContractError):
            stands(root, name)
    write_contract(root / "configs", "toy", QUANTISED.replace("seed = 0\np", "seed = 1\np"))
    state, note = stands(root, "toy@awq_torch")
    assert state == "UNTESTED" and "changed since it was last certified" in note


def test_without_a_screening_all_are_certified(root: Path) -> None:
    candidates = [candidate(root, "toy@awq_torch"), candidate(root, "racy@a")]
    document, launcher = swept(root, candidates, screen=False)
    assert {task.purpose for task in launcher.tasks} == {"certify"}
    entries = by_name(document)
    assert (entries["racy@a"]["verdict"], entries["racy@a"]["screen"]) == ("FAIL", None)
    assert entries["toy@awq_torch"]["verdict"] == "PASS"
    assert exit_code(document) == 1


@pytest.mark.parametrize("screen", [True, False])
def test_a_load_that_fails_is_a_reason_and_no_fail(root: Path, screen: bool) -> None:
    broken = raises(AttemptFailed("load-error", "could not load:\n no compiler"))
    controls = 0 if screen else 4  # they run first in the campaign that certifies
    script = {controls: broken, controls + 1: broken}
    candidates = [candidate(root, "toy@awq_torch"), candidate(root, "toy@b")]
    document, _ = swept(root, candidates, screen, script=script)
    entry = by_name(document)["toy@awq_torch"]
    assert (entry["runnable"], entry["verdict"], entry["dtype"]) == (False, None, "float32")
    assert entry["reason"] == "load-error: could not load: no compiler"
    assert by_name(document)["toy@b"]["verdict"] == "PASS"
    assert exit_code(document) == 0


def test_when_nothing_runs_there_is_no_verdict_and_nothing_is_written(root: Path) -> None:
    document, launcher = swept(root, [CANNOT])
    assert exit_code(document) == 3
    assert (document["campaign"], document["fastest"], launcher.tasks) == (None, None, [])
    assert not (root / "var").exists()


def test_a_dry_run_says_what_would_run(root: Path) -> None:
    asked = SweepRequest("toy", limits=QUICK)
    candidates = [CANNOT, candidate(root, "toy@awq_torch")]
    document = sweep_plan(asked, candidates, places_in(root), lambda _: None)
    assert [e["verdict"] for e in document["contracts"]] == [None, None]
    assert [e["runnable"] for e in document["contracts"]] == [True, False]
    planned = [row["contract"] for row in document["plan"]]
    assert planned[-2:] == ["toy@awq_torch"] * 2 and len(planned) == 6
    assert not (root / "var").exists()


ANSWERS = (
    Backend("awq_marlin", None, "needs CUDA"),
    Backend("awq_torch", "float32"),
    Backend("awq_torch_aten", "float16"),
)


def asked_of_the_node(root: Path, *names: str, own: str = "float32") -> list[Candidate]:
    """What a sweep of ``toy`` is about, by a node that answers so."""
    places = places_in(root)
    base = resolve_contract("toy", places.search, places.cache, lambda _: None)
    model = base.loaded.contract.model.model_copy(update={"dtype": own})
    contract = base.loaded.contract.model_copy(update={"model": model})
    base = replace(base, loaded=replace(base.loaded, contract=contract))
    asked = SweepRequest("toy", names or None)
    return candidates_of(asked, base, places, FakeLauncher(answers=ANSWERS))


def test_a_variant_is_named_with_its_dtype_where_it_is_another(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the synthetic engine has one dtype; which one a contract may have is not asked here
    monkeypatch.setattr(load, "refuse_unavailable", lambda contract, where: None)
    found = {c.backend.name: c for c in asked_of_the_node(root)}
    assert [c.name for c in found.values()] == [
        "toy@awq_marlin", "toy@awq_torch", "toy@awq_torch_aten:float16",
    ]  # fmt: skip
    assert found["awq_marlin"].resolved is None
    other = found["awq_torch_aten"].resolved
    assert other is not None and other.name == "toy@awq_torch_aten:float16"
    assert other.loaded.contract.model.dtype == "float16"
    own = asked_of_the_node(root, own="float16")
    assert own[-1].name == "toy@awq_torch_aten"


def test_backends_can_be_named_and_each_must_be_one(root: Path) -> None:
    assert [c.name for c in asked_of_the_node(root, "awq_torch")] == ["toy@awq_torch"]
    with pytest.raises(UsageError, match="'awq_torchh'\n  next: did you mean awq_torch") as caught:
        asked_of_the_node(root, "awq_torch", "awq_torchh")
    assert (caught.value.where, caught.value.key) == ("command line", "--backends")


def test_only_a_quantised_contract_itself_can_be_swept(root: Path) -> None:
    write_contract(root / "configs", "plain")
    for name, words in (
        ("plain", "only quantised weights have backends"),
        ("toy@awq_torch", "fleet sweep toy"),
    ):
        with pytest.raises(UsageError, match=words):
            base_of(SweepRequest(name), places_in(root), lambda _: None)


@pytest.mark.torch
def test_a_contract_that_contradicts_its_checkpoint_cannot_be_swept(root: Path) -> None:
    eight = 'extends = "tiny-awq-torch"\n[quantization]\nbits = 8\n'
    write_contract(root / "configs", "eight", eight)
    places = replace(places_in(root), cache=default_cache(os.environ))
    with pytest.raises(UsageError, match="bits = 8, the checkpoint 4"):
        base_of(SweepRequest("eight"), places, lambda _: None)


def test_the_names_of_backends_are_split() -> None:
    assert split_backends(None) is None
    assert split_backends("a, b,,a") == ("a", "b")
    with pytest.raises(UsageError, match="names joined by commas"):
        split_backends(" ,")


def test_a_load_failure_is_one_only_when_every_attempt_says_so() -> None:
    cause = Cause("load-error", "no\ncompiler")
    failed = replace(summary("a", dataset()), state="FAILED", cause=cause)
    assert load_failure([failed, failed]) == "load-error: no compiler"
    assert load_failure([failed, summary("b", dataset())]) is None
    other = replace(failed, cause=Cause("out-of-memory", "no memory"))
    assert load_failure([failed, other]) is None
    assert load_failure([]) is None
