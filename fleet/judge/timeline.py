"""How a set came to stand where it stands: its state after each campaign, by today's rules.

Nothing is remembered: every state is derived again from the evidence up to then (law 2), so that a
history is as true after a rebuild. A difference never goes away, so a set becomes a FAIL once.
Knows no store and no time of day.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fleet.contract.model import Require
from fleet.evidence.states import Cause
from fleet.evidence.summary import AttemptSummary
from fleet.judge import rules
from fleet.judge.findings import Comparisons
from fleet.judge.present import DAY_S
from fleet.judge.sets import in_order, is_good, occasion
from fleet.judge.verdict import Word


@dataclass(frozen=True)
class Step:
    """One campaign's effect on one set.

    ``before`` and ``after``: the verdict over all evidence up to it, without and with it; None
    when there was none. ``own``: what its own evidence suffices for, in words. ``roots``: of its
    good replays at the required grade; ``new_roots``: those that no earlier one of the set had.
    ``at_s``: when its last attempt was accepted. ``events``: what it changed, in words.
    """

    campaign: str
    at_s: float | None
    before: Word | None
    after: Word | None
    own: str
    roots: tuple[str, ...]
    new_roots: tuple[str, ...]
    events: tuple[str, ...]
    attempts: tuple[AttemptSummary, ...]


def steps(
    members: Sequence[AttemptSummary],
    require: Require,
    comparisons: Comparisons,
    controls_failed_in: Mapping[str, Sequence[str]],
    siblings: Sequence[AttemptSummary] = (),
    doubt: Cause | None = None,
) -> list[Step]:
    """Every campaign of a set, in the order of evidence.

    Args:
        members: every attempt of one set.
        require: what is asked of the evidence.
        comparisons: those of :func:`fleet.judge.rules.pairs_needed`.
        controls_failed_in: controls that did not behave, by campaign.
        siblings: attempts of the same contract whose platform is unknown.
        doubt: what was altered of the contract; then nothing ever passed.
    """
    ordered = in_order(members)
    failing = rules.first_failing(ordered, require, comparisons)
    own = rules.outcomes(
        ordered, require, siblings, controls_failed_in=controls_failed_in, doubt=doubt
    )
    found: list[Step] = []
    valid_until: float | None = None
    for name in rules.campaigns_of(ordered, require):
        mine = tuple(s for s in ordered if occasion(s, require) == name)
        step = _step(name, mine, require, own.get(name), name == failing, found, valid_until)
        if own.get(name) is not None and own[name].word == "PASS" and step.at_s is not None:
            valid_until = max(valid_until or 0.0, step.at_s + require.valid_days * DAY_S)
        found.append(step)
    return found


def _step(
    name: str,
    mine: tuple[AttemptSummary, ...],
    require: Require,
    own: rules.Outcome | None,
    fails_now: bool,
    earlier: Sequence[Step],
    valid_until: float | None,
) -> Step:
    before = earlier[-1].after if earlier else None
    seen = {root for step in earlier for root in step.roots}
    roots = tuple(dict.fromkeys(s.roots[require.grade] for s in mine if is_good(s, require)))
    new_roots = tuple(root for root in roots if root not in seen) if seen else ()
    times = [s.accepted_at_s for s in mine if s.accepted_at_s is not None]
    at_s = max(times, default=None)
    passed = any(step.after == "PASS" for step in earlier)
    after = _after(before, own, fails_now)
    told = _events(before, after, own, passed, new_roots, at_s, valid_until)
    words = "no certification replay" if own is None else _own_words(own)
    return Step(name, at_s, before, after, words, roots, new_roots, tuple(told), mine)


def _after(before: Word | None, own: rules.Outcome | None, fails_now: bool) -> Word | None:
    if fails_now or before == "FAIL":
        return "FAIL"
    if own is None:
        return before
    return "PASS" if "PASS" in (before, own.word) else own.word


def _own_words(own: rules.Outcome) -> str:
    return own.word if own.word == "PASS" else f"{own.word}({own.code}): {own.text}"


def _events(
    before: Word | None,
    after: Word | None,
    own: rules.Outcome | None,
    passed: bool,
    new_roots: Sequence[str],
    at_s: float | None,
    valid_until: float | None,
) -> Iterator[str]:
    """In the words of a status; nothing is said of what did not change."""
    if after == "FAIL" and before != "FAIL":
        yield "REGRESSED" if passed else "FAIL, never passed before"
    if after == "PASS" and not passed:
        yield "first PASS"
    renewed = own is not None and own.word == "PASS" and before == "PASS"
    if renewed and at_s is not None and valid_until is not None and at_s > valid_until:
        yield "PASS again, after it was STALE"
    if own is not None and own.word == "VOID" and after == "PASS":
        yield f"VOID({own.code}); the earlier PASS stands"
    if new_roots:
        yield f"{len(new_roots)} new root{'s' if len(new_roots) > 1 else ''}"
