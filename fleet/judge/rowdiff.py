"""Two rows of one arm and sample: where do they part first, and which grades does that break.

Keeps law 4: bytes and typed text are compared, never a float, and NULL is never compared (a missing
field is missing evidence, not a difference). After one token differs, later logits differ with good
reason; token t was chosen from logits t, so the first of the two tells kernel from sampler.
Knows no attempt, no count and no verdict.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleet.judge.picturediff import picture_words
from fleet.judge.stages import INPUT_COLUMNS, input_columns

Row = Mapping[str, Any]
"""Columns of :data:`fleet.evidence.records.SCHEMA`."""

TOKENS_OWN = (
    "prompt_ids_sha256",
    "generated_token_ids",
    "generated_token_count",
    "full_sequence_sha256",
    "raw_answer",
)
OUTPUT_OWN = ("raw_answer", "generated_token_count", "full_sequence_sha256")
SETTINGS = ("settings_sha256",)
"""It covers the batch that the row ran in; the batch's number is no setting."""


@dataclass(frozen=True)
class RowDifference:
    """The earliest difference of two rows.

    ``stage``: the earliest stage that differs, *settings* only when no value does. ``step``: where
    inside it (decode step; index of a prompt id; character of a prompt), None for a digest.
    ``broken``: grades whose own fields differ, in the order data flows. ``same_input``: the input
    digests and the settings digest are known and equal, so what differs after them sticks.
    """

    arm: str
    sample_id: str
    position: int
    stage: str
    step: int | None
    words: str
    broken: tuple[str, ...]
    same_input: bool
    settings_differ: bool


def classify(row_a: Row, row_b: Row) -> RowDifference | None:
    """The earliest difference, or None when everything compared is equal."""
    broken = _broken(row_a, row_b)
    settings_differ = any(_differs(row_a, row_b, name) for name in SETTINGS)
    found = _input(row_a, row_b) or _generation(row_a, row_b) or _answer(row_a, row_b)
    if found is None and settings_differ:
        found = ("settings", None, "settings or batch plan differ, every value is equal")
    if found is None:
        return None
    same = all(_equal(row_a, row_b, name) for name in (*input_columns(row_a, row_b), *SETTINGS))
    return RowDifference(
        arm=row_a["arm"],
        sample_id=row_a["sample_id"],
        position=row_a["position"],
        stage=found[0],
        step=found[1],
        words=found[2],
        broken=broken,
        same_input=same,
        settings_differ=settings_differ,
    )


def plain(value: Any) -> Any:
    """Lists as tuples and buffers as bytes; None when the value or any part of it is NULL."""
    if isinstance(value, list | tuple):
        if value and isinstance(value[0], list | tuple):
            value = [plain(item) for item in value]
        return None if None in value else tuple(value)
    return bytes(value) if isinstance(value, bytearray | memoryview) else value


def first_difference(a: Sequence[Any], b: Sequence[Any]) -> int | None:
    """Index of the first differing item; the shorter length when one is a prefix of the other."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return None if len(a) == len(b) else min(len(a), len(b))


def prediction(row: Row) -> tuple[Any, ...] | None:
    """The typed answer: UNPARSED carries the raw answer, so two are equal only byte for byte."""
    unparsed, correct = row.get("unparsed"), row.get("is_correct")
    answer = row.get("raw_answer") if unparsed else row.get("parsed_answer")
    if unparsed is None or correct is None or answer is None:
        return None
    return bool(unparsed), answer, bool(correct)


def _values(row_a: Row, row_b: Row, name: str) -> tuple[Any, Any] | None:
    a, b = plain(row_a.get(name)), plain(row_b.get(name))
    return None if a is None or b is None else (a, b)


def _differs(row_a: Row, row_b: Row, name: str) -> bool:
    if row_a.get(name) == row_b.get(name):
        return False
    pair = _values(row_a, row_b, name)
    return pair is not None and pair[0] != pair[1]


def _equal(row_a: Row, row_b: Row, name: str) -> bool:
    pair = _values(row_a, row_b, name)
    return pair is not None and pair[0] == pair[1]


def _broken(row_a: Row, row_b: Row) -> tuple[str, ...]:
    """Grades whose own fields differ, first in data flow first."""
    a, b = prediction(row_a), prediction(row_b)
    checks = {
        "logits": _differs(row_a, row_b, "step_logits_sha256"),
        "tokens": any(_differs(row_a, row_b, name) for name in TOKENS_OWN),
        "prediction": a is not None and b is not None and a != b,
    }
    return tuple(grade for grade, differs in checks.items() if differs)


_Found = tuple[str, int | None, str]


def _input(row_a: Row, row_b: Row) -> _Found | None:
    stage = next((s for c, s in INPUT_COLUMNS.items() if _differs(row_a, row_b, c)), None)
    if stage is None:
        return None
    if stage in ("raw_record", "prompt"):
        return stage, *_prompt_words(row_a, row_b)
    if stage == "prompt_ids":
        return stage, *_ids_words(row_a, row_b)
    if stage.startswith("image_"):
        return stage, None, picture_words(stage, row_a, row_b)
    return stage, None, "attention masks differ, prompt ids equal"


def _prompt_words(row_a: Row, row_b: Row) -> tuple[int | None, str]:
    pair = _values(row_a, row_b, "prompt_text")
    if pair is None or pair[0] == pair[1]:
        return None, "the digests differ, the rendered prompts are equal"
    a, b = pair
    at = first_difference(a, b)
    hint = ", equal after NFC" if _nfc(a) == _nfc(b) else ""
    return at, f"prompts of {len(a)} and {len(b)} characters differ from character {at}{hint}"


def _nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def _ids_words(row_a: Row, row_b: Row) -> tuple[int | None, str]:
    pair = _values(row_a, row_b, "prompt_ids")
    if pair is None or pair[0] == pair[1]:
        return None, "the digests of the prompt ids differ"
    a, b = pair
    at = first_difference(a, b)
    longer = max(a, b, key=len)
    front = f", one side has id {longer[0]} more at the front"
    hint = front if abs(len(a) - len(b)) == 1 and longer[1:] == min(a, b, key=len) else ""
    return at, f"{len(a)} and {len(b)} ids, first differing at index {at}{hint}"


def _generation(row_a: Row, row_b: Row) -> _Found | None:
    """Logits or sampler, whichever parts first; a tie goes to the logits, which come first."""
    ids = _values(row_a, row_b, "generated_token_ids")
    logits = _values(row_a, row_b, "step_logits_sha256")
    token_at = first_difference(*ids) if ids else None
    common = min(len(logits[0]), len(logits[1])) if logits else 0
    logits_at = first_difference(logits[0][:common], logits[1][:common]) if logits else None
    if logits_at is not None and (token_at is None or logits_at <= token_at):
        return "logits", logits_at, f"logits differ from step {logits_at}"
    if ids is None or token_at is None:
        return _step_count(logits, common)
    prefix = token_at == min(len(ids[0]), len(ids[1]))
    if common < token_at + (0 if prefix else 1):
        return "logits", token_at, f"tokens differ from step {token_at}, its logits are missing"
    return "sampler", token_at, _sampler_words(row_a, row_b, ids, token_at, prefix)


def _step_count(logits: tuple[Any, Any] | None, common: int) -> _Found | None:
    if logits is None or len(logits[0]) == len(logits[1]):
        return None
    counts = f"{len(logits[0])} and {len(logits[1])}"
    return "logits", common, f"logits of {counts} steps, equal where both have them"


def _sampler_words(row_a: Row, row_b: Row, ids: tuple[Any, Any], at: int, prefix: bool) -> str:
    if prefix:
        shorter = min(ids, key=len)
        end = f"ends on id {shorter[-1]}" if shorter else "is empty"
        words = f"stop rule: strict prefix; the shorter {end}"
    else:
        words = f"sampler: logits equal through step {at}, token differs there"
        margins = plain(row_a.get("margin_ulps"))
        if margins is not None and at < len(margins) and margins[at] == 0:
            words += ", exact tie of the two largest"
    rng = ", RNG state at sample start differs" if _differs(row_a, row_b, "rng_sha256") else ""
    return words + rng


def _answer(row_a: Row, row_b: Row) -> _Found | None:
    changed = [name for name in OUTPUT_OWN if _differs(row_a, row_b, name)]
    if changed:
        return "output", None, f"token ids equal, {' and '.join(changed)} differs"
    a, b = prediction(row_a), prediction(row_b)
    if a is not None and b is not None and a != b:
        return "parser", None, f"raw answer equal, parsed {_shown(a)} and {_shown(b)}"
    return None


def _shown(answer: tuple[Any, ...]) -> str:
    unparsed, text, correct = answer
    value = "UNPARSED" if unparsed else repr(text)
    return f"{value} ({'correct' if correct else 'not correct'})"
