"""The pinned kernel cache is filled before any attempt, and only for what compiles into it."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fleet.contract.model import Control
from fleet.contract.vary import Own, batch_plan, draw
from fleet.errors import AttemptFailed
from fleet.evidence.landing import Landing
from fleet.replay import caches, prewarm
from fleet.replay.engines.synthetic import SyntheticEngine
from fleet.replay.observe import shape
from fleet.replay.task import Device, ReplayTask
from fleet.schedule.driver import Campaign
from fleet.schedule.launcher import Place
from fleet.schedule.warming import AT_MOST, warm
from tests.campaigns import (
    CONTRACT,
    FakeLauncher,
    certified,
    places_in,
    planned_in,
    write_configs,
    write_contract,
)

GPU = Device("GPU-1", "H200", 0, 100)


class Warmer(FakeLauncher):
    """Remembers what it was asked to warm; ``refuses`` cannot be."""

    def __init__(self, refuses: str = "", rounds: int = 1) -> None:
        super().__init__()
        self.rounds = rounds
        self.warmed: list[ReplayTask] = []
        self.refuses = refuses

    def places(self) -> Sequence[Place]:
        return [Place("test-node", GPU)]

    def prewarm(
        self, task: ReplayTask, environment: Mapping[str, str], num_cpus: int, deadline_s: float
    ) -> dict[str, Any]:
        if task.contract_name == self.refuses:
            raise AttemptFailed("load-error", "no kernel")
        assert environment["CUDA_VISIBLE_DEVICES"] == GPU.uuid
        self.warmed.append(task)
        self.environments.append(dict(environment))
        alike = (task.contract_name, task.varied)
        times = sum((each.contract_name, each.varied) == alike for each in self.warmed)
        left = self.rounds - times
        return {"compiled": left, "files": 9, "seconds": 1.0, "warm": left == 0}


def campaign_of(root: Path, launcher: FakeLauncher, **kinds: tuple[str, str]) -> Campaign:
    """``kinds``: contract -> (engine, kernel cache)."""
    _, planned, places = planned_in(root)
    (toy,) = planned.named
    contracts: dict[str, Any] = {}
    for name, (engine, cache) in kinds.items():
        contract = toy.loaded.contract.model_copy(
            update={
                "model": toy.loaded.contract.model.model_copy(update={"engine": engine}),
                "determinism": toy.loaded.contract.determinism.model_copy(
                    update={"kernel_cache": cache}
                ),
            }
        )
        loaded = SimpleNamespace(contract=contract, path=toy.loaded.path, name=name)
        contracts[name] = SimpleNamespace(**vars(toy) | {"loaded": loaded, "name": name})
        contracts[name].checkpoint = root
    return Campaign(Landing(places.landing), launcher, contracts, places.scratch)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_configs(tmp_path / "configs")
    return tmp_path


def test_only_a_pinned_cache_of_an_engine_that_compiles_is_warmed(root: Path) -> None:
    launcher = Warmer()
    campaign = campaign_of(
        root, launcher, a=("gptqmodel", "pinned"), b=("gptqmodel", "cold"),
        c=("transformers", "pinned"), d=("gptqmodel", "pinned"),
    )  # fmt: skip
    assert set(warm(campaign)) == {"a", "d"}
    assert set(warm(campaign, every_engine=True)) == {"a", "c", "d"}
    assert {task.device for task in launcher.warmed} == {GPU}
    assert not list(campaign.scratch.glob("prewarm-*"))


def test_whoever_varies_the_kernels_or_injects_a_compiled_one_needs_the_pinned_cache(
    root: Path,
) -> None:
    launcher = Warmer()
    kinds = {"a": ("transformers", "cold"), "b": ("transformers", "pinned")}
    campaign = campaign_of(root, launcher, **kinds)
    assert warm(campaign, {"a": ((), ("order",)), "b": ((),)}) == {}
    assert set(warm(campaign, {"a": ((), ("kernel_cache", "order")), "b": ((),)})) == {"a"}
    (task,) = launcher.warmed
    folder = str(caches.pinned_kernels(campaign.scratch.resolve()))
    assert launcher.environments[0]["TRITON_CACHE_DIR"].startswith(f"{folder}/")
    assert task.contract["determinism"]["kernel_cache"] == "cold"
    for resolved in campaign.contracts.values():
        control = Control(inject="compiled_linear:lm_head")
        contract = resolved.loaded.contract.model_copy(update={"control": control})
        vars(resolved.loaded)["contract"] = contract
    assert set(warm(campaign)) == {"b"}


def test_a_contract_that_cannot_be_warmed_does_not_stop_the_others(root: Path) -> None:
    launcher = Warmer(refuses="a")
    kinds = {name: ("gptqmodel", "pinned") for name in ("a", "b")}
    outcomes = warm(campaign_of(root, launcher, **kinds))
    assert outcomes["a"] == "load-error: no kernel"
    assert [task.contract_name for task in launcher.warmed] == ["b"]


def test_a_contract_is_warm_when_a_fresh_process_adds_nothing(root: Path) -> None:
    launcher = Warmer(rounds=3)
    outcomes = warm(campaign_of(root, launcher, a=("gptqmodel", "pinned")))
    assert outcomes == {"a": {"compiled": 3, "files": 9, "seconds": 3.0}}
    assert len({task.attempt for task in launcher.warmed}) == 3
    endless = warm(campaign_of(root, Warmer(rounds=99), a=("gptqmodel", "pinned")))
    assert 'kernel_cache = "cold"' in str(endless["a"])


def test_a_cache_is_compiled_once_and_again_when_a_kernel_is_gone(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, planned, places = planned_in(root)
    campaign = Campaign(Landing(places.landing), Warmer(), {}, places.scratch)
    task = campaign.task(planned.slots[0], planned.named[0], "prewarm-1")
    kernel = caches.pinned_kernels(places.scratch) / "triton" / "kernel.cubin"

    def compile_one(_: ReplayTask) -> None:
        kernel.parent.mkdir(parents=True, exist_ok=True)
        kernel.write_bytes(b"code")
        (kernel.parent / "kernel.lock").touch()

    monkeypatch.setattr(prewarm, "_run_every_shape", compile_one)
    found = [prewarm.prewarm(task) for _ in range(2)]
    assert [(f["compiled"], f["files"], f["warm"]) for f in found] == [(1, 1, False), (0, 1, True)]
    monkeypatch.setattr(prewarm, "_run_every_shape", lambda _: pytest.fail("it is warm"))
    assert prewarm.prewarm(task)["warm"]
    kernel.unlink()
    monkeypatch.setattr(prewarm, "_run_every_shape", compile_one)
    assert prewarm.prewarm(task)["compiled"] == 1


def prompts(*lengths: int) -> list[Any]:
    return [SimpleNamespace(images=None, prompt_ids=(1,) * length) for length in lengths]


def own_of(batch_size: int, num_samples: int) -> Own:
    return Own(batch_size, num_threads=1, num_samples=num_samples, cores=1)


def test_one_batch_of_each_shape_is_run() -> None:
    inputs: Any = {"one": prompts(3, 3, 4), "two": prompts(4, 5, 3)}
    batches = list(prewarm._one_of_each_shape(inputs, own_of(1, 3), False))
    assert [len(batch[0].prompt_ids) for batch in batches] == [3, 4, 5]
    batches = list(prewarm._one_of_each_shape(inputs, own_of(2, 3), False))
    assert [len(batch) for batch in batches] == [2, 1, 2, 1]


@pytest.mark.parametrize("own_size", [1, 3, 5])
@pytest.mark.parametrize("vary", [("batch",), ("batch", "order")])
def test_every_shape_that_any_attempt_can_draw_is_run_once(
    own_size: int, vary: tuple[str, ...]
) -> None:
    inputs: Any = {"one": prompts(*range(3, 14)), "two": prompts(*[4] * 7, 9, 9, 2, 30)}
    own, ids = own_of(own_size, 11), [f"s{i}" for i in range(11)]
    run = [shape(batch) for batch in prewarm._one_of_each_shape(inputs, own, True)]
    assert len(run) == len(set(run))
    drawn, sizes = set(), set()
    for number in range(200):
        varied = draw(vary, f"{number:016x}", 1, own)
        sizes.add(varied["batch"]["size"])
        for arm, prepared in inputs.items():
            for batch in batch_plan(ids, arm, own_size, varied):
                drawn.add(shape([prepared[at] for at in batch.positions]))
    assert drawn <= set(run)
    assert sizes == {*range(1, 9), 2 * own_size} - {own_size}
    assert {rows for rows, _ in run} >= sizes


def test_of_too_many_shapes_each_number_of_rows_has_its_likeliest() -> None:
    lengths = range(1, 101)
    inputs: Any = {"one": prompts(*lengths)}
    run = [shape(batch) for batch in prewarm._one_of_each_shape(inputs, own_of(1, 100), True)]
    assert len(run) == 100 + prewarm.MOST_VARIED
    more = run[100:]
    assert {rows for rows, _ in more} == set(range(2, 9))
    assert more[:7] == [(rows, 100) for rows in range(2, 9)]
    assert {length for rows, length in more if rows == 8} == set(range(83, 101))


def test_a_process_for_each_cache_covers_what_claims_draw(root: Path) -> None:
    launcher = Warmer()
    kinds = {"a": ("gptqmodel", "pinned"), "b": ("gptqmodel", "cold")}
    campaign = campaign_of(root, launcher, **kinds)

    def warmed(name: str, *claims: tuple[str, ...]) -> list[tuple[Any, Any]]:
        launcher.warmed.clear()
        warm(campaign, {name: claims})
        mine = [task for task in launcher.warmed if task.contract_name == name]
        found = [(task.vary, task.varied) for task in mine]
        return sorted(found, key=lambda each: len(each[1]))  # they run side by side

    own = {"kernel_cache": "pinned"}
    exact, other = ((), own), own | {"cache": False}
    assert warmed("a", (), ("order",), ("threads",)) == [exact]
    assert warmed("a", (), ("batch", "order")) == [(("batch",), own)]
    assert warmed("a", ("cache",)) == [exact, ((), other)]
    assert warmed("a", ("batch", "cache"), ("cache",)) == [exact, (("batch",), other)]
    assert warmed("a", ("batch", "kernel_cache")) == [exact]
    assert warmed("b", ("batch",), ("kernel_cache",)) == [exact]
    assert warmed("b", ("batch", "kernel_cache")) == [(("batch",), own)]


def test_what_was_covered_for_one_claim_is_not_taken_for_another(root: Path) -> None:
    _, planned, places = planned_in(root)
    campaign = Campaign(Landing(places.landing), Warmer(), {}, places.scratch)
    task = campaign.task(planned.slots[0], planned.named[0], "prewarm-1")
    others = [
        task,
        replace(task, vary=("batch",)),
        replace(task, varied={"cache": False}),
        replace(task, sample_ids=task.sample_ids[:1]),
        replace(task, arms=task.arms[:1]),
    ]
    assert len({prewarm._mark(each) for each in others}) == len(others)
    assert prewarm._mark(replace(task, attempt="prewarm-2")) == prewarm._mark(task)


def test_a_pinned_cache_that_changes_is_void_and_names_what_came_and_the_remedy(root: Path) -> None:
    write_contract(root / "configs", "toy", CONTRACT.replace('"cold"', '"pinned"'))
    kernels = caches.pinned_kernels(places_in(root).scratch)

    def compile_late(self: SyntheticEngine, sample: Any) -> dict[str, dict[str, int]]:
        (kernels / "triton").mkdir(parents=True, exist_ok=True)
        (kernels / "triton" / f"{sample.sample_id}.cubin").write_bytes(os.urandom(8))
        return {}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SyntheticEngine, "executed", compile_late)
        (verdict,) = certified(root).contracts
    assert (verdict.verdict, verdict.code) == ("VOID", "setting-not-in-force")
    assert "changed in the replay: 1 files, first triton/s0.cubin" in verdict.reason
    assert "certifying again finds them there" in verdict.reason


def test_naming_the_kernels_is_not_read_back_as_a_setting(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It generates in its own way, when the settings in force have been read for the last time."""

    def executed(self: SyntheticEngine, sample: Any) -> dict[str, dict[str, int]]:
        monkeypatch.setenv("PYTHONHASHSEED", "7")
        return {"prefill": {"gemm": 2}, "decode": {"gemv": 1}}

    monkeypatch.setattr(SyntheticEngine, "executed", executed)
    (verdict,) = certified(root).contracts
    assert verdict.verdict == "PASS"
    found = (root / "var/landing/attempts").glob("*/manifest.json")
    named = [json.loads(p.read_bytes())["census"]["executed"] for p in found]
    assert {"prefill": {"gemm": 2}, "decode": {"gemv": 1}} in named


class SideBySide(Warmer):
    """``slow`` compiles for long in the folder that all share; what others see there meanwhile is
    not theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.compiled, self.often = threading.Event(), threading.Event()

    def prewarm(
        self, task: ReplayTask, environment: Mapping[str, str], num_cpus: int, deadline_s: float
    ) -> dict[str, Any]:
        found = super().prewarm(task, environment, num_cpus, deadline_s)
        if self.compiled.is_set():
            return found | {"warm": True}
        if task.contract_name == "slow":
            self.often.wait(0.5)
            self.compiled.set()
        elif sum(each.contract_name == task.contract_name for each in self.warmed) >= AT_MOST:
            self.often.set()
        return found | {"compiled": 1, "warm": False}


def test_what_another_contract_compiles_meanwhile_does_not_count_against_one(root: Path) -> None:
    launcher = SideBySide()
    campaign = campaign_of(
        root, launcher, quick=("gptqmodel", "pinned"), slow=("gptqmodel", "pinned")
    )
    outcomes = warm(campaign)
    assert not [outcome for outcome in outcomes.values() if isinstance(outcome, str)]
    assert len([task for task in launcher.warmed if task.contract_name == "quick"]) == 2
