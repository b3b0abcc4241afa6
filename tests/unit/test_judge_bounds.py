"""The two bounds: exact at known values, monotone, and silent where nothing can be said."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from fleet.judge.bounds import process_bound, record_bound


def test_one_record_bounds_almost_nothing() -> None:
    assert record_bound(1) == 0.95


def test_two_records_follow_the_formula() -> None:
    assert record_bound(2) == 1 - math.sqrt(0.05)


def test_the_record_bound_is_below_the_rule_of_three() -> None:
    for n in (10, 48, 191, 382, 10_000):
        assert 2.5 / n < record_bound(n) < 3 / n


def test_191_distinct_inputs_bound_the_rate_at_1_point_56_percent() -> None:
    assert f"{record_bound(191):.5f}" == "0.01556"


def test_a_bound_over_no_input_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        record_bound(0)


@pytest.mark.parametrize("replays", [0, 1, 2, 3, 4, 5])
def test_fewer_than_six_replays_are_not_bounded(replays: int) -> None:
    assert process_bound(replays) is None


@pytest.mark.parametrize("replays", [6, 7, 10, 20, 100, 1000])
def test_the_process_bound_is_the_largest_share_that_still_passes(replays: int) -> None:
    p = process_bound(replays)
    assert p is not None
    above = math.nextafter(p, 1.0)
    assert (1 - p) ** replays + p**replays >= 0.05
    assert (1 - above) ** replays + above**replays < 0.05


def test_six_replays_bound_the_minority_share_near_40_percent() -> None:
    p = process_bound(6)
    assert p is not None
    assert f"{p:.3f}" == "0.402"


def test_five_replays_cannot_exclude_an_even_split() -> None:
    assert 2 * Fraction(1, 2) ** 5 >= Fraction(1, 20)
    assert 2 * Fraction(1, 2) ** 6 < Fraction(1, 20)


def test_more_replays_bound_tighter() -> None:
    bounds = [process_bound(r) for r in range(6, 60)]
    assert bounds == sorted(bounds, reverse=True)
