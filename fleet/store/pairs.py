"""Two attempts side by side: counts from the narrow table, wide rows only where digests differ.

All comparisons are between digests, typed text or integers. NULL is never equal and never
different: such a row is missing evidence, which the attempt's own state says. Row order is no
difference; a sample's position in the dataset is. Knows no verdict and no layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fleet.evidence.landing import Landing
from fleet.store.open import Connection
from fleet.store.wide import WideRows

Row = dict[str, Any]
Counts = dict[str, dict[str, tuple[int, int]]]

GRADES = ("prediction", "tokens", "logits")

DIFFERS: tuple[str, ...] = (
    "input",
    "settings",
    "prediction",
    "tokens",
    "logits",
    "position",
    "batch_ordinal",
)
"""Columns in which two rows of one sample and arm can differ."""

_FROM = """
FROM hashes a JOIN hashes b ON a.arm = b.arm AND a.sample_id = b.sample_id
WHERE a.attempt = $a AND b.attempt = $b
"""


def _key(con: Connection, attempt: str) -> int:
    """The attempt's number in the store, -1 for one that it does not have.

    Asked for first: a comparison with a number skips the rows of all other attempts, a comparison
    with a subquery reads them.
    """
    found = con.execute("SELECT key FROM attempts WHERE attempt = ?", [attempt]).fetchone()
    return -1 if found is None else int(found[0])


def pair_counts(con: Connection, a: str, b: str) -> Counts:
    """``{arm: {grade: (exact, total)}}`` over the samples that both have, own fields of a grade.

    A sample that one side landed twice is exact when all its rows are. ``both_unparsed`` counts
    answers that no side could parse and that are byte-equal (the digest of an unparsed prediction
    covers the raw answer).
    """
    equal = ", ".join(
        f"bool_and(coalesce(a.{grade} = b.{grade}, false)) AS {grade}" for grade in GRADES
    )
    unparsed = (
        "bool_and(coalesce(a.unparsed AND b.unparsed AND a.prediction = b.prediction, false))"
    )
    counted = ", ".join(f"count(*) FILTER ({name})" for name in (*GRADES, "both_unparsed"))
    found = con.execute(
        f"SELECT arm, count(*), {counted} FROM (SELECT a.arm, a.sample_id, {equal}, {unparsed} "
        f"AS both_unparsed {_FROM} GROUP BY a.arm, a.sample_id) GROUP BY arm ORDER BY arm",
        {"a": _key(con, a), "b": _key(con, b)},
    ).fetchall()
    return {
        arm: {name: (n, total) for name, n in zip((*GRADES, "both_unparsed"), exact, strict=True)}
        for arm, total, *exact in found
    }


def only_in(con: Connection, a: str, b: str) -> list[tuple[str, str]]:
    """``(arm, sample_id)`` that ``a`` landed and ``b`` did not, in dataset order."""
    found = con.execute(
        "SELECT arm, sample_id, min(position) AS first_place FROM hashes x "
        "WHERE attempt = $a AND NOT EXISTS (SELECT 1 FROM hashes y WHERE y.arm = x.arm "
        "AND y.sample_id = x.sample_id AND y.attempt = $b) "
        "GROUP BY arm, sample_id ORDER BY first_place, arm, sample_id",
        {"a": _key(con, a), "b": _key(con, b)},
    ).fetchall()
    return [(arm, sample) for arm, sample, _ in found]


def differing_rows(con: Connection, landing: Landing, a: str, b: str) -> Iterator[tuple[Row, Row]]:
    """Wide rows of every sample and arm in which the two differ, by position, then arm.

    Streams: the pointers come from the narrow table, the rows from the parts that they point into.

    Raises:
        StoreError: when the landing is no longer the one that was ingested.
    """
    differs = " OR ".join(
        f"(a.{name} IS NOT NULL AND b.{name} IS NOT NULL AND a.{name} IS DISTINCT FROM b.{name})"
        for name in DIFFERS
    )
    cursor = con.cursor()
    cursor.execute(
        f"SELECT a.arm, a.sample_id, a.part, a.row, b.part, b.row {_FROM} AND ({differs}) "
        "ORDER BY least(a.position, b.position), a.arm, a.sample_id, 3, 4, 5, 6",
        {"a": _key(con, a), "b": _key(con, b)},
    )
    ours, theirs = WideRows(con, landing, a), WideRows(con, landing, b)
    while found := cursor.fetchmany(1024):
        for arm, sample, part_a, row_a, part_b, row_b in found:
            key = (arm, sample)
            yield ours.get(part_a, row_a, key), theirs.get(part_b, row_b, key)


def row_pair(
    con: Connection, landing: Landing, a: str, b: str, arm: str, sample_id: str
) -> tuple[Row | None, Row | None]:
    """The wide rows of one sample and arm; None on a side that has none."""
    return (
        _row(con, landing, a, arm, sample_id),
        _row(con, landing, b, arm, sample_id),
    )


def _row(con: Connection, landing: Landing, attempt: str, arm: str, sample_id: str) -> Row | None:
    found = con.execute(
        "SELECT part, row FROM hashes WHERE attempt = ? AND arm = ? AND sample_id = ? "
        "ORDER BY part, row LIMIT 1",
        [_key(con, attempt), arm, sample_id],
    ).fetchone()
    if found is None:
        return None
    part, row = found
    return WideRows(con, landing, attempt).get(part, row, (arm, sample_id))
