"""The option letter that a multiple-choice answer names.

Takes the first capital letter A-J that stands alone and is one of the record's ``options`` (A-J
when it has none): ``B``, ``B.``, ``(B)``, ``**B**``, ``The answer is B``. Conservative, because a
wrong reading looks like an answer and a missing one is seen:

- ``A dog`` and ``I think`` are words: A and I followed by a word count only after "answer",
  "option", "choice" or "letter".
- two different options joined by "or", "and", "/", "&" or a comma are no answer: ``A or B`` is
  None.
- small letters and letters inside words or hyphenated (``B-flat``, ``A's``) never count.

This file is one parser: its bytes are its identity.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

LETTERS = "ABCDEFGHIJ"
_ALONE = re.compile(r"(?<![\w'\u2019-])([A-J])(?![\w'\u2019-])")
_JOINED = re.compile(r"[)\].*\s]*(?:\bor\b|\band\b|/|&|,)[(\[*\s]*([A-J])(?![\w'\u2019-])")
_WORD_FOLLOWS = re.compile(r"[ \t]+[^\W\d_]")
_CUE = re.compile(r"(?:answer|option|choice|letter)(?:\s+is)?\s*:?\s*$", re.IGNORECASE)


def parse(raw: str, record: Mapping[str, Any]) -> str | None:
    """The letter, or None."""
    options = record.get("options") or LETTERS
    for match in _ALONE.finditer(raw):
        letter = match[1]
        if letter not in options:
            continue
        joined = _JOINED.match(raw, match.end())
        if joined and joined[1] in options and joined[1] != letter:
            return None
        if letter in "AI" and _is_word(raw, match):
            continue
        return letter
    return None


def _is_word(raw: str, match: re.Match[str]) -> bool:
    """Whether the letter is an article or a pronoun rather than an option."""
    return bool(_WORD_FOLLOWS.match(raw, match.end())) and not _CUE.search(raw[: match.start()])


def is_correct(parsed: str, record: Mapping[str, Any]) -> bool:
    """Equal to the gold letter."""
    return parsed == str(record["answer"]).strip()
