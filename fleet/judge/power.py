"""How much a set of equal records can prove (its power), in a form for people and for JSON.

Keeps law 8: a PASS states its power; one distinct output or any non-finite value makes it low. The
verdict stays PASS. Knows no rule of verdicts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fleet.evidence.summary import AttemptSummary
from fleet.judge.shown import readable


def power_of(
    used: Sequence[AttemptSummary], started: int, with_rates: bool
) -> dict[str, Any] | None:
    """Power of the replays that a verdict rests on.

    Args:
        used: good attempts, the first of which is described; non-finite values count in any.
        started: attempts started for them, retries included.
        with_rates: there is a verdict, so shares may be shown.
    """
    if not used or used[0].power is None:
        return None
    power = used[0].power
    nonfinite = max(s.power.nonfinite for s in used if s.power is not None)
    shares = {"share_ended_at_step_1": power.ended_at_step_1 / power.records} if with_rates else {}
    reasons = _low(power.distinct_outputs, nonfinite)
    return (
        {"share_ended_at_step_1": None}
        | asdict(power)
        | {
            "nonfinite": nonfinite,
            "smallest_margin": readable(power.smallest_margin),
            "attempts_started": started,
            "attempts_used": len(used),
            "low": bool(reasons),
            "reasons": reasons,
            "notes": _notes(used[0]),
        }
        | shares
    )


def _low(distinct_outputs: int, nonfinite: int) -> list[str]:
    reasons = []
    if distinct_outputs == 1:
        reasons.append("one distinct output")
    if nonfinite:
        reasons.append(f"{nonfinite} non-finite logits")
    return reasons


def _notes(summary: AttemptSummary) -> list[str]:
    """Facts that narrow the claim without making it low."""
    power = summary.power
    assert power is not None
    notes = []
    if summary.envelope.get("prefill_shapes") == 1:
        notes.append("one distinct input shape")
    if power.distinct_inputs == 1:
        notes.append("one distinct input")
    if power.ended_at_step_1 == power.records:
        notes.append("every record ended at step 1")
    if power.unparsed == power.records:
        notes.append("no answer was parsed")
    return notes
