"""``NAME@BACKEND:DTYPE``: what is replaced, what stays the file's, and every wrong reference."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fleet.cli import run
from fleet.contract.load import BUILTIN, has_contract, load_contract
from fleet.contract.variant import reference, variant_of
from fleet.errors import ContractError
from fleet.replay.checkpoint import default_cache
from fleet.report.contract_view import contract_rows
from fleet.schedule.resolve import resolve_contract, same_content

BASE = "tiny-awq-torch"
SEARCH = [BUILTIN]


def test_backend_and_dtype_are_replaced_and_nothing_else() -> None:
    base = load_contract(BASE, SEARCH)
    other = load_contract(f"{BASE}@awq_torch_aten:float16", SEARCH)
    assert other.name == f"{BASE}@awq_torch_aten:float16"
    assert other.path == base.path
    before, after = base.contract.model_dump(), other.contract.model_dump()
    assert after["quantization"].pop("backend") == "awq_torch_aten"
    assert after["model"].pop("dtype") == "float16"
    del before["quantization"]["backend"], before["model"]["dtype"]
    assert after == before


def test_without_a_dtype_it_is_the_contracts_own() -> None:
    assert load_contract(f"{BASE}@awq_marlin", SEARCH).contract.model.dtype == "bfloat16"


def test_the_reference_is_the_origin_of_the_replaced_keys() -> None:
    name = f"{BASE}@awq_torch:bfloat16"
    rows = {row.key: row.origin for row in contract_rows(load_contract(name, SEARCH))}
    assert {key for key, origin in rows.items() if origin == name} == {
        "quantization.backend",
        "model.dtype",
    }
    assert rows["quantization.method"] == f"{BASE}.toml"


def test_a_file_can_have_variants_and_a_file_that_exists_wins(tmp_path: Path) -> None:
    text = (BUILTIN / "contracts" / f"{BASE}.toml").read_text()
    folder = tmp_path / "at@home"
    folder.mkdir()
    path = folder / "mine.toml"
    path.write_text(text)
    assert variant_of(str(path)) is None
    assert load_contract(str(path), SEARCH).name == "mine"
    other = load_contract(f"{path}@awq_torch_aten", SEARCH)
    assert (other.name, other.path) == (f"{path}@awq_torch_aten", path.resolve())
    (folder / "a@awq_torch.toml").write_text(text)
    with pytest.raises(ContractError, match="rename the file"):
        load_contract(str(folder / "a@awq_torch.toml"), SEARCH)
    with pytest.raises(ContractError, match="no such file"):
        load_contract(str(folder / "gone@awq_torch.toml"), SEARCH)


@pytest.mark.parametrize(
    ("name", "key", "words"),
    [
        (f"{BASE}@", "quantization.backend", "got nothing"),
        (f"{BASE}@:float16", "quantization.backend", "got nothing"),
        (f"{BASE}@auto", "quantization.backend", "got 'auto'"),
        (f"{BASE}@auto_trainable", "quantization.backend", "by machine"),
        (f"{BASE}@awq torch", "quantization.backend", "letters, digits and underscores"),
        (f"{BASE}@awq_torch:", "model.dtype", "got nothing after the colon"),
        (f"{BASE}@awq_torch:fp16", "model.dtype", "got 'fp16'"),
        (f"{BASE}@awq_torch@awq_marlin", "", "one contract name before one '@'"),
        ("@awq_torch", "", "one contract name before one '@'"),
        ("smollm2-bf16@awq_torch", "quantization.method", 'got "none"'),
        ("nowhere@awq_torch", "", "a contract named 'nowhere'"),
    ],
)
def test_a_wrong_reference_is_one_clear_error(name: str, key: str, words: str) -> None:
    with pytest.raises(ContractError) as caught:
        load_contract(name, SEARCH)
    assert caught.value.key == key
    assert words in str(caught.value)
    assert "\n  next: " in str(caught.value)


@pytest.mark.parametrize("verb", ["certify", "trace", "screen", "contract check", "contract show"])
@pytest.mark.parametrize("name", [f"{BASE}@auto", "smollm2-bf16@awq_torch"])
def test_a_wrong_reference_ends_every_verb_with_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run([*verb.split(), name]) == 2
    assert list(tmp_path.iterdir()) == []


def test_who_has_a_variant() -> None:
    assert has_contract(f"{BASE}@whatever", SEARCH)
    assert not has_contract("nowhere@whatever", SEARCH)
    assert reference(BASE, "awq_marlin", None) == f"{BASE}@awq_marlin"
    assert reference(BASE, "awq_marlin", "float16") == f"{BASE}@awq_marlin:float16"


@pytest.mark.torch
def test_ids_follow_from_what_is_replaced_alone() -> None:
    cache = default_cache(os.environ)

    def resolved(name: str) -> str:
        return resolve_contract(name, SEARCH, cache, lambda _: None).execution_id

    base = resolve_contract(BASE, SEARCH, cache, lambda _: None)
    assert resolved(f"{BASE}@awq_torch") == base.execution_id
    assert resolved(f"{BASE}@awq_torch:bfloat16") == base.execution_id
    assert resolved(f"{BASE}@awq_torch_aten") == resolved("tiny-awq-aten") != base.execution_id
    for name in (f"{BASE}@awq_torch_aten", f"{BASE}@awq_torch:float16"):
        again = resolve_contract(name, SEARCH, cache, lambda _: None)
        assert same_content(base, load_contract(name, SEARCH)) == again
