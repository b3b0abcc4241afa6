"""All differing rows of two attempts, boiled down to what the judge needs.

Takes totals as numbers (a store counts them) and the differing row pairs one by one, in one pass
and in memory that does not grow with them. Knows no state, no platform and no verdict: it says what
differs, not whether that counts.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fleet.judge.rowdiff import Row, RowDifference, classify
from fleet.judge.shown import show
from fleet.judge.swaps import Held, swapped

__all__ = ["PairComparison", "PairCounts", "Row", "RowDifference", "classify", "compare_rows"]

PairCounts = Mapping[str, Mapping[str, tuple[int, int]]]
"""arm -> grade (*prediction*, *tokens*, *logits*) -> (exact, total): own row digests, over rows
present on both sides. ``both_unparsed`` may stand beside the grades: (rows unparsed on both sides
with byte-equal raw answers, total)."""

MAX_SAMPLES = 20
SWAP_WINDOW = 512
"""Swaps are looked for among this many differing rows; rows are wide, and memory is bounded."""


@dataclass(frozen=True)
class Kind:
    """Rows of one arm that differ in one way. ``first`` is shown, ``samples`` are the first 20."""

    arm: str
    stage: str
    broken: tuple[str, ...]
    same_input: bool
    settings_differ: bool
    rows: int
    samples: tuple[tuple[int, str, str], ...]
    first: dict[str, Any]

    @property
    def sticks(self) -> bool:
        """Equal inputs and settings, another value: a difference whatever ended the attempts."""
        return self.same_input and bool(self.broken)

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        return vars(self) | {
            "broken": list(self.broken),
            "samples": [list(sample) for sample in self.samples],
        }


@dataclass(frozen=True)
class PairComparison:
    """What differs between the rows of attempts ``attempts[0]`` (A) and ``attempts[1]`` (B).

    ``kinds`` are ordered by their first row. ``only_in``: per side, the number of rows that the
    other does not have and the first 20 as (arm, sample id).
    """

    attempts: tuple[str, str]
    counts: dict[str, dict[str, tuple[int, int]]]
    kinds: tuple[Kind, ...] = ()
    swaps: tuple[tuple[str, str, str], ...] = ()
    only_in: tuple[int, int] = (0, 0)
    only_in_first: tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]] = ((), ())

    def to_json(self) -> dict[str, Any]:
        """JSON-able form, the inverse of :meth:`from_json`."""
        return {
            "attempts": list(self.attempts),
            "counts": {a: {g: list(n) for g, n in c.items()} for a, c in self.counts.items()},
            "kinds": [kind.to_json() for kind in self.kinds],
            "swaps": [list(swap) for swap in self.swaps],
            "only_in": list(self.only_in),
            "only_in_first": [[list(key) for key in side] for side in self.only_in_first],
        }

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> PairComparison:
        """Read :meth:`to_json`; evidence is append-only, so a comparison may be kept."""
        a, b = (tuple((arm, sample) for arm, sample in side) for side in raw["only_in_first"])
        return cls(
            attempts=(raw["attempts"][0], raw["attempts"][1]),
            counts={
                arm: {grade: (n[0], n[1]) for grade, n in grades.items()}
                for arm, grades in raw["counts"].items()
            },
            kinds=tuple(_kind(kind) for kind in raw["kinds"]),
            swaps=tuple((arm, i, j) for arm, i, j in raw["swaps"]),
            only_in=(raw["only_in"][0], raw["only_in"][1]),
            only_in_first=(a, b),
        )


def _kind(raw: dict[str, Any]) -> Kind:
    samples = tuple((at, arm, sample) for at, arm, sample in raw["samples"])
    return Kind(**raw | {"broken": tuple(raw["broken"]), "samples": samples})


def compare_rows(
    counts: PairCounts,
    pairs: Iterable[tuple[Row, Row]],
    only_in_a: Iterable[tuple[str, str]] = (),
    only_in_b: Iterable[tuple[str, str]] = (),
    *,
    attempts: tuple[str, str] = ("a", "b"),
    dtype: str | None = None,
) -> PairComparison:
    """Read every differing pair once.

    Args:
        counts: exact and total per arm and grade.
        pairs: rows of one (arm, sample) in which an input, settings or grade digest differs.
        only_in_a: (arm, sample id) that only A has.
        only_in_b: (arm, sample id) that only B has.
        attempts: their ids.
        dtype: of the logits (``bfloat16``), to show their values.
    """
    tally = _Tally(dtype)
    for row_a, row_b in pairs:
        tally.add(row_a, row_b)
    tally.flush()
    sides = [_count(only_in_a), _count(only_in_b)]
    kinds = sorted((g.kind() for g in tally.groups.values()), key=lambda k: k.samples[0])
    return PairComparison(
        attempts=attempts,
        counts={arm: dict(grades) for arm, grades in counts.items()},
        kinds=tuple(kinds),
        swaps=tuple(tally.swaps[:MAX_SAMPLES]),
        only_in=(sides[0][0], sides[1][0]),
        only_in_first=(sides[0][1], sides[1][1]),
    )


def _count(keys: Iterable[tuple[str, str]]) -> tuple[int, tuple[tuple[str, str], ...]]:
    total = 0
    first: list[tuple[str, str]] = []
    for arm, sample in keys:
        total += 1
        if len(first) < MAX_SAMPLES:
            first.append((arm, sample))
    return total, tuple(first)


@dataclass
class _Group:
    """One kind while rows still come: the count, and the earliest rows in dataset order."""

    earliest: Held
    dtype: str | None
    rows: int = 0
    samples: list[tuple[int, str, str]] = field(default_factory=list)

    def add(self, held: Held) -> None:
        self.rows += 1
        if _place(held[2]) < _place(self.earliest[2]):
            self.earliest = held
        insort(self.samples, _place(held[2]))
        del self.samples[MAX_SAMPLES:]

    def kind(self) -> Kind:
        row_a, row_b, difference = self.earliest
        return Kind(
            arm=difference.arm,
            stage=difference.stage,
            broken=difference.broken,
            same_input=difference.same_input,
            settings_differ=difference.settings_differ,
            rows=self.rows,
            samples=tuple(self.samples),
            first=show(row_a, row_b, difference, self.dtype),
        )


def _place(difference: RowDifference) -> tuple[int, str, str]:
    return difference.position, difference.arm, difference.sample_id


@dataclass
class _Tally:
    """Groups rows into kinds; holds the first ones back until swaps among them are known."""

    dtype: str | None
    groups: dict[tuple[Any, ...], _Group] = field(default_factory=dict)
    held: list[Held] = field(default_factory=list)
    swaps: list[tuple[str, str, str]] = field(default_factory=list)
    flushed: bool = False

    def add(self, row_a: Row, row_b: Row) -> None:
        difference = classify(row_a, row_b)
        if difference is None:
            return
        if self.flushed:
            self._group((row_a, row_b, difference))
            return
        self.held.append((row_a, row_b, difference))
        if len(self.held) == SWAP_WINDOW:
            self.flush()

    def flush(self) -> None:
        partners = swapped(self.held)
        for row_a, row_b, difference in self.held:
            other = partners.get((difference.arm, difference.sample_id))
            if other is not None:
                words = f"swap: A's output of {difference.sample_id} is B's of {other}, and back"
                difference = replace(difference, stage="sample", words=words)
                if difference.sample_id < other:
                    self.swaps.append((difference.arm, difference.sample_id, other))
            self._group((row_a, row_b, difference))
        self.held, self.flushed = [], True

    def _group(self, held: Held) -> None:
        d = held[2]
        key = (d.arm, d.stage, d.broken, d.same_input, d.settings_differ)
        if key not in self.groups:
            self.groups[key] = _Group(held, self.dtype)
        self.groups[key].add(held)
