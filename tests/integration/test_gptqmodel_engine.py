"""The gptqmodel engine on a small AWQ model: backend, class and mode are what the contract says."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from fleet.errors import AttemptFailed, ContractError
from fleet.replay import capability
from fleet.replay.engines.gptqmodel import GPTQModelEngine
from tests.integration.engine_cases import (
    contract,
    edit,
    load,
    not_in_force,
    one_by_one,
    prepared,
)

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("settings_in_force"),
    # gptqmodel makes its temporary folder before it refuses a backend, and drops it.
    pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning"),
]

Demo = Callable[[str], Path]
Q_PROJ = "model.layers.0.self_attn.q_proj"
BACKENDS = ["awq_torch", "awq_torch_aten", "awq_torch_fused"]

# The only backend that repacks on a CPU while it loads. gptqmodel 7.7 refuses it for 4 bits.
INT8 = "awq_torch_int8"
INT8_RETIRED = tuple(map(int, metadata.version("gptqmodel").split(".")[:2])) >= (7, 7)
needs_int8 = pytest.mark.skipif(INT8_RETIRED, reason=f"this gptqmodel has retired {INT8}")
WITH_INT8 = pytest.param(INT8, marks=needs_int8)


def quantised(backend: str, **changes: Any) -> dict[str, dict[str, Any]]:
    awq = {"method": "awq", "bits": 4, "group_size": 64, "backend": backend}
    model = {"checkpoint": "demo:tiny-llama-awq", "engine": "gptqmodel"}
    return {"model": model, "quantization": awq | changes}


def engine_for(folder: Path, backend: str, **tables: Any) -> GPTQModelEngine:
    return GPTQModelEngine(contract(**quantised(backend), **tables), folder)


@pytest.fixture
def folder(demo: Demo) -> Path:
    return demo("tiny-llama-awq")


@pytest.mark.parametrize("backend", [*BACKENDS, WITH_INT8])
def test_a_backend_is_stable_and_its_weights_do_not_change_in_use(
    folder: Path, backend: str
) -> None:
    runs = []
    for _ in range(2):
        engine = engine_for(folder, backend)
        census = load(engine, folder)
        assert (census.unmapped, census.altered, census.missing) == ([], [], [])
        assert {k["backend"] for k in census.kernels.values()} == {backend}
        assert len(census.kernels) == 14
        weights = engine.weights()
        assert not_in_force(engine) == []
        generations = one_by_one(engine, prepared(engine)[:2])
        assert not_in_force(engine) == []
        assert engine.weights() == weights
        runs.append((weights, generations, engine.settings().effective))
    assert runs[0] == runs[1]


@pytest.mark.parametrize("backend", ["gptq_torch_aten", "gptq_torch_fused"])
def test_gptq_is_run_by_the_same_engine(demo: Demo, backend: str) -> None:
    gptq = demo("tiny-llama-gptq")
    rule = contract(**quantised(backend, method="gptq"))
    assert capability.cannot_run(rule, gptq) == []
    engine = GPTQModelEngine(rule, gptq)
    census = load(engine, gptq)
    assert (census.unmapped, census.altered, census.missing) == ([], [], [])
    assert {k["backend"] for k in census.kernels.values()} == {backend}
    weights = engine.weights()
    first = one_by_one(engine, prepared(engine)[:2])
    assert one_by_one(engine, prepared(engine)[:2]) == first
    assert (not_in_force(engine), engine.weights()) == ([], weights)


def test_two_backends_give_two_sets_of_bits_of_one_checkpoint(folder: Path) -> None:
    logits = []
    for backend in ("awq_torch", "awq_torch_aten"):
        engine = engine_for(folder, backend)
        load(engine, folder)
        steps = engine.generate(prepared(engine)[:1])[0].steps
        logits.append([s.logits_sha256 for s in steps])
    assert logits[0] != logits[1]


def test_class_and_mode_of_every_module_are_read_and_hashed(folder: Path) -> None:
    engine = engine_for(folder, "awq_torch_aten")
    kernel = load(engine, folder).kernels[Q_PROJ]
    assert (kernel["class"], kernel["mode"]) == ("TorchAtenAwqLinear", "inference")
    before = engine.settings().effective
    assert before["model.kernel_counts"] == {"TorchAtenAwqLinear/inference": 14}
    engine.model().get_submodule(Q_PROJ).linear_mode = "train"
    after = engine.settings().effective
    assert after["model.kernels"] != before["model.kernels"]
    assert not_in_force(engine) == ["quantization.modes_off_inference"]


def test_a_kernels_private_tables_are_part_of_the_weights(folder: Path) -> None:
    engine = engine_for(folder, "awq_torch_aten")
    load(engine, folder)
    before = engine.weights()
    table = engine.model().get_submodule(Q_PROJ).scales_and_zeros
    table.view(torch.int16).flatten()[0] ^= 1
    assert engine.weights() != before


@needs_int8
def test_repacked_tensors_are_named_where_a_kernel_repacks_at_load(folder: Path) -> None:
    assert load(engine_for(folder, "awq_torch"), folder).repacked == []
    repacked = load(engine_for(folder, INT8), folder).repacked
    assert f"{Q_PROJ}.qweight" in repacked


def test_a_packed_weight_changed_after_loading_is_altered_not_repacked(folder: Path) -> None:
    class Forgetful(GPTQModelEngine):
        def _load_model(self):
            model, missing = super()._load_model()
            model.get_submodule(Q_PROJ).qweight[0, 0] ^= 1
            return model, missing

    census = load(Forgetful(contract(**quantised("awq_torch")), folder), folder)
    assert (census.altered, census.repacked) == ([f"{Q_PROJ}.qweight"], [])


@pytest.mark.parametrize("backend", ["awq_torch", WITH_INT8])
def test_a_packed_weight_that_the_checkpoint_lacks_is_unmapped(edited: Path, backend: str) -> None:
    edit(edited, lambda tensors: tensors.pop(f"{Q_PROJ}.qweight"))
    assert load(engine_for(edited, backend), edited).unmapped == [f"{Q_PROJ}.qweight"]


def test_a_norm_that_the_checkpoint_lacks_is_unmapped(edited: Path) -> None:
    edit(edited, lambda tensors: tensors.pop("model.norm.weight"))
    assert load(engine_for(edited, "awq_torch"), edited).unmapped == ["model.norm.weight"]


def test_the_generation_config_in_memory_is_replaced_too(edited: Path) -> None:
    (edited / "generation_config.json").write_text(json.dumps({"repetition_penalty": 1.3}))
    engine = engine_for(edited, "awq_torch_aten")
    load(engine, edited)
    one_by_one(engine, prepared(engine)[:1])
    assert not_in_force(engine) == []
    assert engine.settings().effective["decoding.generation_config"]["do_sample"] is False
    assert [w.split(",")[0] for w in engine.warnings()] == [
        "generation_config.json asks for repetition_penalty 1.3"
    ]


def test_eager_attention_is_in_force_when_asked_for(folder: Path) -> None:
    engine = engine_for(folder, "awq_torch_aten", attention={"implementation": "eager"})
    load(engine, folder)
    assert engine.settings().effective["model.attention"] == "eager"


def test_what_the_import_did_to_the_environment_is_recorded(folder: Path) -> None:
    engine = engine_for(folder, "awq_torch_aten")
    load(engine, folder)
    effective = engine.settings().effective
    assert "CUDA_DEVICE_ORDER" in effective["gptqmodel.environment_names"]
    json.dumps(effective, allow_nan=False)


def test_a_backend_that_cannot_run_here_fails_at_load_with_the_reason(folder: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine may well run it")
    with pytest.raises(AttemptFailed, match="requires CUDA"):
        load(engine_for(folder, "awq_marlin"), folder)


def test_a_contract_that_contradicts_the_checkpoint_is_refused(folder: Path) -> None:
    with pytest.raises(ContractError, match=r"group_size = 128, the checkpoint 64"):
        GPTQModelEngine(contract(**quantised("awq_torch", group_size=128)), folder)


def test_the_machine_says_which_backends_it_can_run_and_why_not_the_others() -> None:
    can, cannot = capability.runnable_backends("awq", 4, 64)
    assert set(BACKENDS) <= set(can)
    assert (INT8 in cannot) == INT8_RETIRED
    assert not set(can) & set(cannot)
    assert set(can) | set(cannot) == set(capability.known_backends("awq"))
    assert cannot["awq_gemv"] == "runs the checkpoint format gemv, not gemm"
    if not torch.cuda.is_available():
        assert cannot["awq_marlin"] == "Marlin kernel requires CUDA."


def test_a_runnable_contract_has_no_reasons_against_it(folder: Path) -> None:
    assert capability.cannot_run(contract(**quantised("awq_torch_aten")), folder) == []
    assert capability.cannot_run(contract(), folder) == []


def test_each_reason_against_a_contract_is_one_clear_line(folder: Path) -> None:
    unknown = contract(**quantised("awq_turbo"))
    (reason,) = capability.cannot_run(unknown, folder)
    assert reason.startswith("gptqmodel has no such awq backend; it knows ")
    wide = contract(
        **quantised("awq_torch") | {"model": quantised("")["model"] | {"dtype": "float32"}}
    )
    (reason,) = capability.cannot_run(wide, folder)
    assert "float32" in reason
    assert "<class" not in reason
    bits = contract(**quantised("awq_torch", bits=8))
    assert capability.cannot_run(bits, folder) == ["the contract says bits = 8, the checkpoint 4"]


def test_asking_prints_nothing(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    capability.runnable_backends("awq", 4, 128)
    capability.cannot_run(contract(**quantised("awq_torch")), folder)
    assert capfd.readouterr() == ("", "")


def test_what_a_kernel_says_while_it_refuses_is_not_printed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """gptqmodel 7.7 warns of a CPU without AVX512 on standard error, beside its refusal."""

    def refuse(*_: object) -> object:
        print("a line")
        print("a warning", file=sys.stderr)
        raise ValueError("needs another CPU")

    monkeypatch.setattr(capability, "_select", refuse)
    assert capability.runnable_backends("awq", 4, 64)[1]["awq_torch"] == "needs another CPU"
    assert capfd.readouterr() == ("", "")
