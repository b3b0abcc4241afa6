"""Is there enough sound evidence in a campaign for a PASS, and if not, why not.

Keeps law 1 (not enough evidence is VOID, a word that never means "differs"), law 2 (a VOID attempt
is not retried away; FAILED and LOST are) and law 6 (every replay its own process). Knows nothing of
what the replays agree on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from fleet.contract.model import Require
from fleet.evidence.states import RETRIED, Cause
from fleet.evidence.summary import AttemptSummary
from fleet.judge.sets import in_order, is_good, objection


def shortfall(
    attempts: Sequence[AttemptSummary],
    siblings: Sequence[AttemptSummary],
    require: Require,
    campaign: str,
) -> Cause | None:
    """What a campaign lacks for a PASS, or None when it lacks nothing.

    Args:
        attempts: the whole set that is judged.
        siblings: attempts of the same contract outside the set (no platform known); those of the
            campaign are held against it.
        require: what is asked.
        campaign: the one in question.
    """
    mine = [
        s
        for s in in_order([*attempts, *siblings])
        if s.campaign == campaign and s.purpose == "certify"
    ]
    if not mine:
        return Cause("missing-evidence", "the campaign holds no certification replay")
    checks = (_void(mine), _offered_twice(mine), _not_fresh(attempts, require, campaign))
    unsound = next((cause for cause in checks if cause), None)
    return unsound or _too_few(mine, [s for s in mine if is_good(s, require)], require)


def _void(mine: Sequence[AttemptSummary]) -> Cause | None:
    """One VOID attempt voids its campaign: it is not retried, and not outvoted."""
    for s in mine:
        if s.state == "VOID":
            cause = s.cause or Cause("missing-evidence", "VOID without a cause")
            return Cause(cause.code, f"{_name(s)}: {cause.text}", cause.details)
    return None


def _offered_twice(mine: Sequence[AttemptSummary]) -> Cause | None:
    twice = [attempt for attempt, n in Counter(s.attempt for s in mine).items() if n > 1]
    text = f"attempt {twice[0]} is offered as two replays" if twice else ""
    return Cause("duplicate-attempt", text) if twice else None


def _not_fresh(attempts: Sequence[AttemptSummary], require: Require, campaign: str) -> Cause | None:
    """The later of two replays of one process is not fresh, whichever campaign the first is of."""
    seen: dict[object, AttemptSummary] = {}
    for s in in_order(attempts):
        if not is_good(s, require):
            continue
        first = seen.setdefault(s.process, s)
        if first is not s and s.campaign == campaign:
            return Cause("not-fresh", f"{_name(s)} ran in the process of {_name(first)}")
    return None


def _too_few(
    mine: Sequence[AttemptSummary], good: Sequence[AttemptSummary], require: Require
) -> Cause | None:
    per_unit = Counter(s.unit for s in good)
    most = max(per_unit.values(), default=0)
    if require.scope == "same-unit" and most >= require.replays:
        return None
    if require.scope == "same-class" and len(good) >= require.replays and len(per_unit) > 1:
        return None
    cause = next(_causes(mine, good, require), None)
    if cause is not None:
        return cause
    if require.scope == "same-class" and len(per_unit) == 1:
        return Cause("missing-evidence", "same-class needs replays on two units, all ran on one")
    had = f"{most} on one unit" if require.scope == "same-unit" else str(len(good))
    return Cause("missing-evidence", f"{require.replays} complete replays required, {had}")


def _causes(
    mine: Sequence[AttemptSummary], good: Sequence[AttemptSummary], require: Require
) -> Iterator[Cause]:
    """Causes of slots that no good attempt filled, then of any attempt that is not good."""
    filled = {s.slot for s in good}
    for s in sorted(mine, key=lambda s: s.slot in filled):
        cause = objection(s, require)
        if cause is not None and (s.slot not in filled or s.state not in RETRIED):
            yield Cause(cause.code, f"{_name(s)}: {cause.text}", cause.details)


def _name(summary: AttemptSummary) -> str:
    return f"replay {summary.slot} (attempt {summary.attempt})"
