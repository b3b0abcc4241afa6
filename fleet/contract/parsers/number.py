"""The first number of an answer, as plain decimal text.

Keeps a minus that belongs to the number, drops "$", commas between thousands and a trailing dot:
``$1,234.50.`` -> ``1234.50``, ``-$5`` -> ``-5``, ``1990-95`` -> ``1990``. Digits inside words
(``H2O``) are no number. Exponents and words (``seven``) are not read.

This file is one parser: its bytes are its identity.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

_NUMBER = re.compile(
    r"(?<![\w.,])(?P<minus>[-\u2212]?)(?:\$(?P<inner>[-\u2212]?))?"
    r"(?P<digits>[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
)


def parse(raw: str, record: Mapping[str, Any]) -> str | None:
    """The number's text, or None."""
    match = _NUMBER.search(raw)
    if match is None:
        return None
    sign = "-" if match["minus"] or match["inner"] else ""
    return sign + match["digits"].replace(",", "")


def is_correct(parsed: str, record: Mapping[str, Any]) -> bool:
    """Exactly equal as decimal numbers: 12 and 12.0 are one number, 12.01 is another."""
    gold = parse(str(record["answer"]), record)
    return gold is not None and Decimal(parsed) == Decimal(gold)
