"""Tensor digests of this process: on the device that holds the tensor, or else on the host.

A device has one set of kernels per process, opened and proven when a tensor of it is first asked
for, and several users, who each collect what they asked for and nothing else. Where it cannot be
had, or fails later, the host digests, and :func:`where` says why. Both give the same 32 bytes, so
nothing that is compared depends on which it was. Knows no module and no verdict.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import islice
from typing import Protocol

import torch

from fleet.errors import DeviceDigestsUnavailable
from fleet.replay.host_digest import host_digest

ON_DEVICE = "FLEET_DEVICE_DIGESTS"
"""Set to 0, the host digests everything."""


class Kernels(Protocol):
    """Whatever digests a device's tensors there."""

    def enqueue(self, tensors: Sequence[torch.Tensor]) -> Sequence[int]:
        """Digest these as they are at this point of the stream; returns at once."""

    def collect(self) -> list[bytes]:
        """Wait; the digests of all that was enqueued since the last call, in that order."""

    def digest(self, tensor: torch.Tensor) -> bytes:
        """One tensor, and wait for it; leaves what was enqueued to be collected."""


class Shared:
    """One device's kernels and who is owed which of their digests. Once they failed, some digests
    may be lost, so from then on they are refused to everybody.

    Args:
        kernels: the device's; used inside ``with`` alone, which sees them fail.
        words: what :func:`where` says.
    """

    def __init__(self, kernels: Kernels | None, words: str) -> None:
        self.kernels, self.words = kernels, words
        self._owed: list[tuple[Share, int]] = []

    def __enter__(self) -> Kernels:
        """The kernels.

        Raises:
            DeviceDigestsUnavailable: they failed before.
        """
        if self.kernels is None:
            raise DeviceDigestsUnavailable(self.words)
        return self.kernels

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if isinstance(error, DeviceDigestsUnavailable):
            self.kernels, self.words = None, f"host: {error}"

    def owe(self, share: Share, count: int) -> None:
        """The next digests are this share's."""
        self._owed.append((share, count))

    def deliver(self) -> None:
        """Wait, and give everybody what is theirs."""
        owed, self._owed = self._owed, []
        with self as kernels:
            found = kernels.collect()
            if len(found) != sum(count for _, count in owed):
                raise DeviceDigestsUnavailable("the device owes another number of digests")
        each = iter(found)
        for share, count in owed:
            share.made += islice(each, count)


class Share:
    """One user's part of a device's digests, with the interface of the device's own."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._num_asked = 0
        self.made: list[bytes] = []

    def enqueue(self, tensors: Sequence[torch.Tensor]) -> range:
        """Digest these as they will be at this point of the current stream; returns at once.

        Returns:
            Their places in what the next :meth:`collect` returns.

        Raises:
            ValueError: the device cannot digest one of them; none of them is.
            DeviceDigestsUnavailable: the device failed.
        """
        with self._shared as kernels:
            kernels.enqueue(tensors)
        self._shared.owe(self, len(tensors))
        begin, self._num_asked = self._num_asked, self._num_asked + len(tensors)
        return range(begin, self._num_asked)

    def collect(self) -> list[bytes]:
        """Wait for all that this share asked for since the last call; its digests, in that order.

        Raises:
            DeviceDigestsUnavailable: the device failed.
        """
        self._shared.deliver()
        made, self.made, self._num_asked = self.made, [], 0
        return made

    def digest(self, tensor: torch.Tensor) -> bytes:
        """One tensor, and wait for it. What was enqueued before stays to be collected."""
        with self._shared as kernels:
            return kernels.digest(tensor)


_OPENED: dict[torch.device, Shared] = {}


def share_of(device: torch.device) -> Share | None:
    """A new share in the digests of this device; None where the host digests its tensors."""
    if device.type == "cuda" and device not in _OPENED:
        _OPENED[device] = _open(device)
    shared = _OPENED.get(device)
    return None if shared is None or shared.kernels is None else Share(shared)


def _open(device: torch.device) -> Shared:
    if os.environ.get(ON_DEVICE) == "0":
        return Shared(None, f"host: {ON_DEVICE}=0")
    from fleet.replay.gpu.digests.device import DeviceDigests

    try:
        return Shared(DeviceDigests(device), "device")
    except DeviceDigestsUnavailable as error:
        return Shared(None, f"host: {error}")


def where() -> str:
    """Where tensors were digested so far: ``device``, ``host``, or ``host:`` and why."""
    return ", ".join(sorted({shared.words for shared in _OPENED.values()})) or "host"


def digest_each(tensors: Sequence[torch.Tensor]) -> list[bytes]:
    """The tensor digest of each, where it lies; 32 bytes. A device is waited for once."""
    found: list[bytes | None] = [None] * len(tensors)
    for device in {tensor.device for tensor in tensors}:
        places = [i for i, tensor in enumerate(tensors) if tensor.device == device]
        made = _on_device(device, [tensors[i] for i in places])
        for place, one in zip(places, made, strict=True):
            found[place] = one
    return [one or host_digest(tensor) for one, tensor in zip(found, tensors, strict=True)]


def _on_device(device: torch.device, tensors: Sequence[torch.Tensor]) -> list[bytes | None]:
    """None where the host has to."""
    share = share_of(device)
    if share is None:
        return [None] * len(tensors)
    try:
        taken = _asked(share, tensors)
        made = iter(share.collect())
    except DeviceDigestsUnavailable:
        return [None] * len(tensors)
    return [next(made) if one else None for one in taken]


def _asked(share: Share, tensors: Sequence[torch.Tensor]) -> list[bool]:
    """Which of them the device takes. One by one where some are copied first, so that each copy
    dies before the next."""
    if all(tensor.is_contiguous() for tensor in tensors):
        try:
            share.enqueue(tensors)
        except ValueError:
            pass
        else:
            return [True] * len(tensors)
    return [_takes(share, tensor) for tensor in tensors]


def _takes(share: Share, tensor: torch.Tensor) -> bool:
    """Not one without bytes of its own, nor one whose copy finds no room."""
    try:
        share.enqueue([tensor])
    except (ValueError, torch.OutOfMemoryError):
        return False
    return True
