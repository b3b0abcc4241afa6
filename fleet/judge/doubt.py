"""What was altered in the landing takes every PASS of its contract, whichever campaign carries it.

Bytes that were changed, dropped or put there by somebody else may have held a difference, and a
difference always sticks (law 3). So beside them nothing PASSes, until they are back as they were or
the attempt is retracted, which takes a signature and is shown. A FAIL stays one. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fleet.evidence.states import Cause
from fleet.evidence.summary import AttemptSummary
from fleet.judge.sets import in_order


def doubt_of(summaries: Sequence[AttemptSummary], chains: Iterable[Cause]) -> Cause | None:
    """Why nothing can be said to PASS, or None.

    Args:
        summaries: every attempt of one execution id.
        chains: what is wrong with chains that name it.
    """
    for s in in_order(summaries):
        if s.cause is not None and s.cause.is_tampering and not s.retracted:
            words = f"slot {s.slot} (attempt {s.attempt}): {s.cause.text}"
            return Cause(s.cause.code, words, s.cause.details)
    return next(iter(chains), None)
