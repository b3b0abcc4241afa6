"""One measured thing against its target, and how it is shown.

Values are compared with the target by their median; the spread stands beside it. Knows no bench.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Result:
    """``values`` are what was measured, one per run or pair, in ``unit``.

    ``better``: which side of the target is met. ``more``: what a reader may want, for JSON alone.
    """

    name: str
    target: float | None
    values: tuple[float, ...]
    unit: str
    better: Literal["lower", "higher"] = "lower"
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def median(self) -> float:
        """The middle value."""
        return statistics.median(self.values)

    @property
    def met(self) -> bool | None:
        """Is the median on the right side of the target; None when there is no target."""
        if self.target is None:
            return None
        lower = self.better == "lower"
        return self.median <= self.target if lower else self.median >= self.target

    def to_json(self) -> dict[str, Any]:
        """One JSON line."""
        return {
            "bench": self.name,
            "target": self.target,
            "better": self.better,
            "unit": self.unit,
            "median": self.median,
            "least": min(self.values),
            "most": max(self.values),
            "met": self.met,
            "n": len(self.values),
            **self.more,
        }


def figure(value: float) -> str:
    """Three significant digits, thousands in groups."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
