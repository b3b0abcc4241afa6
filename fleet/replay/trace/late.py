"""Digests that are not there yet.

A device digests tensors in the order of its stream and is asked for the results once a step; until
then a tensor's digest is a :class:`Slot`, and whatever is made of one is a :class:`Late`. On the
host every digest is there at once and none of this is ever made. Knows no tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fleet.contract.canonical import sha256
from fleet.evidence.records import length_prefixed


class Slot:
    """The digest of one tensor, once the device has said it."""

    __slots__ = ("digest",)

    def __init__(self) -> None:
        self.digest: bytes | None = None

    def value(self) -> bytes:
        """The digest.

        Raises:
            RuntimeError: the device has not been asked for it yet.
        """
        if self.digest is None:
            raise RuntimeError("a digest was read before the device was asked for it")
        return self.digest


class Late:
    """Something made of digests, of which some are not there yet; made once."""

    __slots__ = ("_made", "_make", "_value")

    def __init__(self, make: Callable[[], bytes | None]) -> None:
        self._make, self._made = make, False
        self._value: bytes | None = None

    def value(self) -> bytes | None:
        """Make it: everything must have been settled."""
        if not self._made:
            self._value, self._made = self._make(), True
        return self._value


Token = bytes | Slot
Digest = bytes | Late
"""A digest that is there, or one that will be."""


def settled(part: Digest | None) -> bytes | None:
    """The digest itself.

    Raises:
        RuntimeError: the device has not been asked for it yet.
    """
    return part.value() if isinstance(part, Late) else part


def sealed(tokens: Sequence[Token]) -> Digest:
    """SHA-256 over the tokens, each behind its length, now or when all of them are there."""
    kept = list(tokens)

    def make() -> bytes:
        return sha256(length_prefixed([t.value() if isinstance(t, Slot) else t for t in kept]))

    return Late(make) if any(isinstance(token, Slot) for token in kept) else make()


def late(make: Callable[..., bytes | None], *parts: Any) -> Digest | None:
    """``make`` of the parts, now or when all are there; a part may be a tuple of digests."""
    flat = [each for part in parts for each in (part if isinstance(part, tuple) else (part,))]
    if any(isinstance(each, Late) for each in flat):
        return Late(lambda: make(*(_settled(part) for part in parts)))
    return make(*parts)


def _settled(part: Any) -> Any:
    return tuple(settled(each) for each in part) if isinstance(part, tuple) else settled(part)
