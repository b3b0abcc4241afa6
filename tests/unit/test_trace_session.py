"""Where a trace hashes: on the host, or on the device when asked to and when it can."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fleet.errors import DeviceDigestsUnavailable
from fleet.replay.gpu.digests import device
from fleet.replay.trace import session
from fleet.replay.trace.digesting import TensorDigests

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")


class Stub:
    """Stands for the device's kernels, and remembers what it was given."""

    def __init__(self, where: torch.device) -> None:
        self.given: list[Any] = []

    def digest(self, tensor: Any) -> bytes:
        self.given.append(tensor)
        return b"d" * 32

    def enqueue(self, tensors: list[Any]) -> range:
        self.given += tensors
        return range(len(tensors))

    def collect(self) -> list[bytes]:
        return [b"e" * 32]


def refuse(where: torch.device) -> None:
    raise DeviceDigestsUnavailable("no NVRTC")


@pytest.mark.parametrize(
    ("asked", "where", "made", "told"),
    [
        ("1", CUDA, Stub, "device"),
        ("1", CUDA, refuse, "host: no NVRTC"),
        ("1", CPU, refuse, "host"),
        ("0", CUDA, refuse, "host"),
        ("", CUDA, refuse, "host"),
    ],
)
def test_a_trace_says_where_it_hashed(
    asked: str, where: torch.device, made: Any, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(session.ON_DEVICE, asked)
    monkeypatch.setattr(device, "DeviceDigests", made)
    assert session._digests(where)[1] == told


def test_what_lies_on_the_device_is_hashed_there_and_nothing_else() -> None:
    stub = Stub(CUDA)
    digests = TensorDigests(stub)
    there: Any = SimpleNamespace(is_cuda=True)
    assert digests.once(there) == b"d" * 32
    place: Any = digests.of(there)
    digests.settle()
    assert place.digest == b"e" * 32
    here = torch.arange(3)
    assert digests.of(here) == digests.once(here) == TensorDigests().of(here)
    assert stub.given == [there, there]
