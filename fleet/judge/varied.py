"""What a difference between varied replays depends on, where a counterfactual shows it.

Replays that took the contract's own values are the counterfactual: equalise what was varied, and
the difference disappears. Then it is no race, as far as those replays can tell, and the verdict
says what it depends on. In every other case it says that this is undecided. Decides no verdict: a
FAIL stays one. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fleet.contract.canonical import canonical_json
from fleet.contract.model import Require
from fleet.evidence.summary import AttemptSummary
from fleet.judge.findings import Comparisons, Findings
from fleet.judge.sets import groups, pairs_needed, required_pairs
from fleet.judge.stages import INPUT_COLUMNS
from fleet.judge.verdict import Verdict

SHAPE_OR_ORDER = "shape-dependent or order-dependent, repeatable"
"""Other batches run in another order too, unless a set of varied order agrees."""

DEPENDS: Mapping[str, tuple[str, str]] = {
    "batch": ("shape-dependent, repeatable", "with the contract's own batch"),
    "cache": ("depends on the key-value cache", "with the contract's own use_cache"),
    "kernel_cache": (
        "depends on what the kernels were compiled to",
        "with the contract's own kernel_cache",
    ),
    "load": ("depends on the load of the machine", "without neighbours"),
    "memory": ("depends on what memory held before", "with memory left alone"),
    "order": ("depends on the order of the samples", "in the contract's own order"),
    "threads": (
        "depends on the number of threads",
        "with the contract's own number of threads",
    ),
}
"""Varied name -> what a difference is called, and what those that agree have in common."""


def pairs_for_counterfactual(
    verdict: Verdict, summaries: Sequence[AttemptSummary], require: Require
) -> list[tuple[str, str]]:
    """Attempts to compare row by row before :func:`with_counterfactual` is asked; none unless it is
    about a FAIL of varied replays."""
    if verdict.verdict != "FAIL" or not verdict.vary:
        return []
    sets = _sets(verdict, summaries)
    exact, ordered = (sets.get(vary, []) for vary in ((), ("order",)))
    others = required_pairs(exact, require) + required_pairs(ordered, require)
    return [*others, *pairs_needed(sets[verdict.vary], require)]


def with_counterfactual(
    verdict: Verdict,
    summaries: Sequence[AttemptSummary],
    require: Require,
    comparisons: Comparisons,
) -> Verdict:
    """The verdict, with what the difference depends on or that this is undecided.

    Args:
        verdict: any; only a FAIL of varied replays is changed.
        summaries: every attempt of the contract on the verdict's platform, exact repeats included.
        require: what is asked of the evidence.
        comparisons: at least those of :func:`pairs_for_counterfactual`.
    """
    if verdict.verdict != "FAIL" or not verdict.vary:
        return verdict
    sets = {
        vary: Findings(members, require, comparisons)
        for vary, members in _sets(verdict, summaries).items()
    }
    nothing = Findings((), require, {})
    exact, varied = sets.get((), nothing), sets[verdict.vary]
    called = " or ".join(_called(name, sets.get(("order",), nothing)) for name in verdict.vary)
    own = " and ".join(DEPENDS[name][1] for name in verdict.vary)
    agreeing = _agreeing(exact, varied)
    if agreeing:
        words = f"{called}: all {agreeing} replays {own} agree"
    else:
        words = f"undecided: {called}, or a race"
        if not exact.good:
            words += " (no exact repeats to compare with: certify with --vary none)"
    return replace(verdict, reason=f"{verdict.reason}; {words}")


def _called(name: str, ordered: Findings) -> str:
    """What a difference is called; ``ordered``: the contract's set of varied order."""
    cleared = {s.is_reference for s in ordered.good} == {True, False} and not ordered.fails
    return SHAPE_OR_ORDER if name == "batch" and not cleared else DEPENDS[name][0]


def _sets(
    verdict: Verdict, summaries: Sequence[AttemptSummary]
) -> dict[tuple[str, ...], list[AttemptSummary]]:
    """What is varied -> replays of the verdict's contract, platform and trace mode."""
    return {
        key.vary: members
        for key, members in groups(summaries).items()
        if (key.platform, key.traced) == (verdict.platform, verdict.traced)
        and key.execution_id == verdict.execution_id
    }


def _agreeing(exact: Findings, varied: Findings) -> int:
    """Replays with the contract's own values when all of them are one, and nothing but the varied
    values tells the others from them; else 0."""
    references = [s for s in varied.good if s.is_reference]
    own = [*exact.good, *references]
    roots = {s.roots[exact.require.grade] for s in own}
    one = bool(exact.good and references) and len(roots) == 1 and not exact.fails
    return len(own) if one and not _otherwise(varied) else 0


def _otherwise(varied: Findings) -> bool:
    """Could something else than the varied values be behind the difference: weights, inputs,
    settings, or two replays that took the same values and differ?"""
    if varied.moved_digests or varied.moved_inputs or varied.settings_differ:
        return True
    if varied.first_stage is None or varied.first_stage in INPUT_COLUMNS.values():
        return True
    by_values: dict[bytes, set[str]] = {}
    for s in varied.good:
        by_values.setdefault(_values(s), set()).add(s.roots[varied.require.grade])
    unequal = any(len(roots) > 1 for roots in by_values.values())
    return unequal or any(_values(c.a) == _values(c.b) for c in varied.counting)


def _values(summary: AttemptSummary) -> bytes:
    return canonical_json(summary.varied)
