"""How rows are cut into parts: small ones first, then twice as many rows each time."""

from __future__ import annotations

from pathlib import Path

from fleet.evidence.parts import FIRST_ROWS, PartWriter
from tests.landing_builder import make_record


def test_each_full_part_lets_the_next_take_twice_as_many_rows(tmp_path: Path) -> None:
    writer = PartWriter(tmp_path, rows_per_part=4 * FIRST_ROWS)
    record = make_record("a" * 16, "current", 0, "s0")
    for _ in range(12 * FIRST_ROWS + 1):
        writer.add([record])
    writer.flush()
    assert [part.rows // FIRST_ROWS for part in writer.parts[:-1]] == [1, 2, 4, 4]
    assert writer.parts[-1].rows == FIRST_ROWS + 1


def test_a_part_that_time_made_small_does_not_make_the_next_one_larger(tmp_path: Path) -> None:
    writer = PartWriter(tmp_path, rows_per_part=8, seconds_per_part=0.0)
    for position in range(20):
        writer.add([make_record("a" * 16, "current", position, f"s{position}")])
    assert [part.rows for part in writer.parts] == [1] * 20
