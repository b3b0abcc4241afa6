"""Top-8, margin and digest of a row of logits, against slow exact definitions."""

from __future__ import annotations

import math
import struct

import pytest
import torch

from fleet.evidence.digests import tensor_digest
from fleet.replay import tensor_digests
from fleet.replay.engines import logits
from fleet.replay.engines.logits import step_of, steps_of
from fleet.replay.host_digest import host_digest
from fleet.replay.tensor_digests import Shared
from tests.unit.test_device_digest_jobs import CPU, FakeDriver, opened

pytestmark = pytest.mark.torch

DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def by_definition(row: torch.Tensor) -> list[int]:
    values = row.tolist()
    return sorted(range(len(values)), key=lambda i: (-values[i], i))[:8]


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_top_8_are_the_largest_with_ties_by_lower_id(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    for scale in (0.01, 1.0, 30.0):
        for row in (torch.randn(20, 600, generator=generator) * scale).round(decimals=1).to(dtype):
            assert list(step_of(row).top_ids) == by_definition(row)


def test_a_constant_row_lists_the_lowest_ids_and_is_an_exact_tie() -> None:
    step = step_of(torch.full((30,), 2.5, dtype=torch.bfloat16))
    assert step.top_ids == tuple(range(8))
    assert (step.margin_logits, step.margin_ulps) == (0.0, 0)


def test_neighbours_in_the_dtype_are_one_unit_in_the_last_place_apart() -> None:
    for bits in (0x3F80, 0x4200, 0x0001, 0xBF80):
        row = torch.tensor([bits, bits + 1], dtype=torch.int32).to(torch.int16)
        assert step_of(row.view(torch.bfloat16)).margin_ulps == 1


def test_zero_and_minus_zero_are_a_tie_and_keep_their_bits() -> None:
    step = step_of(torch.tensor([0.0, -0.0, -1.0], dtype=torch.float16))
    assert step.top_ids == (0, 1, 2)
    assert step.top_bits == (0x0000, 0x8000, 0xBC00)
    assert step.margin_ulps == 0


def test_the_margin_crosses_zero_without_a_jump() -> None:
    tiny = struct.unpack("<f", struct.pack("<I", 1))[0]
    assert step_of(torch.tensor([tiny, -tiny])).margin_ulps == 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_non_finite_value_counts_and_nan_comes_first(dtype: torch.dtype) -> None:
    row = torch.zeros(40, dtype=dtype)
    row[7], row[20], row[30] = math.nan, math.inf, -math.inf
    step = step_of(row)
    assert step.nonfinite == 3
    assert step.top_ids[:3] == (7, 20, 0)
    assert math.isnan(step.margin_logits)


def test_a_row_of_a_batch_is_digested_as_if_alone() -> None:
    whole = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    strided = torch.stack([whole, whole], dim=1)[:, -1, :]
    steps = steps_of(strided)
    assert [s.logits_sha256 for s in steps] == [
        tensor_digest("float32", (4,), row.numpy().tobytes()) for row in whole
    ]


def test_a_digest_sees_dtype_shape_and_every_bit() -> None:
    row = torch.zeros(4, dtype=torch.bfloat16)
    changed = row.clone()
    changed.view(torch.int16)[3] = 1
    others = [changed, row.to(torch.float16), row.reshape(2, 2), row.reshape(4, 1)]
    assert len({host_digest(row), *map(host_digest, others)}) == 5


@pytest.mark.parametrize("held_bytes", [1, 40, 1 << 20])
def test_steps_are_the_same_however_many_are_held_back(
    held_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logits, "HELD_BYTES", held_bytes)
    whole = torch.randn(5, 2, 30, generator=torch.Generator().manual_seed(2)).to(torch.bfloat16)
    log = logits.StepLog()
    for step in whole:
        reused = step.clone()
        log.add(reused)
        reused.zero_()  # what is in the model's own buffer may change after the call
    for row in range(2):
        assert log.row(row, 4) == tuple(step_of(whole[n, row]) for n in range(4))


def test_a_device_is_asked_once_for_many_steps_and_says_what_the_host_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = torch.randn(40, 3, 30, generator=torch.Generator().manual_seed(3)).to(torch.bfloat16)
    wanted = [step_of(whole[n, 1]) for n in range(40)]
    driver = FakeDriver()
    monkeypatch.setattr(tensor_digests, "_OPENED", {CPU: Shared(opened(driver), "device")})
    log = logits.StepLog()
    for step in whole:
        log.add(step)
    assert driver.launches == []
    assert log.row(1, 40) == tuple(wanted)
    assert [len(jobs) for _, jobs in driver.launches] == [64, 56]
    assert len(driver.waited) == 1


def test_ties_beyond_what_was_looked_at_go_to_the_lower_ids() -> None:
    row = torch.zeros(300, dtype=torch.bfloat16)
    row[[200, 7]] = 1.0
    assert step_of(row).top_ids == (7, 200, 0, 1, 2, 3, 4, 5)
