"""A whole replay of a checkpoint whose files somebody touches while they are loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleet.replay import determinism
from fleet.replay.engines.transformers import TransformersEngine
from fleet.schedule.certify import run_request
from tests.campaigns import CONTRACT, FakeLauncher, planned_in, write_configs, write_contract

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("settings_in_force")]

SYNTHETIC = 'checkpoint = "demo:synthetic"\nengine = "synthetic"\ndtype = "float32"\n'
OURS = 'checkpoint = "path:../../checkpoint"\nengine = "transformers"\ndtype = "bfloat16"\n'


@pytest.fixture
def folder(demo: Callable[[str], Path]) -> Path:
    return demo("tiny-llama-bf16")


def test_weights_touched_while_they_are_loaded_void_the_replay(
    edited: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_configs(tmp_path / "configs")
    write_contract(tmp_path / "configs", "toy", CONTRACT.replace(SYNTHETIC, OURS))
    request, planned, places = planned_in(
        tmp_path, purpose="replay", samples=("s1",), arms=("current",)
    )
    loads: list[int] = []

    class Touched(TransformersEngine):
        def _load_model(self) -> Any:
            loads.append(1)
            if len(loads) == 2:
                (edited / "model.safetensors").touch()
            return super()._load_model()

    monkeypatch.setattr("fleet.replay.engines.transformers.TransformersEngine", Touched)
    # the one setting that this process cannot take on: it had to be there when Python started
    monkeypatch.setattr(determinism, "_variable_at_start", lambda _: "0")
    _, ends = run_request(request, planned, places, FakeLauncher(), lambda _: None)
    assert [end.state for end in ends] == ["COMPLETE", "VOID"]
    assert ends[1].cause is not None and ends[1].cause.code == "pinned-content-changed"
    assert "weight files, touched while they were loaded" in ends[1].cause.text
