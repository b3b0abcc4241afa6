"""Who digests what lies where, and that everybody gets the digests of their own tensors.

The device is the one of ``test_device_digest_jobs``: the real queue over the host's memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fleet.errors import DeviceDigestsUnavailable
from fleet.evidence.digests import tensor_digest
from fleet.replay import tensor_digests
from fleet.replay.engines import weights
from fleet.replay.engines.logits import steps_of
from fleet.replay.gpu.digests import device
from fleet.replay.gpu.digests.device import DeviceDigests
from fleet.replay.host_digest import host_digest
from fleet.replay.tensor_digests import Share, Shared, digest_each, share_of, where
from tests.unit.host_kernels import COMPILER, HostDriver, compiled
from tests.unit.test_device_digest_jobs import CPU, FakeDriver, numbered, opened

pytestmark = pytest.mark.torch


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """The CPU as a device that digests."""
    driver = FakeDriver()
    monkeypatch.setattr(tensor_digests, "_OPENED", {CPU: Shared(opened(driver), "device")})
    return driver


def share() -> Share:
    found = share_of(CPU)
    assert found is not None
    return found


def test_the_host_digests_what_lies_on_it() -> None:
    assert share_of(CPU) is None
    tensors = numbered(3)
    assert digest_each(tensors) == [host_digest(tensor) for tensor in tensors]
    assert digest_each([]) == []
    assert where() == "host"


def test_all_tensors_of_a_device_cost_one_wait(fake: FakeDriver) -> None:
    tensors = numbered(70)
    assert digest_each(tensors) == [host_digest(tensor) for tensor in tensors]
    assert [len(jobs) for _, jobs in fake.launches] == [64, 6]
    assert len(fake.waited) == 1
    assert where() == "device"


def test_nobody_gets_the_digest_of_what_another_asked_for(fake: FakeDriver) -> None:
    one, other = share(), share()
    tensors = numbered(9)
    wanted = [host_digest(tensor) for tensor in tensors]
    assert one.enqueue(tensors[:2]) == range(0, 2)
    assert other.enqueue(tensors[2:3]) == range(0, 1)
    assert one.enqueue(tensors[3:4]) == range(2, 3)
    assert digest_each(tensors[4:7]) == wanted[4:7]
    assert other.digest(tensors[7]) == wanted[7]
    assert other.enqueue(tensors[8:]) == range(1, 2)
    assert one.collect() == [*wanted[:2], wanted[3]]
    assert other.collect() == [wanted[2], wanted[8]]
    assert one.collect() == other.collect() == []
    assert one.enqueue(tensors[:1]) == range(0, 1)


def test_what_a_device_cannot_digest_the_host_does(fake: FakeDriver) -> None:
    packed = torch.zeros(4, dtype=torch.uint8).view(torch.uint4)
    with pytest.raises(ValueError, match="no bytes of its own"):
        share().enqueue([packed])
    turned = torch.arange(12).reshape(3, 4).t()
    plain = numbered(2)
    taken = tensor_digests._asked(share(), [plain[0], packed, turned, plain[1]])
    assert taken == [True, False, True, True]
    share().collect()
    tensors = [plain[0], turned, plain[1]]
    assert digest_each(tensors) == [host_digest(tensor) for tensor in tensors]


def test_the_host_takes_the_place_of_one_tensor_among_others(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = numbered(3)
    content = device._content

    def refuse(dtype: torch.dtype, shape: torch.Size) -> Any:
        if shape == (41,):
            raise ValueError("as planned")
        return content(dtype, shape)

    monkeypatch.setattr(device, "_content", refuse)
    tensors.insert(1, torch.zeros(41))
    assert digest_each(tensors) == [host_digest(tensor) for tensor in tensors]
    assert sum(len(jobs) for _, jobs in fake.launches) == 3
    assert where() == "device"


def test_a_device_that_fails_is_never_asked_again(fake: FakeDriver) -> None:
    pending = share()
    tensors = numbered(3)
    pending.enqueue(tensors)
    fake.refuses = {"launch"}
    assert digest_each(tensors) == [host_digest(tensor) for tensor in tensors]
    assert where() == "host: cuLaunchKernel: CUDA error 719"
    fake.refuses = set()
    assert share_of(CPU) is None
    for use in (
        pending.collect,
        lambda: pending.enqueue(tensors),
        lambda: pending.digest(tensors[0]),
    ):
        with pytest.raises(DeviceDigestsUnavailable, match="719"):
            use()


def test_a_digest_that_nobody_asked_for_ends_all_use_of_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernels = opened(FakeDriver())
    monkeypatch.setattr(tensor_digests, "_OPENED", {CPU: Shared(kernels, "device")})
    tensors = numbered(3)
    kernels.enqueue(tensors[:1])
    assert digest_each(tensors) == [host_digest(tensor) for tensor in tensors]
    assert where() == "host: the device owes another number of digests"


@pytest.mark.parametrize(
    ("asked", "reason", "told"),
    [
        ("", None, "device"),
        ("1", None, "device"),
        ("1", "no NVRTC", "host: no NVRTC"),
        ("0", None, "host: FLEET_DEVICE_DIGESTS=0"),
    ],
)
def test_a_device_is_opened_once_and_the_reason_told(
    asked: str, reason: str | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def make(where: torch.device) -> Any:
        made.append(where)
        if reason is not None:
            raise DeviceDigestsUnavailable(reason)
        return opened(FakeDriver())

    monkeypatch.setattr(tensor_digests, "_OPENED", {})
    monkeypatch.setattr(device, "DeviceDigests", make)
    monkeypatch.setenv(tensor_digests.ON_DEVICE, asked)
    cuda = torch.device("cuda", 0)
    found = [share_of(cuda) for _ in range(3)]
    assert [one is not None for one in found] == [told == "device"] * 3
    assert where() == told
    assert made == [cuda] * (asked != "0")


def test_weights_are_digested_where_they_lie_and_tied_ones_once(fake: FakeDriver) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    tensors = weights.tensors_of(model)
    assert weights.digests_of(tensors) == {name: host_digest(t) for name, t in tensors.items()}
    assert [len(jobs) for _, jobs in fake.launches] == [3]
    assert len(fake.waited) == 1


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler here")
def test_weights_and_logits_have_the_hosts_digests_by_the_kernels_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = weights.tensors_of(nn.Sequential(nn.Linear(300, 70), nn.Embedding(9, 5).bfloat16()))
    rows = torch.randn(5, 1000, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    wanted = weights.digests_of(tensors), steps_of(rows)
    kernels = DeviceDigests(CPU, HostDriver(compiled(tmp_path)))
    monkeypatch.setattr(tensor_digests, "_OPENED", {CPU: Shared(kernels, "device")})
    assert (weights.digests_of(tensors), steps_of(rows)) == wanted
    assert where() == "device"


def test_the_host_reads_values_in_their_order_whatever_the_strides() -> None:
    z = torch.randn(3, 4, dtype=torch.complex64)
    odd = torch.zeros(8, dtype=torch.bfloat16).as_strided((1, 1), (7, 3))
    for tensor in (z.conj(), z.t(), z.imag, z[:, 1:3], z[:0], z[1, 1], odd):
        plain = tensor.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
        data = plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
        name = str(tensor.dtype).removeprefix("torch.")
        assert host_digest(tensor) == tensor_digest(name, tensor.shape, data)
