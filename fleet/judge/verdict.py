"""The verdict: what is claimed of one set of replays, with everything that qualifies the claim.

Data only; the rules that make one live beside it. Counts are records. A rate or a bound is None
unless there is a verdict that it belongs to.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal

from fleet.judge import RULE_VERSION

Word = Literal["PASS", "FAIL", "VOID"]


@dataclass(frozen=True)
class Verdict:
    """One verdict; see :meth:`to_json` for its outside form.

    ``verdict`` judges the evidence; ``state`` is what a status shows (STALE, REGRESSED beside a
    FAIL, ...) and equals it until someone who knows the time says otherwise. ``layer`` is None when
    it is not localised, and ``layers`` holds the candidates then. ``code`` is the cause of a VOID.
    ``arms``: arm -> grade -> {verdict, exact, total, rate}; ``exact`` counts a grade's own fields,
    its ``verdict`` includes every lower grade. Metric is one value per arm: all of its records are
    exact, or none. ``accepted_at_s``: newest acceptance in the campaign that a PASS rests on.
    ``culprit`` and ``fault`` are named by a trace only. ``retractions``: every one of an attempt of
    this execution id, those that are ignored too; ``without_retractions``: verdict and reason if
    none of them counted, None where that is the same verdict.
    """

    contract: str
    execution_id: str
    platform: str
    verdict: Word
    required_grade: str
    scope: str
    reason: str
    state: str
    attained_grade: str | None = None
    vary: tuple[str, ...] = ()
    traced: bool = False
    layer: int | None = None
    layers: tuple[int, ...] = ()
    code: str | None = None
    arms: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    records: int = 0
    mismatches: int = 0
    bounds: dict[str, Any] = field(default_factory=lambda: {"record": None, "process": None})
    power: dict[str, Any] | None = None
    envelope: dict[str, Any] = field(default_factory=dict)
    attempts: tuple[dict[str, Any], ...] = ()
    roots: dict[str, list[str]] = field(default_factory=dict)
    first_difference: dict[str, Any] | None = None
    differing_samples: tuple[dict[str, Any], ...] = ()
    first_broken_grade: str | None = None
    stages: dict[str, int] = field(default_factory=dict)
    units: tuple[dict[str, Any], ...] = ()
    warnings: tuple[str, ...] = ()
    campaign: str | None = None
    accepted_at_s: float | None = None
    culprit: dict[str, Any] | None = None
    fault: str | None = None
    retractions: tuple[dict[str, Any], ...] = ()
    without_retractions: dict[str, str] | None = None
    rule_version: int = RULE_VERSION

    def to_json(self) -> dict[str, Any]:
        """JSON-able form; tuples become lists."""
        return {f.name: _listed(getattr(self, f.name)) for f in fields(self)}


def _listed(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_listed(item) for item in value]
    if isinstance(value, dict):
        return {key: _listed(item) for key, item in value.items()}
    return value
