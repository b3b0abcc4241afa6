"""What retractions did to a verdict: shown beside it, with the verdict that there was without them.

Law 3: withdrawing evidence takes a signed record with a reason, and the verdict shows it. So a FAIL
whose evidence was withdrawn is still told of. Which records count was settled before. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from fleet.evidence.summary import AttemptSummary
from fleet.judge.verdict import Verdict


def restored(summaries: Iterable[AttemptSummary]) -> list[AttemptSummary]:
    """The same attempts as if nothing had ever been retracted; what is as it was is no copy."""
    return [replace(s, withdrawals=()) if s.withdrawals else s for s in summaries]


def any_retracted(summaries: Iterable[AttemptSummary]) -> bool:
    """Does a retraction of one of them count?"""
    return any(s.retracted for s in summaries)


def with_withdrawn(verdict: Verdict, without: Verdict) -> Verdict:
    """The verdict, with the one that there would be if no retraction counted, where it is another
    one."""
    if without.verdict == verdict.verdict:
        return verdict
    before = {"verdict": without.verdict, "reason": without.reason}
    return replace(verdict, without_retractions=before)


def with_retractions(verdict: Verdict, summaries: Sequence[AttemptSummary]) -> Verdict:
    """The verdict, with every retraction of its execution id, on whatever platform.

    Args:
        verdict: any.
        summaries: every attempt of the execution id.
    """
    told = tuple(
        each.to_json() | {"words": each.in_words()}
        for s in summaries
        if s.execution_id == verdict.execution_id
        for each in s.withdrawals
    )
    return replace(verdict, retractions=told)


def retraction_lines(verdict: Verdict) -> list[str]:
    """For a person: each retraction, then what it changed."""
    lines = [each["words"] for each in verdict.retractions]
    before = verdict.without_retractions
    if before is not None:
        lines.append(f"with what was retracted it would be {before['verdict']}: {before['reason']}")
    return lines
