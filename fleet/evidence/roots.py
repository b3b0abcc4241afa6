"""Roots: one digest per arm and grade that settles n rows at once.

``root(g)`` covers a grade and every lower one, so equal roots at *logits* settle *tokens*,
*prediction* and *metric* too, and say nothing of *modules*. The execution id is stored beside a
root, never inside, so that contracts can be compared. Row order is the dataset's, never the
order of arrival.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any

from fleet.evidence.records import graded_fields, length_prefixed

ROOT_HEADER = b"fleet-root-1\n"
ROOTED: tuple[str, ...] = ("metric", "prediction", "tokens", "logits")
"""Grades that the rows of every certification carry."""

TRACED: tuple[str, ...] = (*ROOTED, "modules")
"""Those of a replay that was traced throughout: each row's own field at *modules* is the digest of
its batch's calls."""

Row = dict[str, Any]


class ArmRoots:
    """Roots of one arm at every grade of ``grades``, fed row by row in dataset order."""

    def __init__(
        self, arm: str, num_rows: int, num_correct: int, grades: tuple[str, ...] = ROOTED
    ) -> None:
        metric = length_prefixed([struct.pack("<qq", num_correct, num_rows)])
        self._hashers = {
            grade: hashlib.sha256(ROOT_HEADER + f"{grade}\n{arm}\n{num_rows}\n".encode() + metric)
            for grade in grades
        }
        self._rowed = grades[1:]

    def add(self, row: Row, graded: dict[str, bytes] | None = None) -> None:
        """Add the next row: its id, then its fields of each grade and of every lower one.

        ``graded`` spares the work where the row's :func:`graded_fields` are known.
        """
        own = graded or graded_fields(row)
        chunk = length_prefixed([row["sample_id"].encode("utf-8")])
        self._hashers["metric"].update(chunk)
        for grade in self._rowed:
            chunk += own[grade]
            self._hashers[grade].update(chunk)

    def digests(self) -> dict[str, bytes]:
        """``{grade: root}``."""
        return {grade: hasher.digest() for grade, hasher in self._hashers.items()}


def arm_roots(arm: str, rows: list[Row]) -> dict[str, bytes]:
    """Root of one arm at every grade, from all its rows in dataset order, each sample once."""
    roots = ArmRoots(arm, len(rows), sum(1 for row in rows if row["is_correct"]))
    for row in rows:
        roots.add(row)
    return roots.digests()


def attempt_root(roots_by_arm: dict[str, bytes]) -> bytes:
    """SHA-256 over the arm roots of one grade, arms sorted by name."""
    return hashlib.sha256(b"".join(roots_by_arm[arm] for arm in sorted(roots_by_arm))).digest()


def attempt_roots(by_arm: dict[str, dict[str, bytes]]) -> dict[str, bytes]:
    """``{grade: root}`` of a whole attempt from ``{arm: {grade: root}}``."""
    grades = dict.fromkeys(grade for roots in by_arm.values() for grade in roots)
    return {g: attempt_root({arm: roots[g] for arm, roots in by_arm.items()}) for g in grades}
