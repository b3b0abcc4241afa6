"""The operations that torch dispatched inside one repeated call, and where runs of it part.

Runs may be of one process, where a difference is a race's, or of several that each repeat
themselves. Data and arithmetic only; recording them is a replay's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MOST = 1000
"""Operations of a call that are kept; of a longer one none are."""


@dataclass(frozen=True)
class Operation:
    """One dispatched operation. ``where`` is ``file:line in function: source``; ``hashed``: is
    everything that went in covered by its digest?"""

    name: str
    went_in: bytes | None
    came_out: bytes | None
    where: str
    hashed: bool = True

    def to_json(self) -> dict[str, Any]:
        """JSON-able form, the inverse of :meth:`from_json`."""
        return {
            "name": self.name,
            "in": self.went_in.hex() if self.went_in else None,
            "out": self.came_out.hex() if self.came_out else None,
            "where": self.where,
            "hashed": self.hashed,
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Operation:
        """Read :meth:`to_json`."""
        went_in, came_out = (bytes.fromhex(raw[k]) if raw[k] else None for k in ("in", "out"))
        return cls(raw["name"], went_in, came_out, raw["where"], raw["hashed"])


def first_difference(runs: Sequence[Sequence[Operation]]) -> dict[str, Any] | None:
    """The first operation that is not the same in all runs of one frozen call; None if all agree.

    ``how``: ``output`` (same input, other output), ``input`` (every result before it was the same,
    so the code between chose other inputs) or ``operation`` (another operation ran, or one more:
    ``names`` has all). ``hashed``: went everything into a digest that went in?
    """
    for index, row in enumerate(zip(*runs, strict=False)):
        if len({op.name for op in row}) > 1:
            return _told(index, row, "operation")
        if len({op.went_in for op in row}) > 1:
            return _told(index, row, "input")
        if len({op.came_out for op in row}) > 1:
            return _told(index, row, "output")
    lengths = {len(run) for run in runs}
    if len(lengths) > 1:
        longest = max(runs, key=len)
        return _told(min(lengths), [longest[min(lengths)]], "operation")
    return None


def _told(index: int, row: Sequence[Operation], how: str) -> dict[str, Any]:
    return {
        "index": index,
        "name": row[0].name,
        "names": list(dict.fromkeys(op.name for op in row)),
        "how": how,
        "hashed": all(op.hashed and op.went_in is not None for op in row),
        "unique": len({(op.name, op.went_in, op.came_out) for op in row}),
        "runs": len(row),
        "where": row[0].where,
    }
