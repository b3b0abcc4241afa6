"""Counts over all calls: SAME or DIFF in, SAME or DIFF out, and what nobody can tell.

SAME->SAME, SAME->DIFF (a candidate), DIFF->DIFF (a carrier), DIFF->SAME (healed), UNKNOWN (nothing
hashable went in: never SAME) and UNALIGNED (not every replay made the call). Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from fleet.evidence.trace import Call, Trace

Key = tuple[str, int, int, str, int]
WORDS = ("SAME->SAME", "SAME->DIFF", "DIFF->DIFF", "DIFF->SAME", "UNKNOWN", "UNALIGNED")


def key_of(call: Call) -> Key:
    """What makes calls of two replays one call."""
    return call.arm, call.batch, call.step, call.path, call.occurrence


class Aligned:
    """Calls of several traces: per replay by key and by where they began."""

    def __init__(self, traces: Sequence[Trace]) -> None:
        self.by_key: list[dict[Key, Call]] = [{key_of(c): c for c in t.calls} for t in traces]
        self.begun: list[dict[Place, Call]] = [{place_of(c): c for c in t.calls} for t in traces]
        self.keys: tuple[Key, ...] = tuple(dict.fromkeys(k for d in self.by_key for k in d))

    def row(self, key: Key) -> list[Call] | None:
        """The call in every replay, None unless all made it."""
        found = [calls.get(key) for calls in self.by_key]
        return None if any(c is None for c in found) else [c for c in found if c is not None]

    def word(self, key: Key) -> str:
        """One of :data:`WORDS`."""
        row = self.row(key)
        if row is None:
            return "UNALIGNED"
        if any(c.in_sha256 is None for c in row):
            return "UNKNOWN"
        came_in = "SAME" if len({c.in_sha256 for c in row}) == 1 else "DIFF"
        came_out = "SAME" if len({c.out_sha256 for c in row}) == 1 else "DIFF"
        return f"{came_in}->{came_out}"

    def counts(self) -> dict[str, int]:
        """Word -> calls."""
        found = Counter(self.word(key) for key in self.keys)
        return {word: found[word] for word in WORDS}

    def candidates(self) -> list[Call]:
        """Innermost SAME->DIFF calls, in the order they began, as the first replay saw them."""
        chosen = [row[0] for key in self.keys if self.word(key) == "SAME->DIFF"
                  and (row := self.row(key))]  # fmt: skip
        outer = {place_of(around) for c in chosen for around in ancestors(c, self.begun[0])}
        inner = [c for c in chosen if place_of(c) not in outer]
        return sorted(inner, key=place_of)


Place = tuple[str, int, int, int]


def place_of(call: Call) -> Place:
    """Where a call began."""
    return call.arm, call.batch, call.step, call.begin


def ancestors(call: Call, begun: Mapping[Place, Call]) -> list[Call]:
    """The calls around ``call``, innermost first."""
    found: list[Call] = []
    above = begun.get((call.arm, call.batch, call.step, call.parent))
    while above is not None:
        found.append(above)
        above = begun.get((above.arm, above.batch, above.step, above.parent))
    return found


def coverage(trace: Trace) -> dict[str, object]:
    """What was hooked, what fired, and what could not be hashed, in one replay."""
    expected = [m.path for m in trace.modules.values() if m.expected]
    silent = [path for path in expected if not trace.modules[path].fired]
    return {
        "hooked": len(trace.modules),
        "expected": len(expected),
        "fired": len(expected) - len(silent),
        "silent": silent,
        "calls": len(trace.calls),
        "unknown": sum(1 for c in trace.calls if c.in_sha256 is None),
        "partly_unhashed": sum(1 for c in trace.calls if c.unhashed),
        "never_returned": sum(1 for c in trace.calls if c.end < 0),
    }
