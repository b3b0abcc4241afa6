"""Large attempts are checked without holding them: the quick way says what the slow one says."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from fleet.errors import EvidenceError
from fleet.evidence import sample_set
from fleet.evidence.distinct import FIRST_BYTES, Distinct
from fleet.evidence.parts import PartWriter
from fleet.evidence.sample_set import check_sample_set
from tests.landing_builder import make_record

ATTEMPT = "a" * 16
ARMS = ["current", "controlled"]
IDS = [f"s{i}" for i in range(6)]
Place = tuple[str, int]

WHOLE: list[Place] = [(arm, at) for arm in sorted(ARMS) for at in range(len(IDS))]


def landed(folder: Path, places: list[Place], attempt: str = ATTEMPT) -> list[Path]:
    writer = PartWriter(folder, rows_per_part=4)
    for arm, at in places:
        writer.add([make_record(attempt, arm, at, f"s{at}")])
    writer.flush()
    return [folder / part.name for part in writer.parts]


def test_rows_in_order_are_never_looked_at_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = landed(tmp_path, WHOLE)
    monkeypatch.delattr(sample_set, "_one_by_one")
    assert check_sample_set(ATTEMPT, parts, IDS, ARMS) is True


def test_whole_rows_in_another_order_pass_and_are_said_to_be_unordered(tmp_path: Path) -> None:
    assert check_sample_set(ATTEMPT, landed(tmp_path, WHOLE[::-1]), IDS, ARMS) is False


@pytest.mark.parametrize(
    ("places", "said"),
    [
        (WHOLE[:-1], "1 missing of 12: current/s5"),
        (WHOLE[1:], "1 missing of 12: controlled/s0"),
        ([*WHOLE, WHOLE[-1]], "1 doubled of 12: current/s5"),
        ([WHOLE[0], *WHOLE], "1 doubled of 12: controlled/s0"),
        ([*WHOLE, ("current", 6)], "1 unknown of 12: current/s6"),
        ([*WHOLE, ("other", 0)], "1 unknown of 12: other/s0"),
        ([], "12 missing of 12"),
    ],
)
def test_what_is_wrong_with_the_sample_set_is_named(
    tmp_path: Path, places: list[Place], said: str
) -> None:
    with pytest.raises(EvidenceError, match=said):
        check_sample_set(ATTEMPT, landed(tmp_path, places), IDS, ARMS)


def test_rows_of_another_attempt_are_found(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="rows of another attempt"):
        check_sample_set(ATTEMPT, landed(tmp_path, WHOLE, "b" * 16), IDS, ARMS)


def test_a_sample_at_another_position_is_found(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="stands at another's position"):
        check_sample_set(ATTEMPT, landed(tmp_path, WHOLE), [*IDS[1:], IDS[0]], ARMS)


def test_a_plan_that_names_a_sample_twice_is_not_met_by_both_rows(tmp_path: Path) -> None:
    writer = PartWriter(tmp_path)
    for arm in sorted(ARMS):
        for at in range(2):
            writer.add([make_record(ATTEMPT, arm, at, "s0")])
    writer.flush()
    with pytest.raises(EvidenceError, match="2 doubled of 2"):
        check_sample_set(ATTEMPT, [tmp_path / "part-00000.parquet"], ["s0", "s0"], ARMS)


def test_distinct_counts_what_a_set_counts() -> None:
    values = [hashlib.sha256(bytes([i % 251])).digest()[: i % 5] for i in range(3000)]
    distinct = Distinct()
    for value in values:
        distinct.add(value)
    assert distinct.count() == distinct.count() == len(set(values))
    assert Distinct().count() == 0


def test_a_value_that_comes_often_takes_the_room_of_one() -> None:
    distinct = Distinct()
    for i in range(40_000):
        distinct.add(b"often")
        distinct.add(str(i // 2).encode())
    assert distinct.count() == 20_001
    assert sum(len(bucket) for bucket in distinct._buckets) < 256 * FIRST_BYTES
