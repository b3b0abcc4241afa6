"""Digests over digests that are not there yet.

A device digests tensors in the order of its stream and is asked for the results once a step; until
then a tensor's digest is a :class:`Slot`. What is made of tokens is a :class:`Sealed`, hashed when
it is asked for, which on the host can be at once. Knows no tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

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


Token = bytes | Slot


class Sealed:
    """SHA-256 over tokens, each behind its length; made once, and not before somebody asks. Two are
    equal when their tokens are, which takes no hashing.

    Args:
        tokens: taken over, not copied.
    """

    __slots__ = ("_there", "_tokens", "_value")

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tokens
        self._there: list[bytes] | None = None
        self._value: bytes | None = None

    def value(self) -> bytes:
        """The digest; see :meth:`Slot.value`."""
        if self._value is None:
            self._value = sha256(length_prefixed(self.tokens()))
        return self._value

    def tokens(self) -> list[bytes]:
        """What it is over; see :meth:`Slot.value`."""
        if self._there is None:
            self._there = [t if isinstance(t, bytes) else t.value() for t in self._tokens]
        return self._there

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Sealed) and self.tokens() == other.tokens()

    def __hash__(self) -> int:
        return hash(self.value())


Part = Sealed | None
"""None: there was nothing to hash."""


def settled(part: Part) -> bytes | None:
    """The digest itself; see :meth:`Slot.value`."""
    return None if part is None else part.value()
