"""When a unit is quarantined, and after which nights it is released."""

from __future__ import annotations

from collections.abc import Sequence

from fleet.contract.model import Require
from fleet.evidence.decisions import Decision, in_force
from fleet.judge.charge import Replay
from fleet.judge.quarantine import CLEAN_NIGHTS, QUARANTINE_P, clean_nights, due, due_of
from fleet.judge.separation import fisher_one_sided
from fleet.judge.sets import SetKey
from tests.unit.evidence_builders import dataset, flipped_logits, summary

DAY_S = 86400.0
KEY = SetKey("sha256:e", "sha256:p", (), False)
GOOD, BAD = "good", "bad"


def night(number: float, u: str = "AA", others: str = "AAAA", start: int = 0) -> list[Replay]:
    """Replays of one night, a minute apart: those on u, then one on each other unit."""
    shown = [("u", root) for root in u] + [(f"v{n}", root) for n, root in enumerate(others)]
    return [
        Replay(number * DAY_S + 60.0 * at, f"{number}-{at}", unit, root)
        for at, (unit, root) in enumerate(shown, start)
    ]


def decided(
    replays: Sequence[Replay], known: Sequence[Decision] = (), as_of_s: float = 1e9
) -> list[Decision]:
    return due_of({KEY: replays}, "logits", "toy", in_force(known), as_of_s)


def quarantine(replays: Sequence[Replay], as_of_s: float) -> Decision:
    (made,) = decided(replays, as_of_s=as_of_s)
    assert made.kind == "quarantined"
    return made


BAD_NIGHT = night(0, "BBB", "A" * 20)
OUT = quarantine(BAD_NIGHT, as_of_s=DAY_S / 2)


def test_a_decision_says_what_it_rests_on_and_can_be_derived_again() -> None:
    assert (OUT.unit, OUT.contract, OUT.platform, OUT.grade) == ("u", "toy", "sha256:p", "logits")
    assert (OUT.odd, OUT.replays, OUT.elsewhere_odd, OUT.elsewhere_replays) == (2, 2, 0, 20)
    assert OUT.raised_by == "0-0" and OUT.raised_by not in OUT.attempts
    assert OUT.attempts == ("0-1", "0-2")
    assert OUT.attempts_elsewhere == tuple(r.attempt for r in BAD_NIGHT[3:])
    assert OUT.p == fisher_one_sided(2, 2, 0, 20) < QUARANTINE_P
    assert OUT.in_words() == "quarantined 1970-01-01 on toy, 2/2 vs 0/20, p=0.0043"


def test_a_suspect_is_not_quarantined_yet() -> None:
    assert fisher_one_sided(2, 2, 0, 12) > QUARANTINE_P
    assert decided(night(0, "BBB", "A" * 12)) == []


def test_what_is_recorded_is_not_due_again() -> None:
    assert decided(BAD_NIGHT, [OUT]) == []


def test_another_grade_or_contract_is_another_decision() -> None:
    (other,) = due_of({KEY: BAD_NIGHT}, "tokens", "toy", in_force([OUT]), 1e9)
    assert other.key != OUT.key
    sets = {KEY._replace(execution_id="x"): BAD_NIGHT}
    (other,) = due_of(sets, "logits", "toy", in_force([OUT]), 1e9)
    assert other.execution_id == "x"


def test_evidence_accepted_later_is_left_out() -> None:
    rows = {GOOD: dataset(), BAD: flipped_logits(dataset(), 1)}
    attempts = [
        summary(r.attempt, rows[BAD if r.root == "B" else GOOD], unit=r.unit, accepted_at_s=r.at_s)
        for r in BAD_NIGHT
    ]
    (made,) = due(attempts, Require(), "toy", (), BAD_NIGHT[-1].at_s)
    assert (made.unit, made.attempts) == ("u", OUT.attempts)
    assert due(attempts, Require(), "toy", (), BAD_NIGHT[-1].at_s - 600.0) == []


def test_varied_replays_quarantine_nobody() -> None:
    rows = {GOOD: dataset(), BAD: flipped_logits(dataset(), 1)}
    attempts = [
        summary(r.attempt, rows[BAD if r.root == "B" else GOOD], unit=r.unit, accepted_at_s=r.at_s,
                vary=("threads",))
        for r in BAD_NIGHT
    ]  # fmt: skip
    assert due(attempts, Require(), "toy", (), 1e9) == []


# release


def nights(count: int, first: int = 1) -> list[Replay]:
    return [r for number in range(first, first + count) for r in night(number)]


def released(replays: Sequence[Replay]) -> list[Decision]:
    return decided([*BAD_NIGHT, *replays], [OUT])


def test_after_clean_nights_on_which_it_agreed_with_the_others_it_is_released() -> None:
    assert released(nights(CLEAN_NIGHTS - 1)) == []
    (made,) = released(nights(CLEAN_NIGHTS))
    assert (made.kind, made.unit, made.nights, made.key) == ("released", "u", 14, OUT.key)
    assert (made.odd, made.replays, made.elsewhere_replays) == (0, 28, 56)
    assert made.in_words().endswith("on toy after 14 clean nights, 28 replays")


def test_a_night_with_an_odd_replay_starts_the_count_again() -> None:
    broken = night(CLEAN_NIGHTS, "AAB")
    assert released([*nights(CLEAN_NIGHTS - 1), *broken, *nights(5, CLEAN_NIGHTS + 1)]) == []
    assert released([*nights(3), *night(4, "BB"), *nights(CLEAN_NIGHTS, 5)])


def test_nights_that_show_nothing_count_for_nothing() -> None:
    few = [*nights(CLEAN_NIGHTS - 1), *night(CLEAN_NIGHTS, "A")]
    alone = [*nights(CLEAN_NIGHTS - 1), *night(CLEAN_NIGHTS, "AA", "")]
    assert released(few) == released(alone) == []
    assert released([*few, *night(CLEAN_NIGHTS + 1)])


def test_fourteen_campaigns_of_one_day_are_one_night() -> None:
    day = [r for hour in range(14) for r in night(1 + hour / 24)]
    assert len(clean_nights("u", [[*BAD_NIGHT, *day]], OUT.as_of_s)) == 1
    assert released(day) == []


def test_a_night_across_midnight_is_one_night() -> None:
    evening, morning = night(1 - 2 / 24), night(1 + 2 / 24)
    assert len(clean_nights("u", [[*BAD_NIGHT, *evening, *morning]], OUT.as_of_s)) == 1


def test_nights_on_the_platform_that_the_unit_shows_by_then_count() -> None:
    updated = {KEY: BAD_NIGHT, KEY._replace(platform="new"): nights(CLEAN_NIGHTS)}
    (made,) = due_of(updated, "logits", "toy", in_force([OUT]), 1e9)
    assert made.kind == "released"


def test_nights_of_another_contract_do_not_count() -> None:
    other = {KEY: BAD_NIGHT, KEY._replace(execution_id="other"): nights(CLEAN_NIGHTS)}
    assert due_of(other, "logits", "toy", in_force([OUT]), 1e9) == []


def test_a_released_unit_that_is_odd_again_is_quarantined_again_by_new_evidence_alone() -> None:
    clean = nights(CLEAN_NIGHTS)
    (back,) = decided([*BAD_NIGHT, *clean], [OUT], as_of_s=20 * DAY_S)
    assert decided([*BAD_NIGHT, *clean], [OUT, back]) == []
    first = [*BAD_NIGHT, *clean, *night(21, "B", "A" * 20)]
    assert decided(first, [OUT, back]) == []
    (again,) = decided([*first, *night(22, "BB", "A" * 20)], [OUT, back])
    assert (again.kind, again.raised_by, again.replays) == ("quarantined", "21-0", 2)
