"""Which decode steps of a model ran with a key-value cache: seen in what the model was given.

A step after the first has one new token where a cache holds the others, and all of them again where
none does. Knows no contract: what was asked for is not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CACHED, UNCACHED, UNCLEAR = "cached", "uncached", "unclear"

HANDED_AS = ("past_key_values", "cache")
"""What transformers calls the cache that it hands to a model: 5.17 the one, 5.24 the other. A third
name makes steps unclear."""


class CachedSteps:
    """Counts the forward passes of one model after the first of each batch."""

    def __init__(self) -> None:
        self._counts = {CACHED: 0, UNCACHED: 0, UNCLEAR: 0}
        self._prompt = 0
        self._forwards = 0

    def begin(self) -> None:
        """A batch begins: the next forward pass is its prefill."""
        self._forwards = 0

    def add(self, given: Mapping[str, Any]) -> None:
        """Take in one forward pass by its keyword arguments."""
        ids, has_cache = given.get("input_ids"), any(given.get(n) is not None for n in HANDED_AS)
        width = 0 if ids is None else int(ids.shape[1])
        if self._forwards == 0:
            self._prompt = width
        else:
            self._counts[self._kind(width, has_cache)] += 1
        self._forwards += 1

    def _kind(self, width: int, has_cache: bool) -> str:
        """A prompt of no tokens that could be seen makes no step clear."""
        if self._prompt and has_cache and width == 1:
            return CACHED
        whole = width == self._prompt + self._forwards
        return UNCACHED if self._prompt and whole and not has_cache else UNCLEAR

    def counts(self) -> dict[str, int]:
        """Steps so far, by kind."""
        return dict(self._counts)
