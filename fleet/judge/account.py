"""The parts of a verdict that are counted: arms, units, roots, attempts, mismatches.

Each number is a count of records (or of attempts, where named); the worst comparison is shown where
several count. Decides nothing: what counts was found before.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from fleet.contract.model import GRADES, Require
from fleet.evidence.roots import ROOTED
from fleet.evidence.summary import AttemptSummary
from fleet.judge.compare import MAX_SAMPLES
from fleet.judge.findings import Compared, Findings
from fleet.judge.sets import occasion
from fleet.judge.verdict import Word

Arms = dict[str, dict[str, dict[str, Any]]]


def arms_table(found: Findings, word: Word) -> Arms:
    """arm -> grade -> {verdict, exact, total, rate}; *prediction* also has ``both_unparsed``.

    A grade fails with any lower one of its arm; an arm whose inputs moved fails at every grade, and
    so does every arm when weights moved. In a VOID nothing is claimed and nothing counted.
    """
    grades = [g for g in GRADES if g in ROOTED or g in found.grades]
    return {arm: _arm(found, word, arm, grades) for arm in found.arms}


def _arm(found: Findings, word: Word, arm: str, grades: Sequence[str]) -> dict[str, Any]:
    moved = any(arm in arms for arms in found.moved_inputs.values()) or found.moved_digests
    failing = bool(moved) and word == "FAIL"
    table = {}
    for grade in grades:
        exact, total, unparsed = _count(found, arm, grade)
        failing = failing or exact < total or _root_differs(found, arm, grade)
        table[grade] = _cell(word, failing, exact, total, unparsed, grade)
    return table


def _cell(
    word: Word, failing: bool, exact: int, total: int, unparsed: int | None, grade: str
) -> dict[str, Any]:
    if word == "VOID":
        exact, total, unparsed = 0, 0, 0 if unparsed is not None else None
    verdict = word if word == "VOID" else "FAIL" if failing else "PASS"
    cell: dict[str, Any] = {"verdict": verdict, "exact": exact, "total": total}
    left_out = unparsed or 0
    told = total - left_out
    cell["rate"] = (exact - left_out) / told if told > 0 else None
    if grade == "prediction":
        cell["both_unparsed"] = unparsed
    return cell


def _count(found: Findings, arm: str, grade: str) -> tuple[int, int, int | None]:
    """(exact, total, both unparsed) of the comparison with most mismatches of a grade's own."""
    best = _whole(found, arm, grade)
    for c in found.telling:
        differing = sum(k.rows for k in found.told(c) if k.arm == arm and grade in k.broken)
        if differing > best[1] - best[0]:
            own = c.comparison.counts.get(arm, {})
            total = own.get(grade, (0, best[1]))[1]
            unparsed = own.get("both_unparsed", (None, 0))[0] if grade == "prediction" else None
            best = (total - differing, total, unparsed)
    return best


def _whole(found: Findings, arm: str, grade: str) -> tuple[int, int, int | None]:
    """The count when no row comparison says otherwise: all records, or for metric none."""
    first = next((s.arms[arm] for s in found.good if arm in s.arms), None)
    if first is None:
        totals = [c.comparison.counts.get(arm, {}).get(grade, (0, 0))[1] for c in found.counting]
        return max(totals, default=0), max(totals, default=0), None
    if grade == "metric":
        held = not found.differ([_metric(s, arm) for s in found.good])
        return (first.rows if held else 0), first.rows, None
    return first.rows, first.rows, first.unparsed if grade == "prediction" else None


def _metric(summary: AttemptSummary, arm: str) -> tuple[int, int] | None:
    own = summary.arms.get(arm)
    return (own.correct, own.rows) if own else None


def _root_differs(found: Findings, arm: str, grade: str) -> bool:
    roots = [s.arms[arm].roots.get(grade) if arm in s.arms else None for s in found.good]
    return found.differ(roots)


def units(found: Findings) -> tuple[dict[str, Any], ...]:
    """Per unit: good replays, classes of the required root, and whether it agrees with itself."""
    grade = found.require.grade
    per_unit: dict[str, list[str]] = {}
    for s in found.good:
        per_unit.setdefault(s.unit, []).append(s.roots[grade])
    return tuple(
        {
            "unit": unit,
            "replays": len(roots),
            "classes": len(set(roots)),
            "agrees": len(set(roots)) == 1 if len(roots) > 1 else None,
        }
        for unit, roots in per_unit.items()
    )


def roots(found: Findings) -> dict[str, list[str]]:
    """Grade -> distinct roots of the good attempts, the campaign's first."""
    grades = [g for g in GRADES if any(g in s.roots for s in found.good)]
    return {g: list(dict.fromkeys(s.roots[g] for s in found.good if g in s.roots)) for g in grades}


def attempts(
    all_attempts: Sequence[AttemptSummary],
    require: Require,
    campaign: str | None,
    also: Collection[str] = (),
) -> tuple[dict[str, Any], ...]:
    """The attempts behind a verdict: those of its campaign (or all), and some others by id."""
    shown = [
        s for s in all_attempts if campaign in (None, occasion(s, require)) or s.attempt in also
    ]
    return tuple(
        {
            "attempt": s.attempt,
            "campaign": s.campaign,
            "slot": s.slot,
            "purpose": s.purpose,
            "state": s.state,
            "cause": s.cause.to_json() if s.cause else None,
            "accepted": s.accepted_at_s is not None,
            "unit": s.unit,
            "rows": s.rows,
        }
        | ({"retracted": True} if s.retracted else {})
        for s in shown
    )


def mismatches(found: Findings) -> int:
    """Records that differ at the required grade or in their inputs, in the worst comparison."""
    return max((_differing(found, c) for c in found.counting), default=0)


def _differing(found: Findings, c: Compared) -> int:
    return sum(kind.rows for kind in c.kinds(found.grades)) + c.unpaired


def records(found: Findings) -> int:
    """Records of one replay; of the compared rows when no attempt is good."""
    if found.good:
        return found.good[0].rows
    return max((_compared_rows(c) for c in found.counting), default=0)


def _compared_rows(c: Compared) -> int:
    arms = c.comparison.counts.values()
    return sum(max((total for _, total in grades.values()), default=0) for grades in arms)


def differing_samples(found: Findings) -> tuple[dict[str, Any], ...]:
    """The first 20 (sample, arm) behind a FAIL, in dataset order, each once."""
    kinds = [kind for _, kind in reversed(found.counted_kinds)]
    rows = {sample: kind.stage for kind in kinds for sample in kind.samples}
    return tuple(
        {"sample_id": key[2], "arm": key[1], "position": key[0], "stage": rows[key]}
        for key in sorted(rows)[:MAX_SAMPLES]
    )


def first_difference(found: Findings) -> dict[str, Any] | None:
    """The first row of the earliest stage; a stage of whole attempts when no row was compared."""
    stage = found.first_stage
    rows = [(c, k) for c, k in found.counted_kinds if k.stage == stage]
    rows = rows or found.counted_kinds
    if rows:
        c = rows[0][0]
        kind = min((k for other, k in rows if other is c), key=lambda k: k.samples[0])
        return {"attempts": list(c.comparison.attempts), "earliest_stage": stage, **kind.first}
    unpaired = next((c for c in found.counting if c.unpaired), None)
    if unpaired is not None:
        return _unpaired(unpaired)
    if stage is None:
        return None
    arms = found.moved_inputs.get(stage, ())
    return {"stage": stage, "arm": arms[0] if arms else None, "sample_id": None}


def _unpaired(c: Compared) -> dict[str, Any]:
    sides = zip(c.comparison.attempts, c.comparison.only_in_first, strict=True)
    attempt, (arm, sample) = next((name, keys[0]) for name, keys in sides if keys)
    return {
        "attempts": list(c.comparison.attempts),
        "stage": "sample",
        "arm": arm,
        "sample_id": sample,
        "words": f"only attempt {attempt} has this record",
    }
