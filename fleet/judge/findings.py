"""What differs in a set of attempts, and which of it counts.

Differences come from three places: roots and input columns of good attempts, their stage digests,
and row comparisons. A comparison with an attempt that is no good evidence counts only through rows
with equal inputs and settings (they stick), never through agreement. Two units that each agree with
themselves differ as a class only. Knows no campaign and no words of a verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from fleet.contract.model import GRADES, Require
from fleet.evidence.summary import AttemptSummary
from fleet.judge.compare import Kind, PairComparison
from fleet.judge.sets import (
    grades_up_to,
    in_order,
    is_good,
    occasion,
    pairs_needed,
    required_pairs,
)
from fleet.judge.stages import INPUT_COLUMNS, ORDER, earliest

FLOW: tuple[str, ...] = ("modules", "logits", "tokens", "prediction", "metric")
"""Grades in the order data flows; the first whose own fields differ is the first broken."""
_OWN_COLUMN = {
    "logits": "logits_sha256",
    "tokens": "tokens_sha256",
    "prediction": "prediction_sha256",
}
UNWATCHED = ("gap", "doubt")
"""What a summary of a trace says against it."""
_STAGE_DIGESTS = ("checkpoint", "post_init_weights", "end_weights")
Comparisons = Mapping[tuple[str, str], PairComparison]


@dataclass(frozen=True)
class Compared:
    """One row comparison with the attempts behind it."""

    a: AttemptSummary
    b: AttemptSummary
    comparison: PairComparison
    both_good: bool

    @property
    def same_unit(self) -> bool:
        """False only when both units are known and differ."""
        return not self.a.unit or not self.b.unit or self.a.unit == self.b.unit

    @property
    def unpaired(self) -> int:
        """Records that one of two good attempts has and the other does not (the larger side)."""
        return max(self.comparison.only_in) if self.both_good else 0

    def kinds(self, grades: Iterable[str]) -> Iterator[Kind]:
        """Kinds of differing rows that count at some grades."""
        wanted = set(grades)
        for kind in self.comparison.kinds:
            breaks = bool(wanted & set(kind.broken))
            moved = kind.stage in INPUT_COLUMNS.values()
            if (breaks or moved) if self.both_good else (breaks and kind.sticks):
                yield kind


@dataclass(frozen=True)
class Findings:
    """Everything that differs in one set, computed on demand from evidence alone.

    ``lenient``: a past state of the set is looked at, whose own comparisons may never have been
    asked for.
    """

    attempts: Sequence[AttemptSummary]
    require: Require
    comparisons: Comparisons
    campaign: str | None = None
    lenient: bool = False

    @cached_property
    def good(self) -> list[AttemptSummary]:
        """COMPLETE, accepted certification replays, the campaign's own first."""
        found = [s for s in in_order(self.attempts) if is_good(s, self.require)]
        return sorted(found, key=lambda s: occasion(s, self.require) != self.campaign)

    @cached_property
    def grades(self) -> tuple[str, ...]:
        """The required grade and those below."""
        return grades_up_to(self.require.grade)

    @cached_property
    def compared(self) -> list[Compared]:
        """Comparisons that were handed in, in the order they were asked for, others after them.

        Raises:
            ValueError: when one is missing that no root can stand in for.
        """
        asked = pairs_needed(self.attempts, self.require, self.campaign)
        missing = [
            pair for pair in required_pairs(self.attempts, self.require) if not self._has(pair)
        ]
        if missing and not self.lenient:
            raise ValueError(f"row comparisons are missing: {missing}")
        given = [pair for pair in asked if pair in self.comparisons]
        keys = dict.fromkeys([*given, *self.comparisons])
        by_id = {s.attempt: s for s in self.attempts}
        good = {s.attempt for s in self.good}
        return [
            Compared(by_id[a], by_id[b], self.comparisons[a, b], a in good and b in good)
            for a, b in keys
            if a in by_id and b in by_id
        ]

    def _has(self, pair: tuple[str, str]) -> bool:
        return pair in self.comparisons or pair[::-1] in self.comparisons

    def differ(self, values: Sequence[object], anywhere: bool = False) -> bool:
        """Do values of the good attempts differ, on one unit or (same-class) over all?"""
        if anywhere or self.require.scope == "same-class":
            return len(set(values)) > 1
        by_unit: dict[str, set[object]] = {}
        for s, value in zip(self.good, values, strict=True):
            by_unit.setdefault(s.unit, set()).add(value)
        return any(len(found) > 1 for found in by_unit.values())

    @cached_property
    def differing_roots(self) -> tuple[str, ...]:
        """Grades of any height at which good attempts have two roots in the required scope."""
        shared = [g for g in GRADES if all(g in s.roots for s in self.good)]
        return tuple(g for g in shared if self.differ([s.roots[g] for s in self.good]))

    @cached_property
    def classes(self) -> int:
        """Distinct roots at the required grade over all units."""
        return len({s.roots[self.require.grade] for s in self.good})

    @cached_property
    def moved_inputs(self) -> dict[str, tuple[str, ...]]:
        """Input stage -> arms in which it differs between any two good attempts."""
        moved = {
            stage: tuple(arm for arm in self.arms if self._column_moves(arm, column))
            for column, stage in INPUT_COLUMNS.items()
        }
        return {stage: arms for stage, arms in moved.items() if arms}

    def _column_moves(self, arm: str, column: str) -> bool:
        return self.differ(self._column(arm, column), anywhere=True)

    def _column(self, arm: str, column: str) -> list[object]:
        return [s.arms[arm].columns.get(column) if arm in s.arms else None for s in self.good]

    @cached_property
    def moved_digests(self) -> tuple[str, ...]:
        """Weight stages that differ between any two good attempts that state them."""
        moved = []
        for name in _STAGE_DIGESTS:
            known = {s.stages[name] for s in self.good if s.stages.get(name)}
            if len(known) > 1:
                moved.append(name)
        if "post_init_weights" in moved and "end_weights" in moved:
            moved.remove("end_weights")
        return tuple(moved)

    @cached_property
    def arms(self) -> tuple[str, ...]:
        """Arm names, sorted."""
        return tuple(sorted({arm for s in self.attempts for arm in s.arms} | self._counted_arms))

    @property
    def _counted_arms(self) -> set[str]:
        return {arm for c in self.comparisons.values() for arm in c.counts}

    @cached_property
    def counting(self) -> list[Compared]:
        """Comparisons that count towards a FAIL."""
        return [c for c in self.compared if self._counts(c)]

    @cached_property
    def telling(self) -> list[Compared]:
        """Comparisons whose counts are shown: those that count, and good ones within scope."""
        return [c for c in self.compared if self._counts(c) or (c.both_good and self._in_scope(c))]

    def told(self, c: Compared) -> list[Kind]:
        """Kinds of a telling comparison; of good attempts also those above the required grade."""
        return list(c.kinds(GRADES if c.both_good else self.grades))

    def _in_scope(self, c: Compared) -> bool:
        return c.same_unit or self.require.scope == "same-class"

    def _counts(self, c: Compared) -> bool:
        in_scope = self._in_scope(c)
        if not c.both_good:
            return in_scope and any(c.kinds(self.grades))
        moved = any(k.stage in INPUT_COLUMNS.values() for k in c.comparison.kinds)
        return (in_scope and (any(c.kinds(self.grades)) or c.unpaired > 0)) or moved

    @cached_property
    def fails(self) -> bool:
        """Does anything count?"""
        required = set(self.grades) & set(self.differing_roots)
        return bool(required or self.moved_inputs or self.moved_digests or self.counting)

    @cached_property
    def counted_kinds(self) -> list[tuple[Compared, Kind]]:
        """Kinds of rows behind the FAIL: earliest stage first, then order of comparison, rows."""
        pairs = [(c, kind) for c in self.counting for kind in c.kinds(self.grades)]
        return sorted(pairs, key=lambda pair: ORDER[pair[1].stage])

    @cached_property
    def stages(self) -> dict[str, int]:
        """Stage -> differing records, of the comparison with most; 0 for a stage without rows."""
        most: dict[str, int] = {}
        for c in self.counting:
            rows: dict[str, int] = {}
            for kind in c.kinds(self.grades):
                rows[kind.stage] = rows.get(kind.stage, 0) + kind.rows
                if kind.settings_differ:
                    rows["settings"] = rows.get("settings", 0) + kind.rows
            if c.unpaired:
                rows["sample"] = rows.get("sample", 0) + c.unpaired
            for stage, n in (*rows.items(), *((name, 0) for name in _pair_stages(c))):
                most[stage] = max(n, most.get(stage, 0))
        for stage in (*self.moved_inputs, *self.moved_digests):
            most.setdefault(stage, 0)
        return dict(sorted(most.items(), key=lambda item: ORDER[item[0]]))

    @cached_property
    def settings_differ(self) -> bool:
        """Do effective settings differ between any two good attempts, at load or at any row?

        A row's settings digest covers the prompts of its batch, so moved inputs move it too.
        """
        effective = {s.stages["effective"] for s in self.good if s.stages.get("effective")}
        rows = any(len(set(self._column(arm, "settings_sha256"))) > 1 for arm in self.arms)
        return len(effective) > 1 or (rows and not self.moved_inputs)

    @property
    def settings_may_explain(self) -> bool:
        """Do settings differ, and stand before the earliest value that does?"""
        first = self.first_stage
        return "settings" in self.stages and first is not None and ORDER["settings"] < ORDER[first]

    @cached_property
    def broken(self) -> tuple[str, ...]:
        """Grades of any height whose own fields differ, first in data flow first."""
        own = {g for g in _OWN_COLUMN if any(self._own_differs(arm, g) for arm in self.arms)}
        if self.differ([self._metric(s) for s in self.good]):
            own.add("metric")
        if "modules" in self.differing_roots and "logits" not in self.differing_roots:
            own.add("modules")
        own.update(g for _, kind in self.counted_kinds for g in kind.broken)
        return tuple(grade for grade in self._flow if grade in own)

    @property
    def _flow(self) -> tuple[str, ...]:
        """Where every difference of logits only follows another token, the token came first."""
        kinds = [k for c in self.telling for k in self.told(c) if "logits" in k.broken]
        if kinds and all(kind.stage == "sampler" for kind in kinds):
            return ("modules", "tokens", "logits", "prediction", "metric")
        return FLOW

    def _own_differs(self, arm: str, grade: str) -> bool:
        return self.differ(self._column(arm, _OWN_COLUMN[grade]))

    def _metric(self, summary: AttemptSummary) -> object:
        return tuple(sorted((a, arm.correct, arm.rows) for a, arm in summary.arms.items()))

    @cached_property
    def attained(self) -> str | None:
        """Highest grade at which it and all lower ones hold, for good roots and sticking rows."""
        stuck = {g for c, k in self.counted_kinds if not c.both_good for g in k.broken}
        attained = None
        for grade in GRADES:
            held = self.good and all(grade in s.roots for s in self.good)
            if not held or grade in self.differing_roots or grade in stuck:
                break
            if grade == "modules" and self.unwatched:
                break
            attained = grade
        return attained

    @cached_property
    def unwatched(self) -> str | None:
        """Why traces of the good attempts do not carry the grade *modules*, asked for or not: calls
        that they missed, or hooks that may have moved a bit. None when they do, or there are none.
        """
        traced = [s for s in self.good if "modules" in s.roots]
        told = ((s.trace.get(what, "it is not told"), s) for s in traced for what in UNWATCHED)
        return next((f"attempt {s.attempt}: {words}" for words, s in told if words), None)

    @cached_property
    def first_stage(self) -> str | None:
        """The earliest differing stage other than settings."""
        return earliest(self.stages)


def _pair_stages(c: Compared) -> list[str]:
    """Stage digests that both attempts of a pair state and that differ.

    An attempt that ended before its settings were read back states none.
    """

    def differs(name: str) -> bool:
        a, b = c.a.stages.get(name), c.b.stages.get(name)
        return bool(a and b and a != b)

    found = [name for name in _STAGE_DIGESTS if differs(name)]
    if "post_init_weights" in found and "end_weights" in found:
        found.remove("end_weights")
    read = bool(c.a.effective) == bool(c.b.effective)
    return [*found, *(["settings"] if read and differs("effective") else [])]
