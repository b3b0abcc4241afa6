"""Whether a decode step had a key-value cache, told by what the model was given."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from fleet.replay.engines.cached_steps import CachedSteps


def given(width: int, cache: object = None) -> dict[str, Any]:
    return {"input_ids": SimpleNamespace(shape=(2, width)), "past_key_values": cache}


def counted(*batches: list[dict[str, Any]]) -> tuple[int, int, int]:
    """Cached, uncached, unclear."""
    steps = CachedSteps()
    for batch in batches:
        steps.begin()
        for forward in batch:
            steps.add(forward)
    found = steps.counts()
    return found["cached"], found["uncached"], found["unclear"]


def test_one_new_token_beside_a_cache_is_cached_and_all_of_them_without_one_are_not() -> None:
    cache = object()
    assert counted([given(5, cache), given(1, cache), given(1, cache)]) == (2, 0, 0)
    assert counted([given(5), given(6), given(7)], [given(2), given(3)]) == (0, 3, 0)
    assert counted([given(1), given(2)]) == (0, 1, 0)


def test_a_cache_under_either_name_of_it_is_one() -> None:
    newer = [{"input_ids": SimpleNamespace(shape=(1, n)), "cache": object()} for n in (5, 1)]
    third = [{"input_ids": SimpleNamespace(shape=(1, n)), "kv": object()} for n in (5, 1)]
    assert (counted(newer), counted(third)) == ((1, 0, 0), (0, 0, 1))


def test_a_prefill_tells_nothing() -> None:
    assert counted() == counted([given(5)], [given(6)], [given(1, object())]) == (0, 0, 0)


def test_whatever_fits_neither_is_unclear() -> None:
    cache = object()
    assert counted([given(5), given(1)]) == (0, 0, 1)
    assert counted([given(5, cache), given(6, cache)]) == (0, 0, 1)
    assert counted([given(5), given(7)]) == (0, 0, 1)
    assert counted([given(5), given(5)]) == (0, 0, 1)
    assert counted([{"inputs_embeds": 1}, given(1, cache)]) == (0, 0, 1)
    assert counted([{}, {}]) == (0, 0, 1)
