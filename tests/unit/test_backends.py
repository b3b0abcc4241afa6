"""Which backends can run a checkpoint, in which dtype, and in whose words they cannot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fleet.contract.load import BUILTIN, load_contract
from fleet.contract.model import Contract
from fleet.replay import capability
from fleet.replay.backends import LONGEST, Backend, backends_of, dtypes_of, one_line

CONTRACT = load_contract("tiny-awq-torch", [BUILTIN]).contract


def answered(monkeypatch: pytest.MonkeyPatch, refusals: dict[str, list[str]]) -> Backend:
    """One backend that refuses these dtypes with these reasons."""

    def cannot_run(contract: Contract, folder: Path) -> list[str]:
        assert contract.quantization.backend == "one"
        return refusals.get(contract.model.dtype, [])

    monkeypatch.setattr(capability, "known_backends", lambda method: ["one"])
    monkeypatch.setattr(capability, "cannot_run", cannot_run)
    (found,) = backends_of(CONTRACT, Path())
    return found


def test_the_contracts_dtype_is_tried_first_and_another_only_where_it_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert answered(monkeypatch, {}) == Backend("one", "bfloat16")
    only = {"bfloat16": ["supports float16"]}
    assert answered(monkeypatch, only) == Backend("one", "float16")
    both = only | {"float16": ["no"]}
    assert answered(monkeypatch, both) == Backend("one", "float32")


def test_one_reason_is_said_once_and_several_with_their_dtypes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    no_device = {dtype: ["needs CUDA"] for dtype in ("bfloat16", "float16", "float32")}
    assert answered(monkeypatch, no_device) == Backend("one", None, "needs CUDA")
    mixed = no_device | {"float16": ["l.0: shape", "l.1: shape"]}
    words = "bfloat16: needs CUDA; float16: l.0: shape (and 1 more)"
    assert answered(monkeypatch, mixed) == Backend("one", None, words)


def test_the_order_of_dtypes() -> None:
    assert list(dtypes_of("float32")) == ["float32", "float16", "bfloat16"]
    assert list(dtypes_of("bfloat16")) == ["bfloat16", "float16", "float32"]


def test_a_reason_is_one_line_of_some_length() -> None:
    assert one_line(["a\n  b"]) == "a b"
    assert one_line(["a", "b", "c"]) == "a (and 2 more)"
    assert one_line(["x" * 5000]) == "x" * LONGEST + "..."


@pytest.mark.torch
def test_gptqmodel_answers_for_this_very_checkpoint(demo: Callable[[str], Path]) -> None:
    folder = demo("tiny-llama-awq")
    model = CONTRACT.model.model_copy(update={"dtype": "float32"})
    found = {b.name: b for b in backends_of(CONTRACT.model_copy(update={"model": model}), folder)}
    assert sorted(found) == capability.known_backends("awq")
    assert found["awq_torch"] == Backend("awq_torch", "float16")
    assert found["awq_torch_fused"] == Backend("awq_torch_fused", "float32")
    assert found["awq_gemv"].dtype is None
    assert found["awq_gemv"].reason == "runs the checkpoint format gemv, not gemm"
    assert all("\n" not in b.reason for b in found.values())


def test_an_image_processor_that_cannot_be_imported_is_not_to_be_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(name: str) -> None:
        if name == "torchvision":  # built for another torch
            raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr(capability.importlib, "import_module", broken)
    assert capability.image_processors() == {
        "slow": "",
        "fast": "torchvision: operator torchvision::nms does not exist",
    }
