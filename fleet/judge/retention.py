"""Which attempts may lose their rows while every verdict stays derivable.

A verdict is made of summaries, and of rows only where attempts differ or where one that is no good
evidence is held against one that is. So rows may go of an old COMPLETE replay whose like keeps its
own: same set, same unit, equal in all that a summary holds, in a newer campaign. They stay of every
attempt of a contract in which anything differs, of every reference that a comparison needs, and of
the newest campaign that is whole. Pure; knows no file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict

from fleet.contract.canonical import canonical_json
from fleet.contract.model import Require
from fleet.evidence.summary import AttemptSummary
from fleet.judge.sets import groups, in_order, is_good, required_pairs

FEWEST = 2
"""Replays that a campaign must have kept to stand for an older one."""


def prunable(summaries: Iterable[AttemptSummary], before_s: float) -> dict[str, str]:
    """Attempt whose rows may go -> the attempt that shows the same and keeps its own.

    Args:
        summaries: every attempt that the store knows.
        before_s: only attempts that were accepted before this time.
    """
    by_contract: dict[str, list[AttemptSummary]] = {}
    for summary in summaries:
        by_contract.setdefault(summary.execution_id, []).append(summary)
    found: dict[str, str] = {}
    for attempts in by_contract.values():
        sets = list(groups(attempts).values())
        if not any(_differs(members) for members in sets):
            for members in sets:
                found |= _of_set(members, before_s)
    return found


def _of_set(members: Sequence[AttemptSummary], before_s: float) -> dict[str, str]:
    require = _require(members)
    good = [s for s in in_order(members) if is_good(s, require)]
    newest = _newest_whole(members, good)
    likes = {_shown(s): s.attempt for s in good if s.campaign == newest and not s.pruned}
    compared = {attempt for pair in required_pairs(members, require) for attempt in pair}
    return {
        s.attempt: likes[_shown(s)]
        for s in good
        if s.campaign != newest and not s.pruned and s.attempt not in compared
        and s.accepted_at_s is not None and s.accepted_at_s < before_s and _shown(s) in likes
    }  # fmt: skip


def _require(members: Sequence[AttemptSummary]) -> Require:
    """The highest grade that such replays can have; every lower one asks for less."""
    return Require(grade="modules" if any(s.trace for s in members) else "logits")


def _newest_whole(members: Sequence[AttemptSummary], good: Sequence[AttemptSummary]) -> str | None:
    """The last campaign whose replays are all good evidence, each with its rows."""
    ids = {s.attempt for s in good}
    for campaign in reversed(list(dict.fromkeys(s.campaign for s in good))):
        mine = [s for s in members if s.campaign == campaign and s.purpose == "certify"]
        whole = all(s.attempt in ids and not s.pruned for s in mine)
        if whole and len(mine) >= FEWEST:
            return campaign
    return None


def _differs(members: Sequence[AttemptSummary]) -> bool:
    """Do COMPLETE attempts differ in anything that could count?"""
    complete = [s for s in members if s.state == "COMPLETE" and s.purpose == "certify"]
    return len({_result(s) for s in complete}) > 1


def _result(summary: AttemptSummary) -> bytes:
    arms = {name: asdict(arm) for name, arm in summary.arms.items()}
    weights = {k: v for k, v in summary.stages.items() if not k.startswith("effective")}
    return canonical_json({"roots": summary.roots, "arms": arms, "weights": weights})


def _shown(summary: AttemptSummary) -> bytes:
    """All that is compared between replays, and where: equal here is equal in every row."""
    return canonical_json(
        {
            "unit": summary.unit,
            "result": _result(summary).hex(),
            "stages": summary.stages,
            "varied": sorted(summary.varied),
            "envelope": summary.envelope,
        }
    )
