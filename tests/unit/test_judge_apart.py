"""All of one platform differ from all of another: which facts separate the two, exactly."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fleet.evidence.platform import FACTS, NOT_APPLICABLE, unreadable
from fleet.judge.apart import Apart, Candidate, apart, flattened
from fleet.judge.charge import Replay


def facts(**changes: Any) -> dict[str, Any]:
    packages = {"torch": {"version": "2.11.0", "record_sha256": "aa"}, "numpy": {"version": "2.3"}}
    base = {name: NOT_APPLICABLE for name in FACTS} | {"packages": packages, "environment": {}}
    return base | changes


def package(version: str, digest: str = "aa", name: str = "torch") -> dict[str, Any]:
    return facts()["packages"] | {name: {"version": version, "record_sha256": digest}}


def replays(**told: str) -> dict[str, list[Replay]]:
    """Platform -> its units' roots: ``y="BB"`` is two units that show B."""
    return {
        platform: [Replay(0.0, f"{platform}{n}", f"{platform}-{n}", r) for n, r in enumerate(roots)]
        for platform, roots in told.items()
    }


def found(told: dict[str, list[Replay]], platform: str = "y", **known: Any) -> Apart:
    answer = apart(told, platform, {name: facts() for name in told} | known)
    assert answer is not None
    return answer


def test_all_of_y_differ_from_all_of_x_and_the_driver_separates_them() -> None:
    answer = found(replays(x="AAA", y="BB"), x=facts(driver="570"), y=facts(driver="580"))
    assert (answer.here, answer.there, answer.units_here, answer.units_there) == (
        ("y",),
        ("x",),
        2,
        3,
    )
    assert answer.candidates == (Candidate("driver", ("580",), ("570",)),)
    assert answer.in_words() == "separated by driver (580, there 570): candidates"
    assert json.loads(json.dumps(answer.to_json()))["candidates"][0]["fact"] == "driver"


@pytest.mark.parametrize(
    "told", [{"x": "AA", "y": "AA"}, {"x": "AA", "y": "AB"}, {"x": "AB", "y": "BB"}, {"y": "BB"}]
)
def test_otherwise_nothing_is_said(told: dict[str, str]) -> None:
    assert apart(replays(**told), "y", {name: facts() for name in told}) is None


def test_more_platforms_leave_fewer_candidates() -> None:
    two = found(
        replays(x="A", y="B"),
        x=facts(driver="570", glibc="2.36"),
        y=facts(driver="580", glibc="2.39"),
    )
    assert [c.fact for c in two.candidates] == ["driver", "glibc"]
    four = found(
        replays(x="A", y="B", z="A", w="B"),
        x=facts(driver="570", glibc="2.36"),
        y=facts(driver="580", glibc="2.39"),
        z=facts(driver="575", glibc="2.39"),
        w=facts(driver="585", glibc="2.39"),
    )
    assert four.candidates == (Candidate("driver", ("580", "585"), ("570", "575")),)


def test_a_platform_that_shows_both_roots_is_on_neither_side() -> None:
    told = replays(x="A", y="B", z="AB")
    answer = found(told, x=facts(driver="570"), y=facts(driver="580"), z=facts(driver="580"))
    assert (answer.here, answer.there) == (("y",), ("x",))
    assert [c.fact for c in answer.candidates] == ["driver"]


def test_packages_are_named_one_by_one_with_their_versions() -> None:
    answer = found(replays(x="A", y="B"), x=facts(packages=package("2.13.0")))
    assert answer.candidates == (Candidate("packages.torch", ("2.11.0",), ("2.13.0",)),)


def test_one_version_with_other_content_is_shown_by_its_content() -> None:
    answer = found(replays(x="A", y="B"), x=facts(packages=package("2.11.0", "bb")))
    (only,) = answer.candidates
    assert only.here == ("record_sha256 aa version 2.11.0",)
    assert only.there == ("record_sha256 bb version 2.11.0",)


def test_absent_empty_and_zero_are_three_values() -> None:
    told = replays(x="A", y="B", z="A")
    answer = found(told, x=facts(environment={"X": ""}), y=facts(environment={"X": "0"}))
    assert answer.candidates == (Candidate("environment.X", ("0",), ("''", "absent")),)


def test_a_fact_that_could_not_be_read_is_no_candidate_and_is_said() -> None:
    answer = found(replays(x="A", y="B"), x=facts(driver=unreadable("a1", "no such file")))
    assert (answer.candidates, answer.unreadable) == ((), ("driver",))
    assert answer.in_words() == "no fact separates them; unreadable: driver"


def test_without_a_separating_fact_no_cause_is_invented() -> None:
    assert found(replays(x="A", y="B")).in_words() == "no fact separates them"


def test_flattened_facts_keep_an_unreadable_one_whole() -> None:
    shown = flattened(facts(cpu_isa={"level": "avx2"}, os=unreadable("a", "b")))
    assert shown["cpu_isa.level"] == "avx2" and shown["os"] == unreadable("a", "b")


def test_facts_are_flattened_at_any_depth_and_a_package_stays_one() -> None:
    torch = package("2.13.0")["torch"]
    deep = {"a": {"b": {"c": 1}, "d": 2}, "packages": {"torch": torch}}
    assert flattened(deep) == {"a.b.c": 1, "a.d": 2, "packages.torch": torch}
