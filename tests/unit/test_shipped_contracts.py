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
    for name in ("smollm2-bf16", "smollm2-awq-aten"):
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


def test_one_checkpoint_under_two_backends_differs_in_the_backend_only() -> None:
    a, b = (
        load.load_contract(f"tiny-awq-{backend}", [CONFIGS]).contract.model_dump()
        for backend in ("torch", "aten")
    )
    backends = {table["quantization"].pop("backend") for table in (a, b)}
    assert backends == {"awq_torch", "awq_torch_aten"}
    assert a == b


def test_shipped_contracts_write_every_determinism_key_out() -> None:
    for name in load.list_contracts([CONFIGS]):
        origin = load.load_contract(name, [CONFIGS]).origin
        explicit = [key for key in origin if key.startswith(("determinism.", "require."))]
        assert not [key for key in explicit if origin[key] == "default"], name
