"""Which platform a platform succeeds: the one that its units showed just before.

A driver or a library is updated, and the unit shows another platform. What was a FAIL before is no
verdict about the new one, and no reason to forget it. Pure: knows what units showed and when, and
no verdict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple


class Shown(NamedTuple):
    """A unit began to show a platform (a class key) that it had not shown just before."""

    unit: str
    platform: str
    at_s: float


def predecessors(shown: Iterable[Shown]) -> dict[str, tuple[str, ...]]:
    """Platform -> those that its units showed just before they showed it last.

    Of most units first; a platform that came first on all of its units has none.

    Args:
        shown: in any order; platforms that are no one's but one attempt's left out.
    """
    runs: dict[str, list[str]] = {}
    for change in sorted(shown, key=lambda c: (c.unit, c.at_s)):
        own = runs.setdefault(change.unit, [])
        if not own or own[-1] != change.platform:
            own.append(change.platform)
    votes: dict[str, Counter[str]] = {}
    for own in runs.values():
        newest = dict(zip(own[1:], own[:-1], strict=True))  # a later run of one replaces an earlier
        for platform, before in newest.items():
            votes.setdefault(platform, Counter())[before] += 1
    return {
        platform: tuple(sorted(found, key=lambda name: (-found[name], name)))
        for platform, found in votes.items()
    }
