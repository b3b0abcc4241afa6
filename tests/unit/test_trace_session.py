"""Where a trace hashes: on the device when it can, or else on the host."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fleet.replay import tensor_digests
from fleet.replay.tensor_digests import Shared
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


@pytest.mark.parametrize(
    ("where", "shared", "told"),
    [
        (CUDA, Shared(Stub(CUDA), "device"), "device"),
        (CUDA, Shared(None, "host: no NVRTC"), "host: no NVRTC"),
        (CPU, None, "host"),
    ],
)
def test_a_trace_says_where_it_hashed(
    where: torch.device, shared: Shared | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_digests, "_OPENED", {where: shared} if shared else {})
    digests, said = session._digests(where)
    assert said == told
    assert (digests._on_device is not None) == (told == "device")


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
