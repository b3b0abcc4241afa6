"""A pair of replays that was meant for one unit and landed on two platforms.

Two attempts are compared inside one platform only. An unreadable fact is unique to its attempt, so
it parts every pair: that is VOID (it could not be observed), and says nothing of reproducibility.
Knows no rule of PASS or FAIL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fleet.contract.model import Require
from fleet.evidence.summary import AttemptSummary
from fleet.judge.account import attempts
from fleet.judge.sets import SetKey, is_good
from fleet.judge.verdict import Verdict


def parted(
    verdict: Verdict,
    sets: Mapping[SetKey, Sequence[AttemptSummary]],
    require: Require,
    campaign: str,
    platforms: Mapping[str, Mapping[str, Any]],
) -> Verdict:
    """``verdict`` with the true cause, when complete replays of a campaign share no platform.

    Args:
        verdict: the VOID of one of the platforms.
        sets: the campaign's sets, one a platform.
        require: what is asked of the evidence.
        campaign: the one in question.
        platforms: platform digest -> its facts; those not given are not named.
    """
    good = [
        s
        for members in sets.values()
        for s in members
        if s.campaign == campaign and is_good(s, require)
    ]
    homes = list(dict.fromkeys(s.platform for s in good))
    stopped = any(s.state == "VOID" for m in sets.values() for s in m if s.campaign == campaign)
    if len(homes) < 2 or len(good) < require.replays or stopped:
        return verdict
    text = _text([platforms[home] for home in homes if home in platforms])
    everyone = [s for members in sets.values() for s in members]
    return replace(
        verdict,
        code="cannot-observe",
        reason=f"VOID(cannot-observe): {text}",
        attempts=attempts(everyone, campaign),
    )


def _text(facts: Sequence[Mapping[str, Any]]) -> str:
    unreadable = sorted({name for f in facts for name, value in f.items() if _unread(value)})
    if unreadable:
        return f"no two attempts share a platform: fact {', '.join(unreadable)} unreadable"
    names = sorted({name for f in facts for name in f})
    differing = [n for n in names if any(f.get(n) != facts[0].get(n) for f in facts)]
    if differing:
        return f"the replays ran on different platforms: fact {', '.join(differing)} differs"
    return "the replays ran on different platforms"


def _unread(value: Any) -> bool:
    return isinstance(value, dict) and "unreadable_in" in value
