"""Which attempts belong together, which of them are evidence, and which need a row comparison.

A set shares execution id, platform, vary and trace mode; nothing is compared across sets. Good
evidence is a COMPLETE, accepted certification replay that lacks nothing; agreement from any other
attempt never helps, and its rows still count when they differ. Pure functions of summaries, in an
order that depends on evidence alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from fleet.contract.model import GRADES, Require
from fleet.evidence.states import Cause
from fleet.evidence.summary import STAGE_COLUMNS, AttemptSummary
from fleet.judge.stages import INPUT_COLUMNS

FOREIGN: frozenset[str] = frozenset(
    {"evidence-altered", "weights-not-of-checkpoint", "pinned-content-changed"}
)
"""Causes after which rows are not what this contract's process wrote: never compared."""

MAX_CLASS_PAIRS = 16
"""Roots already settle that complete replays differ; more pairs than this only show it again."""


class SetKey(NamedTuple):
    """What a verdict is about."""

    execution_id: str
    platform: str
    vary: tuple[str, ...]
    traced: bool


def set_key(summary: AttemptSummary) -> SetKey:
    """The set that an attempt says it belongs to."""
    return SetKey(summary.execution_id, summary.platform, summary.vary, summary.traced)


def groups(summaries: Iterable[AttemptSummary]) -> dict[SetKey, list[AttemptSummary]]:
    """Sets of attempts, each in evidence order.

    An attempt that died before it could state its platform (``""``) joins the one platform that
    its campaign showed: on its unit or its boot when either is known, anywhere otherwise. Where
    that is none or several, it stays alone.
    """
    known = list(summaries)
    found: dict[SetKey, list[AttemptSummary]] = {}
    for summary in in_order(known):
        placed = summary if summary.platform else _placed(summary, known)
        found.setdefault(set_key(placed), []).append(placed)
    return found


def _placed(summary: AttemptSummary, known: Sequence[AttemptSummary]) -> AttemptSummary:
    homes = {
        (other.platform, other.traced)
        for other in known
        if other.platform
        and (other.campaign, other.execution_id, other.vary)
        == (summary.campaign, summary.execution_id, summary.vary)
        and _same_host(summary, other)
    }
    if len(homes) != 1:
        return summary
    platform, traced = homes.pop()
    return replace(summary, platform=platform, traced=traced)


def _same_host(unknown: AttemptSummary, other: AttemptSummary) -> bool:
    if unknown.unit:
        return unknown.unit == other.unit
    if unknown.process and other.process:
        return unknown.process.boot_id == other.process.boot_id
    return True


def in_order(summaries: Sequence[AttemptSummary]) -> list[AttemptSummary]:
    """Campaigns by their first acceptance, then slot, acceptance, attempt id."""
    begun: dict[str, float] = {}
    for s in summaries:
        at_s = float("inf") if s.accepted_at_s is None else s.accepted_at_s
        begun[s.campaign] = min(at_s, begun.get(s.campaign, float("inf")))

    def place(s: AttemptSummary) -> tuple[float, str, int, float, str]:
        at_s = float("inf") if s.accepted_at_s is None else s.accepted_at_s
        return begun[s.campaign], s.campaign, s.slot, at_s, s.attempt

    return sorted(summaries, key=place)


def occasion(summary: AttemptSummary, require: Require) -> str:
    """Whose evidence must suffice together: a campaign's, or for a claim about several units that
    of a night, which gives each unit a campaign, and controls, of its own."""
    several = require.scope == "same-class"
    return summary.night if several and summary.night else summary.campaign


def grades_up_to(grade: str) -> tuple[str, ...]:
    """A grade and every lower one, ascending."""
    return tuple(GRADES[: list(GRADES).index(grade) + 1])  # type: ignore[arg-type]


def objection(summary: AttemptSummary, require: Require) -> Cause | None:
    """Why an attempt cannot help a PASS, or None; worked out once for each grade."""
    if require.grade not in summary.objections:
        summary.objections[require.grade] = _objection(summary, require)
    return summary.objections[require.grade]


def _objection(summary: AttemptSummary, require: Require) -> Cause | None:
    if summary.retracted:
        return Cause("retracted", "its evidence was withdrawn")
    if summary.state != "COMPLETE":
        return summary.cause or Cause("missing-evidence", f"{summary.state} without a cause")
    if summary.accepted_at_s is None:
        return Cause("not-accepted", "the ledger does not accept this attempt")
    if not summary.unit or summary.process is None:
        return Cause("cannot-observe", "the attempt states no unit or no process")
    missing = _missing(summary, require)
    return Cause("missing-evidence", missing) if missing else None


def is_good(summary: AttemptSummary, require: Require) -> bool:
    """A COMPLETE, accepted certification replay that lacks nothing at the required grade."""
    return summary.purpose == "certify" and objection(summary, require) is None


def _missing(summary: AttemptSummary, require: Require) -> str | None:
    """What the required grade needs and the attempt does not have, in words."""
    planned = summary.num_samples * len(summary.arms)
    if summary.rows == 0 or planned == 0:
        return "zero rows"
    short = [name for name, arm in summary.arms.items() if arm.rows != summary.num_samples]
    if short or summary.rows != planned:
        return f"{summary.rows} rows of {planned} planned, arms short: {sorted(short)}"
    if summary.power is None or summary.power.decode_steps == 0:
        return "zero decode steps"
    for grade in grades_up_to(require.grade):
        tables = (summary.roots, *(arm.roots for arm in summary.arms.values()))
        if any(not table.get(grade) for table in tables):
            return f"no root at the grade {grade}"
    if require.grade == "modules" and (gap := summary.trace.get("gap", "it is not told")):
        return f"the trace does not cover every call: {gap}"
    for column in STAGE_COLUMNS:
        if any(not arm.columns.get(column) for arm in summary.arms.values()):
            return f"no digest of the column {column}"
    return None


def pairs_needed(
    summaries: Sequence[AttemptSummary], require: Require, campaign: str | None = None
) -> list[tuple[str, str]]:
    """Attempts to be compared row by row before the set is judged, in a fixed order.

    Good attempts: per unit one of each class of roots and inputs against the unit's first, then
    the units' firsts against the overall first; attempts of ``campaign`` (an :func:`occasion`) come
    first. Every other
    attempt with rows: against one good attempt (of its campaign and unit, else its unit, else the
    first), or against the first such attempt when none is good. Pruned attempts have no rows; one
    that shows the same kept its own.
    """
    ordered = in_order(summaries)
    good = [s for s in ordered if is_good(s, require) and not s.pruned]
    mine_first = sorted(good, key=lambda s: occasion(s, require) != campaign)
    pairs = _class_pairs(mine_first)[:MAX_CLASS_PAIRS]
    return list(dict.fromkeys(pairs + required_pairs(summaries, require)))


def required_pairs(summaries: Sequence[AttemptSummary], require: Require) -> list[tuple[str, str]]:
    """The pairs that no root can stand in for: those of attempts that are not good evidence."""
    ordered = in_order(summaries)
    good = [s for s in ordered if is_good(s, require) and not s.pruned]
    others = [s for s in ordered if not is_good(s, require) and _rows_count(s)]
    pairs = []
    for other in others:
        reference = _reference(other, good or others[:1])
        if reference.attempt != other.attempt and _same_history(other, reference):
            pairs.append((reference.attempt, other.attempt))
    return pairs


def _class_pairs(good: Sequence[AttemptSummary]) -> list[tuple[str, str]]:
    pairs = []
    firsts: dict[str, AttemptSummary] = {}
    seen: dict[str, set[object]] = {}
    for s in good:
        first = firsts.setdefault(s.unit, s)
        classes = seen.setdefault(s.unit, {_class(first)})
        if _class(s) not in classes:
            classes.add(_class(s))
            pairs.append((first.attempt, s.attempt))
    heads = list(firsts.values())
    apart: set[object] = {_class(heads[0])} if heads else set()
    for head in heads[1:]:
        if _class(head) not in apart:
            apart.add(_class(head))
            pairs.append((heads[0].attempt, head.attempt))
    return pairs


def _class(summary: AttemptSummary) -> object:
    """What must be equal between two replays: all roots, and what went in."""
    inputs = tuple(
        (name, column, arm.columns.get(column))
        for name, arm in sorted(summary.arms.items())
        for column in INPUT_COLUMNS
    )
    return tuple(sorted(summary.roots.items())), inputs


def _rows_count(summary: AttemptSummary) -> bool:
    """What changed at its source after it was mirrored takes no row back that was mirrored; what a
    key that counts retracted has no row that does (law 3)."""
    cause = summary.cause
    foreign = cause is not None and cause.code in FOREIGN and not cause.details.get("original_kept")
    kept = not summary.pruned and not summary.retracted
    return summary.rows > 0 and not foreign and kept


def _reference(other: AttemptSummary, good: Sequence[AttemptSummary]) -> AttemptSummary:
    def distance(s: AttemptSummary) -> int:
        return 2 * (s.unit != other.unit) + (s.campaign != other.campaign)

    return min(good, key=distance)


def _same_history(a: AttemptSummary, b: AttemptSummary) -> bool:
    """Over another sample set, a row has the same batch and random state only when it is alone.

    A batch of one and greedy decoding make a sample independent of the samples around it.
    """
    if a.num_samples == b.num_samples:
        return True
    return all(s.envelope.get("batch_size") == 1 and _greedy(s) for s in (a, b))


def _greedy(summary: AttemptSummary) -> bool:
    """Read back as greedy; unknown is not greedy."""
    rule = summary.effective.get("decoding.generation_config")
    return isinstance(rule, dict) and rule.get("do_sample") is False
