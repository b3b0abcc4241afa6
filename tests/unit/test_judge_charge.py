"""To whom a mismatch is charged, by hand-made replays in a known order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from fleet.contract.model import Require
from fleet.evidence.summary import AttemptSummary
from fleet.judge.charge import Charge, Replay, charge, charge_of, suspicions, usual_root
from fleet.judge.separation import fisher_one_sided
from tests.unit.evidence_builders import dataset, flipped_logits, judged, replay, summary


def seen(*told: str) -> list[Replay]:
    """``"u:AAB"``: three replays on u with these roots, in the order told."""
    pairs = []
    for one in told:
        unit, _, roots = one.partition(":")
        pairs += [(unit, root) for root in roots]
    return [Replay(float(at), f"{at:04d}", unit, root) for at, (unit, root) in enumerate(pairs)]


def clean(count: int, roots: str = "AA") -> list[str]:
    return [f"v{number}:{roots}" for number in range(count)]


# Fisher's exact test


@pytest.mark.parametrize(
    ("table", "exact"),
    [((4, 4, 0, 4), 1 / 70), ((3, 4, 1, 4), 17 / 70), ((2, 4, 2, 4), 53 / 70)],
    ids=["all four cups", "three cups", "two cups"],
)
def test_the_lady_tasting_tea(table: tuple[int, int, int, int], exact: float) -> None:
    assert fisher_one_sided(*table) == exact


def test_the_convictions_of_twins_are_as_published() -> None:
    """Fisher's own second example, as R documents it: p = 0.0004652."""
    assert f"{fisher_one_sided(10, 13, 2, 17):.4g}" == "0.0004652"


def test_a_side_without_replays_proves_nothing() -> None:
    assert fisher_one_sided(0, 0, 0, 50) == fisher_one_sided(9, 9, 0, 0) == 1.0


def test_a_large_table_is_exact_too() -> None:
    assert fisher_one_sided(2, 2, 0, 9998) == 1 / (10000 * 9999 / 2)


@pytest.mark.parametrize("table", [(2, 1, 0, 1), (-1, 1, 0, 1), (0, 1, 2, 1), (0, 1, -1, 1)])
def test_more_odd_ones_than_replays_are_an_error(table: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="odd replays are some of all"):
        fisher_one_sided(*table)


# the usual root


def test_each_unit_has_one_vote_however_often_it_was_looked_at() -> None:
    assert usual_root(seen("u:BBBBBBBBBB", "v:A", "w:A")) == "A"


@pytest.mark.parametrize("told", [["u:A", "v:B"], ["u:AB", "v:BA"], ["u:A", "v:AB", "w:B", "x:AA"]])
def test_half_of_the_units_are_no_majority(told: list[str]) -> None:
    assert usual_root(seen(*told)) is None


# suspicion


def test_the_replay_that_raised_the_suspicion_does_not_count() -> None:
    (found,) = suspicions(seen(*clean(20), "u:B"))
    assert (found.raised_by, found.odd, found.replays) == ("0040", 1, 1)
    assert (found.fresh_odd, found.fresh_replays, found.p, found.suspect) == (0, 0, 1.0, False)


def test_what_others_did_before_it_does_not_count_either() -> None:
    (found,) = suspicions(seen(*clean(20), "u:BB", "v0:A", "v1:A"))
    assert (found.elsewhere_odd, found.elsewhere_replays) == (0, 2)
    assert (found.fresh_odd, found.fresh_replays, found.p) == (1, 1, 1 / 3)


def test_a_unit_is_suspect_at_one_in_twenty() -> None:
    (at,) = suspicions(seen("u:BB", *clean(19, "A")))
    (above,) = suspicions(seen("u:BB", *clean(18, "A")))
    assert (at.p, at.suspect) == (1 / 20, True)
    assert (above.p, above.suspect) == (1 / 19, False)


def test_a_retest_yields_a_rate_and_no_absolution() -> None:
    (found,) = suspicions(seen("u:BBBB", *clean(20), "u:AAA", "v0:AAA"))
    assert (found.odd, found.replays, found.roots) == (4, 7, 2)
    assert found.suspect
    assert "unit u suspect 3/6 vs 0/43" in found.in_words()


def test_every_odd_unit_is_a_test_and_counts_as_one() -> None:
    one = suspicions(seen("u:BBB", *clean(20)))[0]
    (u, w) = suspicions(seen("u:BBB", *clean(20), "w:C"))
    assert (one.p, u.unit, w.unit) == (fisher_one_sided(2, 2, 0, 40), "u", "w")
    assert u.p == 2 * fisher_one_sided(2, 2, 1, 41)


def test_before_a_release_nothing_raises_a_suspicion() -> None:
    replays = seen("u:BBB", *clean(20), "u:AB", "v0:A", "u:B")
    (found,) = suspicions(replays, {"u": 10.0})
    assert (found.raised_by, found.fresh_odd, found.fresh_replays) == ("0044", 1, 1)
    assert suspicions(replays, {"u": 1000.0}) == ()


# the charge


def told(*lines: str) -> tuple[str, str]:
    found = charge(seen(*lines))
    return found.charge, found.words


def test_a_bad_unit_is_charged_and_shown_as_k_of_n() -> None:
    found = told("u:BBBB", *clean(20))
    assert found == ("unit", "unit u suspect 3/3 vs 0/40, p=8.1e-05")


def test_one_odd_replay_is_not_enough() -> None:
    assert told(*clean(20), "u:B", *clean(2, "A"))[0] == "undecided"


def test_a_unit_that_differs_from_itself_is_a_race_and_the_class_is_not_excluded() -> None:
    word, words = told(*clean(3), "u:AAB", *clean(3))
    assert word == "undecided"
    assert words.startswith("race on unit u, class not excluded: odd 1/3, fresh 0/0 vs 0/6")


@pytest.mark.parametrize("roots", ["AAB", "AB"], ids=["a usual root", "none"])
def test_alone_it_cannot_be_told_from_its_class(roots: str) -> None:
    word, words = told(f"u:{roots}")
    assert (word, words.startswith("race on unit u, class not excluded")) == ("undecided", True)


def test_a_race_that_separates_is_charged_and_leaves_a_rarer_one_elsewhere_open() -> None:
    word, words = told("u:B", *clean(20), "u:ABAAB", *clean(20))
    assert word == "unit"
    assert words.startswith("unit u suspect 2/5 vs 0/80")
    assert words.endswith("(a race there; a rarer one elsewhere not excluded)")


def test_several_odd_units_of_which_none_separates_are_the_class() -> None:
    lines = ["u:AAB", "v:ABA", "w:AAA", "x:ABA", "y:AAA"]
    word, words = told(*lines, *lines, *lines)
    assert word == "class"
    assert words.startswith("3 of 5 units odd, none separates: race on unit ")


def test_two_units_that_were_not_looked_at_again_are_not_the_class() -> None:
    assert told(*clean(20), "u:B", "w:C")[0] == "undecided"


def test_two_bad_units_are_both_charged() -> None:
    word, words = told("u:BBBBB", "w:CCCCC", *clean(20))
    assert word == "unit"
    assert "unit u suspect" in words and "unit w suspect" in words


def test_one_that_separates_beside_one_that_does_not_leaves_it_undecided() -> None:
    word, words = told("u:BBBBBB", *clean(20), "w:AB", "w:AAAA")
    assert word == "undecided"
    assert "unit u suspect" in words and "race on unit w, class not excluded" in words


def test_two_units_that_agree_with_themselves_and_not_with_each_other_need_a_third() -> None:
    assert told("u:AAA", "v:BBB") == (
        "undecided", "two units differ, each agrees with itself: a third one would tell",
    )  # fmt: skip


@pytest.mark.parametrize("lines", [["u:AB", "v:CD"], ["u:AA", "v:AA", "w:BB", "x:BB"]])
def test_without_a_usual_root_it_is_the_class(lines: list[str]) -> None:
    assert told(*lines)[0] == "class"


def test_many_odd_units_are_named_by_the_first_few() -> None:
    word, words = told(*[f"r{number}:AAB" for number in range(9)] * 4)
    assert (word, words.endswith("; 5 more")) == ("class", True)


# of attempts


def attempts(roots: Iterable[str], **changes: object) -> list[AttemptSummary]:
    rows = {"A": dataset(), "B": flipped_logits(dataset(), 1)}
    return [
        summary(f"{number:04d}", rows[root], accepted_at_s=float(number), **changes)
        for number, root in enumerate(roots)
    ]


def test_one_root_is_no_mismatch() -> None:
    assert charge_of(attempts("AAAA"), Require()) is None


def test_only_good_replays_at_the_required_grade_are_looked_at() -> None:
    found = attempts("AAAB")
    assert charge_of(found, Require()) is not None
    assert charge_of(found, Require(grade="tokens")) is None
    for change in ({"accepted_at_s": None}, {"purpose": "screen"}, {"state": "VOID"}):
        assert charge_of([*found[:3], replace(found[3], **change)], Require()) is None


def test_varied_replays_charge_no_unit() -> None:
    found = charge_of(attempts("AAAB", vary=("threads",)), Require())
    assert found == Charge("undecided", "what was varied may be behind it: no unit is charged")


def test_the_charge_changes_no_verdict() -> None:
    """One bad unit of three, charged or not: two roots over units that agree with themselves."""
    odd = flipped_logits(dataset(), 1)
    cases = [
        replay(f"{unit}{n}", odd if unit == "u" else dataset(), unit=unit, slot=n)
        for unit in "uvw"
        for n in range(2)
    ]
    assert charge_of([case[0] for case in cases], Require()) is not None
    assert judged(cases, Require(scope="same-class")).verdict == "FAIL"
    own = judged(cases, Require(scope="same-unit"))
    assert (own.verdict, own.scope) == ("PASS", "same-unit")
    assert "2 classes over 3 units" in " ".join(own.warnings)
    within = judged([*cases, replay("u2", dataset(), unit="u", slot=2)], Require(scope="same-unit"))
    assert within.verdict == "FAIL"
