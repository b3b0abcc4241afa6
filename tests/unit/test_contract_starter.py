"""``fleet contract new``: what it writes is valid, and it never overwrites."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.contract.load import load_contract
from fleet.contract.starter import starter, write_starter
from fleet.errors import ContractError


def test_what_is_written_is_a_valid_contract_of_that_name(tmp_path: Path) -> None:
    path = write_starter("mine", [tmp_path / "new", tmp_path])
    assert path == tmp_path / "new" / "contracts" / "mine.toml"
    found = load_contract("mine", [tmp_path / "new"])
    assert (found.name, found.contract.require.replays) == ("mine", 2)


def test_a_vision_contract_names_its_processor_and_a_dataset_with_images(tmp_path: Path) -> None:
    write_starter("mine", [tmp_path], "vision")
    contract = load_contract("mine", [tmp_path]).contract
    assert (contract.model.kind, contract.model.processor) == ("vision", "slow")
    assert contract.dataset.name == "shapes-24"
    write_starter("text", [tmp_path])
    assert load_contract("text", [tmp_path]).contract.model.kind == "text"


def test_every_key_that_can_change_a_bit_is_written_out(tmp_path: Path) -> None:
    write_starter("mine", [tmp_path])
    origin = load_contract("mine", [tmp_path]).origin
    written = [key for key in origin if key.startswith(("determinism.", "require."))]
    written.remove("require.process_bound")  # TOML has no word for none
    assert {origin[key] for key in written} == {"mine.toml"}


def test_an_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    path = write_starter("mine", [tmp_path])
    path.write_text("precious")
    with pytest.raises(ContractError, match="an existing file"):
        write_starter("mine", [tmp_path])
    assert path.read_text() == "precious"


def test_a_folder_that_cannot_be_made_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ContractError) as caught:
        write_starter("mine", [tmp_path / "file"])
    assert caught.value.expected == "a file that can be written"


@pytest.mark.parametrize("name", ["a/b", "", "two words", "../x"])
def test_a_name_that_is_no_name_writes_nothing(tmp_path: Path, name: str) -> None:
    with pytest.raises(ContractError, match="choose another name"):
        write_starter(name, [tmp_path])
    assert not list(tmp_path.iterdir())
    with pytest.raises(ContractError):
        starter(name)
