"""Digests that a device gives once a step: the same trace as the host's, in the same order."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from fleet.evidence.trace import Call
from fleet.replay.task import Target
from fleet.replay.trace.digesting import TensorDigests
from fleet.replay.trace.late import Sealed, Slot, settled
from fleet.replay.trace.repeat import Repeater
from fleet.replay.trace.tracer import Tracer
from tests.unit.traced_net import Net


class Device:
    """Hashes what it is given at once, as a stream would, and tells nothing before it is asked."""

    def __init__(self) -> None:
        self._host = TensorDigests()
        self._due: list[bytes] = []
        self.launches: list[int] = []
        self.collected = 0

    def enqueue(self, tensors: Sequence[torch.Tensor]) -> range:
        self.launches.append(len(tensors))
        begin = len(self._due)
        self._due += [self.digest(tensor) for tensor in tensors]
        return range(begin, len(self._due))

    def collect(self) -> list[bytes]:
        self.collected += 1
        due, self._due = self._due, []
        return due

    def digest(self, tensor: torch.Tensor) -> bytes:
        digest = self._host.once(tensor)
        assert isinstance(digest, bytes)
        return digest


class OnDevice(TensorDigests):
    """Takes every tensor for one that lies on the device."""

    def of(self, tensor: torch.Tensor) -> Any:
        slot = Slot()
        self._tensors.append(tensor)
        self._slots.append(slot)
        return slot


class InPlace(nn.Module):
    """Writes into its argument and its own buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return x.add_(1)


class Raises(nn.Module):
    """Never returns."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("as planned")


class Outer(nn.Module):
    """Calls one module after the other."""

    def __init__(self, *inner: nn.Module) -> None:
        super().__init__()
        self.inner = nn.ModuleList(inner)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for module in self.inner:
            x = module(x)
        return x


def traced(model: nn.Module, digests: TensorDigests, steps: int = 3) -> list[Call]:
    calls: list[Call] = []
    tracer = Tracer(model, (), calls.append, digests=digests)
    tracer.start_batch("a", 0, ["s"])
    tracer.attach()
    try:
        for step in range(steps):
            model(torch.full((1, 4), float(step), dtype=torch.bfloat16))
    except ValueError:
        pass
    finally:
        tracer.detach()
    assert [row.own_sha256 for row in tracer.module_rows()]
    return calls


MODELS: dict[str, Any] = {
    "a net": Net,
    "in place": lambda: Outer(InPlace(), nn.Identity(), InPlace()),
    "one that raises": lambda: Outer(nn.Identity(), Raises()),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_trace_over_a_device_is_the_hosts_trace(name: str) -> None:
    torch.manual_seed(0)
    host = traced(MODELS[name](), TensorDigests())
    torch.manual_seed(0)
    device = Device()
    assert traced(MODELS[name](), OnDevice(device)) == host
    assert host
    # one wait a step and one at the end, however many calls there were
    assert device.collected <= 5
    assert len(device.launches) <= 2 * len(host) + 2


def test_a_call_is_repeated_over_a_device_as_over_the_host() -> None:
    class Racy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + random.SystemRandom().getrandbits(20)

    def repeated(digests: TensorDigests) -> dict[str, Any]:
        model = Outer(nn.Identity(), Racy())
        tracer = Tracer(model, (), lambda call: None, digests=digests)
        repeater = Repeater(tracer, [Target("a", 0, 0, "inner.1", 0)], 20, zoom=True)
        tracer.start_batch("a", 0, ["s"])
        tracer.attach()
        repeater.attach()
        model(torch.ones(1, 4))
        repeater.detach()
        tracer.detach()
        (found,) = repeater.results
        return dict(found)

    host, device = repeated(TensorDigests()), repeated(OnDevice(Device()))
    assert host["in_sha256"] == device["in_sha256"]
    assert device["unique"] > 10
    assert (device["trouble"], device["first"]) == (host["trouble"], device["first"])
    assert device["zoom"]["name"] == host["zoom"]["name"]


def test_what_is_made_of_a_digest_waits_for_it() -> None:
    slot = Slot()
    one = Sealed([b"a", slot])
    with pytest.raises(RuntimeError, match="before the device was asked"):
        settled(one)
    slot.digest = b"d" * 32
    assert settled(one) == Sealed([b"a", b"d" * 32]).value()
    assert settled(None) is None


@pytest.mark.parametrize(
    "other, equal",
    [([b"a", b"d" * 32], True), ([b"a" + b"d" * 32], False), ([b"a", b"e" * 32], False)],
)
def test_equal_tokens_are_equal_digests(other: list[bytes], equal: bool) -> None:
    slot = Slot()
    slot.digest = b"d" * 32
    one, two = Sealed([b"a", slot]), Sealed(other)
    assert (one == two) is equal
    assert (one.value() == two.value()) is equal
    assert (hash(one) == hash(two)) is equal
    assert one != b"d" * 32
