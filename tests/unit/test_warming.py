"""The pinned kernel cache is filled before any attempt, and only for what compiles into it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fleet.contract.model import Control
from fleet.errors import AttemptFailed
from fleet.evidence.landing import Landing
from fleet.replay import caches, prewarm
from fleet.replay.engines.synthetic import SyntheticEngine
from fleet.replay.task import Device, ReplayTask
from fleet.schedule.driver import Campaign
from fleet.schedule.launcher import Place
from fleet.schedule.warming import warm
from tests.campaigns import FakeLauncher, certified, planned_in, write_configs

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
        times = sum(1 for each in self.warmed if each.contract_name == task.contract_name)
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


def test_one_batch_of_each_shape_is_run() -> None:
    def of(length: int) -> Any:
        return SimpleNamespace(prompt_ids=(1,) * length)

    inputs: Any = {"one": [of(3), of(3), of(4)], "two": [of(4), of(5), of(3)]}
    batches = list(prewarm._one_of_each_shape(inputs, 1))
    assert [len(batch[0].prompt_ids) for batch in batches] == [3, 4, 5]
    assert [len(batch) for batch in prewarm._one_of_each_shape(inputs, 2)] == [2, 1, 2, 1]


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
