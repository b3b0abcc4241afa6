"""How fast the replays of one contract were, and which kernels ran: figures, never evidence.

Read from the manifests of complete untraced replays; a hook or another sample set would change the
time. What a manifest does not state is None. Holds no rule: no verdict rests on a figure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, TypeGuard

from fleet.errors import EvidenceError
from fleet.evidence.landing import Landing
from fleet.evidence.manifest import Manifest
from fleet.evidence.summary import AttemptSummary


@dataclass(frozen=True)
class Measured:
    """Medians over the replays; ``peak_bytes`` is the largest. ``source``: certify or screen.

    ``kernels``: class/mode -> quantised modules, as any replay resolved them.
    """

    source: str | None = None
    tokens_per_s: float | None = None
    load_s: float | None = None
    peak_bytes: int | None = None
    kernels: dict[str, int] = field(default_factory=dict)


def measured(landing: Landing, summaries: Sequence[AttemptSummary]) -> Measured:
    """Figures of the certified replays among these, else of the screened ones."""
    for purpose in ("certify", "screen"):
        chosen = [
            s for s in summaries
            if s.purpose == purpose and s.state == "COMPLETE" and not s.traced
        ]  # fmt: skip
        read = [(m, s) for s in chosen if (m := _manifest(landing, s.attempt)) is not None]
        if read:
            return _figures(purpose, read)
    return Measured()


def _manifest(landing: Landing, attempt: str) -> Manifest | None:
    try:
        return Manifest.from_bytes(landing.manifest(attempt).read_bytes())
    except (OSError, EvidenceError):
        return None


def _figures(source: str, read: Sequence[tuple[Manifest, AttemptSummary]]) -> Measured:
    volatile = [manifest.volatile for manifest, _ in read]
    peaks = [v["peak_bytes"] for v in volatile if _is_number(v.get("peak_bytes"))]
    speeds = [_speed(manifest.volatile, summary) for manifest, summary in read]
    kernels: Counter[str] = Counter()
    for manifest, _ in read:
        kernels |= kernel_counts(manifest.census)
    return Measured(
        source,
        _median(speeds),
        _median([_between(v, "prepare_s", "load_s") for v in volatile]),
        int(max(peaks)) if peaks else None,
        dict(sorted(kernels.items())),
    )


def _speed(volatile: Mapping[str, Any], summary: AttemptSummary) -> float | None:
    """Generated tokens by the seconds of generation."""
    seconds = _between(volatile, "load_s", "generate_s")
    if summary.power is None or not seconds:
        return None
    return summary.power.decode_steps / seconds


def _between(volatile: Mapping[str, Any], first: str, second: str) -> float | None:
    """Seconds between two marks, both counted from the replay's beginning."""
    begun, ended = volatile.get(first), volatile.get(second)
    return ended - begun if _is_number(begun) and _is_number(ended) else None


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def kernel_counts(census: Mapping[str, Any]) -> Counter[str]:
    """``class/mode`` of every quantised module -> how many; a kernel without modes by its class."""
    kernels = census.get("kernels") or {}
    return Counter("/".join(filter(None, (k["class"], k["mode"]))) for k in kernels.values())
