"""The whole answer as it stands, without the white space around it.

This file is one parser: its bytes are its identity.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def parse(raw: str, record: Mapping[str, Any]) -> str | None:
    """The text, or None when nothing but white space was said."""
    return raw.strip() or None


def is_correct(parsed: str, record: Mapping[str, Any]) -> bool:
    """Equal to the gold answer, letter for letter."""
    return parsed == str(record["answer"]).strip()
