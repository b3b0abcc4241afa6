"""The order of a bisection between two sets of packages, and what its steps show."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.judge.bisection import Search, Seen, Stackside, mixture, moves, unfit

Listed = dict[str, list[str]]


def side(versions: dict[str, str | None], **requires: list[str]) -> Stackside:
    return Stackside(versions, requires)


OLD = {"a": "1", "b": "1", "c": "1", "same": "5"}
NEW = {"a": "2", "b": "2", "c": "2", "same": "5"}


def test_only_what_differs_moves_and_each_by_itself() -> None:
    assert moves(side(OLD), side(NEW)) == [("a",), ("b",), ("c",)]
    assert moves(side(OLD), side(OLD)) == []


def test_what_a_new_package_needs_comes_before_it() -> None:
    assert moves(side(OLD), side(NEW, a=["c>=2"])) == [("b",), ("c",), ("a",)]


def test_what_is_likely_comes_as_early_as_it_fits() -> None:
    assert moves(side(OLD), side(NEW), ["c"]) == [("c",), ("a",), ("b",)]
    assert moves(side(OLD), side(NEW, c=["b>=2"]), ["c"]) == [("a",), ("b",), ("c",)]


def test_what_an_old_package_does_not_take_comes_after_it() -> None:
    assert moves(side(OLD, c=["a<2"]), side(NEW)) == [("b",), ("c",), ("a",)]


def test_packages_that_take_each_other_only_as_they_were_move_together() -> None:
    found = moves(side(OLD, a=["b<2"]), side(NEW, a=["b>=2"]))
    assert found == [("a", "b"), ("c",)]


def test_a_package_that_is_new_comes_with_or_before_what_needs_it() -> None:
    base, new = {"a": "1"}, {"a": "2", "n": "1"}
    assert moves(side(base), side(new, a=["n==1"])) == [("n",), ("a",)]


def test_what_does_not_fit_within_one_end_is_not_asked_of_a_mixture() -> None:
    new = side(NEW, a=["b>=3"])
    assert moves(side(OLD), new) == [("a",), ("b",), ("c",)]
    assert unfit(new) == {"b"} and unfit(side(NEW, a=["b>=2", "absent>=1"])) == set()


def test_a_local_version_is_a_version() -> None:
    base, new = {"torch": "2.13.0+cpu", "x": "1"}, {"torch": "2.14.1", "x": "2"}
    assert moves(side(base, x=["torch>=2.8"]), side(new, x=["torch>=2.14"])) == [
        ("torch",), ("x",),
    ]  # fmt: skip


def test_a_mixture_is_the_base_with_some_as_they_will_be() -> None:
    base, new = {"a": "1", "gone": "1"}, {"a": "2", "come": "3"}
    assert mixture(base, new, ["a"]) == {"a": "2", "gone": "1"}
    assert mixture(base, new, ["gone", "come"]) == {"a": "1", "come": "3"}
    assert mixture(base, new, []) == base and mixture(base, new, ["a", "gone", "come"]) == new


def ran(groups: Sequence[tuple[str, ...]], shows: Callable[[int], Seen]) -> tuple[Search, int]:
    search, steps = Search(list(groups)), 0
    while (count := search.next()) is not None:
        search.saw(count, shows(sum(len(g) for g in search.groups[:count])))
        steps += 1
    return search, steps


@given(st.integers(1, 40), st.data())
def test_the_group_that_brings_the_change_is_found_by_halves(
    many: int, data: st.DataObject
) -> None:
    guilty = data.draw(st.integers(0, many - 1))
    groups = [(f"p{i}",) for i in range(many)]
    search, steps = ran(groups, lambda moved: "changed" if moved > guilty else "base")
    assert search.found() == (f"p{guilty}",)
    assert search.before() == [f"p{i}" for i in range(guilty)]
    assert steps <= many.bit_length()


@given(st.integers(2, 12), st.data())
def test_what_cannot_be_told_apart_is_said_to_move_together(many: int, data: st.DataObject) -> None:
    guilty = data.draw(st.integers(0, many - 1))
    dark = data.draw(st.sets(st.integers(1, many - 1)))

    def shows(moved: int) -> Seen:
        if moved in dark:
            return "refused"
        return "changed" if moved > guilty else "base"

    search, _ = ran([(f"p{i}",) for i in range(many)], shows)
    low, high = len(search.before()), len(search.before()) + len(search.found())
    assert low <= guilty < high
    assert all(place in dark for place in range(low + 1, high))


@pytest.mark.parametrize("seen", ["refused", "unclear"])
def test_two_packages_without_a_step_between_them_are_named_together(seen: Seen) -> None:
    search, steps = ran([("a",), ("b",)], lambda _: seen)
    assert (search.found(), search.before(), steps) == (("a", "b"), [], 1)
