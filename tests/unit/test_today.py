"""Is the evidence about what the config path says today?"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fleet.report.answers import Asked, asked_of
from fleet.report.today import Today
from fleet.schedule.resolve import Resolved, resolve_contract
from tests.campaigns import CONTRACT, write_configs, write_contract

pytestmark = pytest.mark.torch


@pytest.fixture
def certified(tmp_path: Path, demo: Callable[[str], Path]) -> tuple[Path, Resolved]:
    """A ``path:`` checkpoint of our own and a contract over it, as it was when certified."""
    shutil.copytree(demo("tiny-llama-bf16"), tmp_path / "model")
    configs = write_configs(tmp_path / "configs")
    text = CONTRACT.replace('"demo:synthetic"', '"path:../../model"')
    text = text.replace('engine = "synthetic"', 'engine = "transformers"')
    write_contract(configs, "mine", text.replace('dtype = "float32"', 'dtype = "bfloat16"'))
    return tmp_path, resolve_contract("mine", [configs], tmp_path, lambda _: None)


def asked_today(root: Path, then: Resolved) -> list[Asked]:
    ours = [asked_of(then.name, then.execution_id, then.loaded.contract)]
    bodies = {(then.name, then.execution_id): then.body() | {"asked": then.asked()}}
    return Today(bodies, [root / "configs"], root).about(ours, "mine")[0]


def test_an_untouched_checkpoint_is_the_one_that_was_certified(
    certified: tuple[Path, Resolved],
) -> None:
    assert len(asked_today(*certified)) == 1


def test_a_checkpoint_that_was_touched_and_is_equal_is_still_the_same(
    certified: tuple[Path, Resolved],
) -> None:
    os.utime(certified[0] / "model" / "config.json")
    assert len(asked_today(*certified)) == 1


def test_one_flipped_weight_bit_is_another_model(certified: tuple[Path, Resolved]) -> None:
    (weights,) = (certified[0] / "model").glob("*.safetensors")
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert asked_today(*certified) == []


def test_another_rotary_base_is_another_execution_id(certified: tuple[Path, Resolved]) -> None:
    root, then = certified
    path = root / "model" / "config.json"
    config = json.loads(path.read_text())
    config["rms_norm_eps"] = 0.01
    path.write_text(json.dumps(config))
    assert asked_today(root, then) == []
    now = resolve_contract("mine", [root / "configs"], root, lambda _: None)
    assert now.execution_id != then.execution_id
    assert now.digests["checkpoint"] == then.digests["checkpoint"]
