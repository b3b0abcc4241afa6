"""Faults that every exact repeat agrees on, and that a varied set of replays finds: real processes
of a small bf16 model, one campaign for each fault, one claim for each thing that can be varied."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fleet.contract.load import BUILTIN
from fleet.evidence.landing import Landing
from fleet.evidence.manifest import Manifest
from fleet.judge.verdict import Verdict
from fleet.replay.checkpoint import default_cache
from fleet.report.answers import Answers
from fleet.schedule import certify, warming
from fleet.schedule.certify import Request, plan_request, run_request
from fleet.schedule.places import Places
from fleet.schedule.plan import plan
from fleet.store.open import open_reader
from tests.campaigns import places_in, questions, write_contract, write_dataset
from tests.process_launcher import ProcessLauncher

WHERE = "model.layers.1.mlp.down_proj"
TEXT = """extends = "base"
[decoding]
max_new_tokens = 2
[determinism]
fill_uninitialized_memory = false
kernel_cache = "{kernels}"
[dataset]
name = "five"
[arms.current]
template = "{{{{ question }}}}"
[arms.controlled]
template = "Choose. {{{{ question }}}}"
[control]
inject = "{kind}:{where}"
[require]
grade = "{grade}"
"""
EXACT: tuple[str, ...] = ()
BATCH, CACHE, KERNELS, LOAD = ("batch",), ("cache",), ("kernel_cache",), ("load",)
MEMORY, ORDER, THREADS = ("memory",), ("order",), ("threads",)

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a sum is split in 64 the clean linear need not agree; nothing is claimed of that."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)


def certified(
    root: Path,
    kind: str,
    claims: tuple[tuple[str, ...], ...],
    grade: str = "logits",
    kernels: str = "pinned",
) -> dict[tuple[str, ...], Verdict]:
    """The verdict of each claim; the controls are tested elsewhere."""
    write_dataset(root / "configs", "five", questions(4))
    text = (BUILTIN / "contracts" / "control-clean.toml").read_text().split("[control]")[0]
    write_contract(root / "configs", "base", text)
    varied = TEXT.format(kind=kind, where=WHERE, grade=grade, kernels=kernels)
    write_contract(root / "configs", "varied", varied)
    places = places_in(root)
    cache_folder = default_cache(os.environ)
    places = Places(places.search, places.store, places.landing, cache_folder, places.scratch)
    request = Request(("varied",), claims=claims)
    planned = plan_request(request, places, lambda _: None)
    planned.controls, planned.slots = [], plan([("varied", 2)], [], {}, planned.claims)
    campaign, _ = run_request(request, planned, places, ProcessLauncher(torch=True), lambda _: None)
    with open_reader(places.store) as store:
        answers = Answers(store, Landing.open(places.landing))
        asked = planned.asked(planned.named)
        verdicts = [answers.verdict(campaign.id, question) for question in asked]
    assert tuple(v.vary for v in verdicts) == claims
    return dict(zip(claims, verdicts, strict=True))


@pytest.mark.parametrize(
    ("kind", "found_by", "other", "words"),
    [
        pytest.param(
            "carrying_linear", ORDER, MEMORY,
            "depends on the order of the samples: all 3 replays in the contract's own order agree",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "batch_linear", BATCH, ORDER,
            "shape-dependent, repeatable: all 3 replays with the contract's own batch agree",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "threaded_linear", THREADS, MEMORY,
            "depends on the number of threads: "
            "all 3 replays with the contract's own number of threads agree",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "carrying_linear", CACHE, MEMORY,
            "depends on the key-value cache: "
            "all 3 replays with the contract's own use_cache agree",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "crowded_linear", LOAD, ORDER,
            "depends on the load of the machine: all 3 replays without neighbours agree",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "uninitialized_linear", MEMORY, ORDER,
            "depends on what memory held before: all 3 replays with memory left alone agree",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "compiled_linear", KERNELS, MEMORY,
            "depends on what the kernels were compiled to: "
            "all 3 replays with the contract's own kernel_cache agree",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["order", "batch", "threads", "cache", "load", "memory", "kernels"],
)  # fmt: skip
def test_a_fault_that_exact_repeats_agree_on_fails_under_its_stress_alone(
    tmp_path: Path, kind: str, found_by: tuple[str, ...], other: tuple[str, ...], words: str
) -> None:
    verdicts = certified(tmp_path, kind, (EXACT, found_by, other))
    assert [verdicts[c].verdict for c in (EXACT, found_by, other)] == ["PASS", "FAIL", "PASS"]
    assert verdicts[EXACT].reason.endswith("agree at the grade logits, exact repeat")
    assert verdicts[found_by].reason.endswith(words)
    assert verdicts[found_by].mismatches > 0
    assert verdicts[found_by].layers == (2, 3)
    assert verdicts[other].reason == (
        "PASS: 8 records of 2 fresh replays agree at the grade logits under "
        f"varied {'order' if other == ORDER else 'memory contents'}"
    )
    assert verdicts[other].roots["logits"] == verdicts[EXACT].roots["logits"]
    assert all(verdict.warnings == () for verdict in verdicts.values())


@pytest.mark.slow
def test_without_exact_repeats_it_stays_undecided_and_batches_bring_another_order(
    tmp_path: Path,
) -> None:
    verdict = certified(tmp_path, "carrying_linear", (BATCH,))[BATCH]
    assert verdict.verdict == "FAIL"
    assert verdict.reason.endswith(
        "undecided: shape-dependent or order-dependent, repeatable, or a race "
        "(no exact repeats to compare with: certify with --vary none)"
    )


@pytest.mark.slow
def test_a_clean_contract_passes_with_several_varied_at_once_and_says_so(tmp_path: Path) -> None:
    several = ("load", "memory", "order", "threads")
    verdict = certified(tmp_path, "ordered_linear", (several,))[several]
    assert (verdict.verdict, verdict.vary) == ("PASS", several)
    assert verdict.reason.endswith(
        "under varied load of the machine, memory contents, order and number of threads"
    )
    reference, varied = manifests(tmp_path)
    assert (reference.varied, reference.stress) == ({}, {})
    assert set(varied.varied) == set(varied.stress) == set(several)
    assert varied.stress["order"]["displaced"] > 0
    threads = varied.varied["threads"]
    assert varied.stress["threads"] == {"at_load": threads, "at_end": threads}
    assert varied.stress["load"]["running"] == varied.varied["load"]
    assert varied.stress["load"]["cpu_s"] > 0.05 * varied.stress["load"]["wall_s"] > 0
    assert varied.stress["memory"]["filled"] == varied.stress["memory"]["blocks"] == 12
    assert varied.effective["torch.num_threads"] != reference.effective["torch.num_threads"]
    assert varied.execution_id == reference.execution_id


@pytest.mark.slow
@pytest.mark.parametrize("own", ["pinned", "cold"])
def test_a_kernel_that_is_compiled_to_the_same_function_passes_and_shows_that_it_was(
    tmp_path: Path, own: str
) -> None:
    verdict = certified(tmp_path, "recompiled_linear", (KERNELS,), kernels=own)[KERNELS]
    assert (verdict.verdict, verdict.warnings) == ("PASS", ())
    assert verdict.reason.endswith("under varied kernel cache")
    both = manifests(tmp_path)
    cold, pinned = both if own == "cold" else both[::-1]
    assert [m.varied for m in (cold, pinned)] == (
        [{}, {"kernel_cache": "pinned"}] if own == "cold" else [{"kernel_cache": "cold"}, {}]
    )
    shapes = cold.stress["kernel_cache"]["at_end"]["compiled"]
    assert shapes > 1
    assert cold.stress["kernel_cache"] == {
        "at_load": {"in_force": "cold", "files": 0, "compiled": 0},
        "at_end": {"in_force": "cold", "files": shapes, "compiled": shapes},
    }
    there = {"in_force": "pinned", "files": shapes, "compiled": shapes}
    assert pinned.stress["kernel_cache"] == {"at_load": there, "at_end": there}
    assert cold.effective["kernel_cache_at_load"] != pinned.effective["kernel_cache_at_load"]


@pytest.mark.slow
def test_kernels_of_other_shapes_are_there_before_the_replays_that_draw_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = ("batch", "cache")
    verdict = certified(tmp_path / "a", "recompiled_linear", (both,))[both]
    assert verdict.verdict != "VOID"
    found = manifests(tmp_path / "a")
    assert [manifest.state for manifest in found] == ["COMPLETE", "COMPLETE"]
    assert len({m.effective["kernel_cache_at_load"] for m in found}) == 1
    monkeypatch.setattr(certify, "warm", lambda campaign, _: warming.warm(campaign))
    verdict = certified(tmp_path / "b", "recompiled_linear", (both,))[both]
    assert (verdict.verdict, verdict.code) == ("VOID", "setting-not-in-force")
    assert "torch_extensions/recompiled_linear-" in verdict.reason


@pytest.mark.slow
def test_where_nothing_is_compiled_other_kernels_are_not_claimed(tmp_path: Path) -> None:
    verdict = certified(tmp_path, "ordered_linear", (KERNELS,))[KERNELS]
    assert (verdict.verdict, verdict.code) == ("VOID", "stress-not-applied")
    assert "all kernels of this contract came compiled" in verdict.reason
    words = [manifest.cause.text for manifest in manifests(tmp_path) if manifest.cause]
    assert [text.split(":")[1] for text in words] == [
        " no compiled kernel in the pinned cache",
        " nothing was compiled in the private cache",
    ]


def manifests(root: Path) -> list[Manifest]:
    """Those of a folder's attempts, by slot."""
    landing = Landing.open(places_in(root).landing)
    found = [Manifest.from_bytes(p.read_bytes()) for p in landing.root.rglob("manifest.json")]
    return sorted(found, key=lambda manifest: manifest.slot)
