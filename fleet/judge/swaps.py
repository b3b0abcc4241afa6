"""Outputs that changed places: two requests that received each other's results.

A swap is a fault of the protocol, not of a kernel, so it is told apart before a stage is named.
Knows no count and no verdict.
"""

from __future__ import annotations

from typing import Any

from fleet.judge.rowdiff import Row, RowDifference, plain
from fleet.judge.stages import input_columns

Held = tuple[Row, Row, RowDifference]


def swapped(held: list[Held]) -> dict[tuple[str, str], str]:
    """(arm, sample) -> the sample that it changed places with.

    A's whole output of i (token ids, logits, text) is B's of j, B's of i is A's of j, and the two
    prompts differ: with equal prompts an exchange proves nothing.
    """
    able = [item for item in held if _movable(item)]
    by_output: dict[tuple[Any, ...], list[Held]] = {}
    for item in able:
        by_output.setdefault(_key(item[2].arm, item[0], item[1]), []).append(item)
    partners: dict[tuple[str, str], str] = {}
    for row_a, row_b, difference in able:
        for other in by_output.get(_key(difference.arm, row_b, row_a), []):
            if plain(other[0]["prompt_ids_sha256"]) != plain(row_a["prompt_ids_sha256"]):
                partners.setdefault((difference.arm, difference.sample_id), other[2].sample_id)
    return partners


def _movable(item: Held) -> bool:
    """Equal known inputs and different known outputs."""
    row_a, row_b, _ = item
    names = input_columns(row_a, row_b)
    inputs = [(plain(row_a.get(name)), plain(row_b.get(name))) for name in names]
    out_a, out_b = _output(row_a), _output(row_b)
    known = None not in (*out_a, *out_b)
    return known and out_a != out_b and all(a is not None and a == b for a, b in inputs)


def _key(arm: str, first: Row, second: Row) -> tuple[Any, ...]:
    return arm, *_output(first), *_output(second)


def _output(row: Row) -> tuple[Any, ...]:
    names = ("generated_token_ids", "step_logits_sha256", "raw_answer")
    return tuple(plain(row.get(name)) for name in names)
