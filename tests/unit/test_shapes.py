"""The shipped images and questions: drawn again they are the same, and prompts have one length."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from PIL import Image

from fleet.contract.dataset import load_dataset
from fleet.contract.images import check_images, images_of
from fleet.contract.load import list_contracts, load_contract
from fleet.replay.inputs import render_arm

CONFIGS = Path(__file__).parents[2] / "configs"
FOLDER = CONFIGS / "datasets"


@pytest.fixture(scope="module")
def draw() -> ModuleType:
    spec = importlib.util.spec_from_file_location("draw", FOLDER / "shapes-191" / "draw.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def records(name: str) -> list[dict[str, Any]]:
    dataset = load_dataset(name, [CONFIGS])
    contract = load_contract("tiny-qwen2-vl", [CONFIGS]).contract
    found = check_images(contract, name, dataset.file, (r for r, _ in dataset.stream()))
    return [dict(record) for record in found]


def test_the_generator_beside_the_images_draws_them_again(draw: ModuleType) -> None:
    drawn = list(draw.questions())
    shipped = records("shapes-191")
    assert len(drawn) == len(shipped) == 191
    for (image, record), kept in zip(drawn, shipped, strict=True):
        named = kept.pop("images")
        assert record == kept
        with Image.open(FOLDER / named[0]["file"]) as found:
            assert (found.mode, found.size) == (image.mode, image.size) == ("RGB", (160, 160))
            assert found.tobytes() == image.tobytes(), record["id"]


def test_the_small_set_is_the_first_questions_of_the_large_one() -> None:
    assert records("shapes-24") == records("shapes-191")[:24]


def test_every_image_is_asked_about_once_and_all_are_small() -> None:
    images = [images_of(record, "")[0] for record in records("shapes-191")]
    assert len({image.sha256 for image in images}) == 191
    files = sorted(path for path in (FOLDER / "shapes-191").glob("*.png"))
    assert sorted(FOLDER / str(image.file) for image in images) == files
    assert sum(path.stat().st_size for path in files) < 500_000


def test_gold_letters_are_balanced_and_not_periodic_and_choices_differ() -> None:
    every = records("shapes-191")
    gold = [record["answer"] for record in every]
    counts = Counter(gold)
    assert max(counts.values()) - min(counts.values()) <= 1
    assert all(gold[:-period] != gold[period:] for period in range(1, 13))
    for record in every:
        words = record["choices"].split(" ")
        assert words[::2] == list("ABCD")
        assert len(set(words[1::2])) == 4


def test_prompts_of_the_shipped_vision_contracts_have_one_length() -> None:
    names = [
        name
        for name in list_contracts([CONFIGS])
        if load_contract(name, [CONFIGS]).contract.model.kind == "vision"
    ]
    assert len(names) >= 6
    for name in names:
        contract = load_contract(name, [CONFIGS]).contract
        for arm in contract.arms:
            asked = records("shapes-191")
            assert {len(prompt) for prompt in render_arm(contract, name, arm, asked)} == {50}
