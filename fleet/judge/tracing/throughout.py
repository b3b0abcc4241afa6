"""What it means that a certification replay was traced throughout: its PASS and its FAIL.

A PASS at the grade *modules* is one of the execution that was watched. A FAIL names its culprit
from the failing replays' own calls; what later replays prove of the same module is added to it, and
nothing else of them, since a race need not come back in the same place. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fleet.evidence.summary import AttemptSummary
from fleet.judge.tracing.culprit import Localisation
from fleet.judge.verdict import Verdict


def proven_by(own: Localisation, later: Localisation | None) -> Localisation:
    """The failing replays' own localisation, with the proof that repeating that call gave."""
    mine, theirs = own.culprit, later.culprit if later else None
    if mine is None or theirs is None or mine.path != theirs.path or not theirs.repeats:
        return own
    proof = replace(
        mine, kind=theirs.kind, words=theirs.words, unique=theirs.unique, repeats=theirs.repeats,
        bound=theirs.bound, zoom=theirs.zoom,
    )  # fmt: skip
    return replace(own, culprit=proof)


def with_execution(verdict: Verdict, summaries: Sequence[AttemptSummary]) -> Verdict:
    """A PASS of traced replays says so, unless an untraced replay showed the same logits."""
    if verdict.verdict != "PASS" or not verdict.traced:
        return verdict
    roots = set(verdict.roots.get("logits", ()))
    same = any(
        s.state == "COMPLETE" and not s.traced and not s.retracted
        and s.platform == verdict.platform and s.purpose == "certify" and not s.vary
        and s.roots.get("logits") in roots
        for s in summaries
    )  # fmt: skip
    words = "an untraced replay has the same logits root" if same else "traced execution"
    return replace(verdict, reason=f"{verdict.reason}; {words}")
