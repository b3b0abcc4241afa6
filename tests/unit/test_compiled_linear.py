"""A linear that is compiled: its file decides its bits, and only the fault's file differs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from fleet.errors import AttemptFailed
from fleet.replay import compiled_linear
from fleet.replay.compiled_linear import CompiledLinear, RecompiledLinear
from fleet.replay.host_digest import host_digest
from tests.unit.test_inject import frozen

pytestmark = pytest.mark.torch


def output(
    monkeypatch: pytest.MonkeyPatch, kind: type[RecompiledLinear], folder: Path
) -> tuple[torch.Tensor, nn.Linear]:
    """Of the same linear and input, as a fresh process computes it with that folder."""
    compiled_linear.compiled.cache_clear()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(folder))
    linear, x = frozen(torch.bfloat16)
    return kind(linear)(x), linear


def test_the_fault_repeats_its_bits_from_one_folder_and_not_from_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, again, other = (
        host_digest(output(monkeypatch, CompiledLinear, tmp_path / name)[0]) for name in "aab"
    )
    assert one == again != other
    files = [[p.name for p in (tmp_path / name).iterdir()] for name in "ab"]
    assert files[0] == files[1]
    assert len(files[0]) == 1


def test_the_twin_gives_the_same_bits_from_every_folder_and_they_are_a_product(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, linear = output(monkeypatch, RecompiledLinear, tmp_path / "a")
    other, _ = output(monkeypatch, RecompiledLinear, tmp_path / "b")
    assert host_digest(one) == host_digest(other)
    exact = linear(frozen(torch.bfloat16)[1])
    assert (one.shape, one.dtype) == (exact.shape, exact.dtype)
    assert (one - exact).abs().max() < 0.05 * exact.abs().max()


def test_what_the_compiler_says_is_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_linear, "_SOURCE", "no C")
    with pytest.raises(AttemptFailed, match=r"load-error: cc: .*error"):
        output(monkeypatch, RecompiledLinear, tmp_path)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(AttemptFailed, match="cc, a C compiler, is not there"):
        output(monkeypatch, RecompiledLinear, tmp_path)
