"""The contracts that are shipped: all load, and each pair differs in what it is meant to show."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.contract import load

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.parametrize("name", load.list_contracts([CONFIGS]))
def test_every_shipped_contract_loads(name: str) -> None:
    found = load.load_contract(name, [CONFIGS])
    assert sorted(found.contract.arms) == ["controlled", "current"]
    templates = {arm.template for arm in found.contract.arms.values()}
    assert len(templates) == 2


def test_a_full_contract_differs_from_its_base_in_the_dataset_only() -> None:
    for name in ("smollm2-bf16", "smollm2-awq-aten", "qwen2-7b-shapes-awq"):
        quick = load.load_contract(name, [CONFIGS]).contract.model_dump()
        full = load.load_contract(f"{name}-full", [CONFIGS]).contract.model_dump()
        assert full.pop("dataset")["name"] == "choices-191"
        assert quick.pop("dataset")["name"] == "choices-24"
        assert full == quick


@pytest.mark.parametrize("suffix", ["", "-synthetic"])
def test_the_controls_are_twins_but_for_the_order_of_a_sum(suffix: str) -> None:
    racy, clean = (
        load.load_contract(f"control-{kind}{suffix}", [CONFIGS]).contract.model_dump()
        for kind in ("racy", "clean")
    )
    assert (racy.pop("expect")["verdict"], clean.pop("expect")["verdict"]) == ("FAIL", "PASS")
    fault, twin = racy.pop("control")["inject"], clean.pop("control")["inject"]
    assert fault.replace("racy_", "ordered_") == twin != fault
    assert racy == clean


@pytest.mark.parametrize(
    ("names", "backends"),
    [
        (("tiny-awq-torch", "tiny-awq-aten"), ("awq_torch", "awq_torch_aten")),
        (("tiny-gptq-torch", "tiny-gptq-aten"), ("gptq_torch", "gptq_torch_aten")),
    ],
)
def test_one_checkpoint_under_two_backends_differs_in_the_backend_only(
    names: tuple[str, str], backends: tuple[str, str]
) -> None:
    a, b = (load.load_contract(name, [CONFIGS]).contract.model_dump() for name in names)
    assert tuple(table["quantization"].pop("backend") for table in (a, b)) == backends
    assert a == b


def test_one_model_in_two_formats_differs_in_the_format_and_its_kernels_only() -> None:
    awq, gptq = (
        load.load_contract(f"qwen2-7b-shapes-{form}", [CONFIGS]).contract.model_dump()
        for form in ("awq", "gptq")
    )
    assert {table["model"].pop("checkpoint") for table in (awq, gptq)} == {
        "demo:qwen2-7b-shapes-awq",
        "demo:qwen2-7b-shapes-gptq",
    }
    quantised = [table.pop("quantization") for table in (awq, gptq)]
    assert [(q["method"], q["bits"], q["group_size"]) for q in quantised] == [
        ("awq", 4, 128),
        ("gptq", 4, 128),
    ]
    assert awq == gptq


def test_shipped_contracts_write_every_determinism_key_out() -> None:
    for name in load.list_contracts([CONFIGS]):
        origin = load.load_contract(name, [CONFIGS]).origin
        explicit = [key for key in origin if key.startswith(("determinism.", "require."))]
        explicit.remove("require.process_bound")  # TOML has no word for none
        assert not [key for key in explicit if origin[key] == "default"], name
