"""What a person is shown of one differing row: both tokens, the largest logits there, the margin.

Diagnosis only: nothing here decides a verdict. Bits stay bits; they are decoded to numbers for
reading when the dtype is known. Law 10: where the contested pair is not among the recorded logits
of both sides, whether its order changes is "unknown".
"""

from __future__ import annotations

import math
import struct
from typing import Any

from fleet.judge.rowdiff import Row, RowDifference, first_difference, plain
from fleet.judge.stages import BY_NAME

EXCERPT_CHARACTERS = 40
_FORMATS = {"bfloat16": ("<I", "<f", 16), "float16": ("<H", "<e", 0), "float32": ("<I", "<f", 0)}


def show(row_a: Row, row_b: Row, difference: RowDifference, dtype: str | None) -> dict[str, Any]:
    """A JSON-able account of where two rows part."""
    ids = plain(row_a.get("generated_token_ids")), plain(row_b.get("generated_token_ids"))
    token_step = first_difference(*ids) if None not in ids else None
    decoding = difference.stage in ("logits", "sampler", "sample")
    at = difference.step if difference.stage in ("logits", "sampler") else token_step
    place = at if at is not None else token_step
    return {
        "sample_id": difference.sample_id,
        "arm": difference.arm,
        "position": difference.position,
        "stage": difference.stage,
        "layers": list(BY_NAME[difference.stage].layers),
        "words": difference.words,
        "broken": list(difference.broken),
        "step": difference.step,
        "token_step": token_step,
        "tokens": [_item(i, place) for i in ids] if place is not None else None,
        "a": _side(row_a, place, dtype) if place is not None else None,
        "b": _side(row_b, place, dtype) if place is not None else None,
        "contested": _contested(row_a, row_b, ids, token_step, place) if decoding else None,
        "excerpts": _excerpts(row_a, row_b, difference),
    }


def decode(bits: int, dtype: str | None) -> float | str | None:
    """The number that raw logit bits stand for; text for NaN and infinities, None if unknown."""
    if dtype not in _FORMATS:
        return None
    raw, number, shift = _FORMATS[dtype]
    mask = 0xFFFF if raw == "<H" or shift else 0xFFFFFFFF
    (value,) = struct.unpack(number, struct.pack(raw, (bits & mask) << shift))
    return readable(float(value))


def readable(value: float | None) -> float | str | None:
    """JSON has no NaN and no infinity: those become text."""
    if value is None or math.isfinite(value):
        return value
    return str(value)


def _item(values: Any, at: int | None) -> Any:
    known = values is not None and at is not None and at < len(values)
    return values[at] if known else None


def _side(row: Row, at: int, dtype: str | None) -> dict[str, Any]:
    bits = _item(plain(row.get("top_bits")), at)
    return {
        "token": _item(plain(row.get("generated_token_ids")), at),
        "top_ids": list(_item(plain(row.get("top_ids")), at) or ()),
        "top_bits": list(bits or ()),
        "top_values": [decode(b, dtype) for b in bits or ()] if dtype in _FORMATS else None,
        "margin_logits": readable(_item(plain(row.get("margin_logits")), at)),
        "margin_ulps": _item(plain(row.get("margin_ulps")), at),
    }


def _contested(
    row_a: Row, row_b: Row, ids: tuple[Any, Any], token_step: int | None, place: int | None
) -> dict[str, Any] | None:
    """The two tokens in question, and their order in A and in B.

    Where tokens differ it is those two; where only logits do, A's two largest.
    """
    at = token_step if token_step is not None else place
    if at is None:
        return None
    if token_step is not None:
        pair = [_item(i, at) for i in ids]
    else:
        pair = list((_item(plain(row_a.get("top_ids")), at) or ())[:2])
    order_a, order_b = _order(row_a, at, pair), _order(row_b, at, pair)
    known = "unknown" not in (order_a, order_b)
    changes: bool | str = order_a != order_b if known else "unknown"
    return {
        "step": at,
        "tokens": pair,
        "order_a": order_a,
        "order_b": order_b,
        "changes_sign": changes,
    }


def _order(row: Row, at: int, pair: list[Any]) -> str:
    """``>``, ``<`` or ``=`` between the logits of two ids, by the recorded rank and raw bits."""
    top = _item(plain(row.get("top_ids")), at)
    bits = _item(plain(row.get("top_bits")), at)
    if top is None or bits is None or len(pair) != 2 or any(i not in top for i in pair):
        return "unknown"
    first, second = (top.index(i) for i in pair)
    if bits[first] == bits[second]:
        return "="
    return ">" if first < second else "<"


def _excerpts(row_a: Row, row_b: Row, difference: RowDifference) -> list[Any] | None:
    """A few characters or ids of both prompts from shortly before they part."""
    column = {"raw_record": "prompt_text", "prompt": "prompt_text", "prompt_ids": "prompt_ids"}
    name = column.get(difference.stage)
    if name is None or difference.step is None:
        return None
    begin = max(0, difference.step - EXCERPT_CHARACTERS // 2)
    return [_slice(row.get(name), begin) for row in (row_a, row_b)]


def _slice(value: Any, begin: int) -> Any:
    part = value[begin : begin + EXCERPT_CHARACTERS]
    return part if isinstance(part, str) else [int(i) for i in part]
