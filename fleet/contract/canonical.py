"""Canonical JSON and the digest text form, the one encoding that every identity is hashed from.

Knows nothing of contracts or tensors. Keeps: equal values have equal bytes, unequal types differ
(``1`` and ``1.0`` and ``true`` are three values), and no NaN can enter an identity.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

PREFIX = "sha256:"


def canonical_json(value: Any) -> bytes:
    """UTF-8 JSON with sorted keys and no spaces.

    Raises:
        ValueError: on NaN or an infinity.
        TypeError: on a value JSON has no type for, or a key that is not a string.
    """
    _require_string_keys(value)
    return _ENCODER.encode(value).encode("utf-8")


_ENCODER = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
)


_NESTING = (dict, list, tuple)


def _require_string_keys(value: Any) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"canonical JSON keys are strings, got {key!r}")
            if isinstance(item, _NESTING):
                _require_string_keys(item)
    elif isinstance(value, list | tuple):
        for item in value:
            if isinstance(item, _NESTING):
                _require_string_keys(item)


def sha256(data: bytes | memoryview) -> bytes:
    """32 bytes."""
    return hashlib.sha256(data).digest()


def digest_json(value: Any) -> bytes:
    """SHA-256 of the canonical JSON of ``value``; 32 bytes."""
    return sha256(canonical_json(value))


def to_text(digest: bytes) -> str:
    """``sha256:<hex>``, the form digests take in JSON, TOML and on screens."""
    if len(digest) != 32:
        raise ValueError(f"a digest has 32 bytes, got {len(digest)}")
    return PREFIX + digest.hex()


def from_text(text: str) -> bytes:
    """The inverse of :func:`to_text`.

    Raises:
        ValueError: when ``text`` is not ``sha256:`` and 64 hexadecimal digits.
    """
    if not text.startswith(PREFIX) or len(text) != len(PREFIX) + 64:
        raise ValueError(f"expected sha256:<64 hex digits>, got {text!r}")
    return bytes.fromhex(text[len(PREFIX) :])
