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
from fleet.judge.sets import SetKey, is_good, occasion
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
        if occasion(s, require) == campaign and is_good(s, require)
    ]
    homes = list(dict.fromkeys(s.platform for s in good))
    mine = [s for m in sets.values() for s in m if occasion(s, require) == campaign]
    stopped = any(s.state == "VOID" for s in mine)
    if len(homes) < 2 or len(good) < require.replays or stopped:
        return verdict
    code, text = _cause([platforms[home] for home in homes if home in platforms])
    everyone = [s for members in sets.values() for s in members]
    return replace(
        verdict,
        code=code,
        reason=f"VOID({code}): {text}",
        attempts=attempts(everyone, require, campaign),
    )


def _cause(facts: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Cause code and words: nothing was unobservable where two known values differ."""
    unreadable = sorted({name for f in facts for name, value in f.items() if _unread(value)})
    if unreadable:
        shown = ", ".join(unreadable)
        return "cannot-observe", f"no two attempts share a platform: fact {shown} unreadable"
    names = sorted({name for f in facts for name in f})
    differing = [n for n in names if any(f.get(n) != facts[0].get(n) for f in facts)]
    words = "the replays ran on different platforms"
    if differing:
        words += f": fact {', '.join(_named(n, [f.get(n) for f in facts]) for n in differing)}"
    return "missing-evidence", words


def _named(fact: str, values: Sequence[Any]) -> str:
    """``environment differs (MKL_CBWR '0' or absent)``: absent and "0" are two values."""
    tables = [value for value in values if isinstance(value, dict)]
    if len(tables) < len(values):
        return f"{fact} differs ({' or '.join(sorted({_value(v) for v in values}))})"
    keys = sorted({key for table in tables for key in table})
    odd = [k for k in keys if len({_value(t.get(k)) for t in tables}) > 1]
    shown = (f"{k} {' or '.join(sorted({_value(t.get(k)) for t in tables}))}" for k in odd[:4])
    return f"{fact} differs ({', '.join(shown)})"


def _value(value: Any) -> str:
    return "absent" if value is None else repr(value)


def _unread(value: Any) -> bool:
    return isinstance(value, dict) and "unreadable_in" in value
