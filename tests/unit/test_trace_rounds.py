"""Which traced replays follow which: rounds of tracing and repeating, without a process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.errors import UsageError
from fleet.evidence.landing import Landing
from fleet.evidence.states import Cause
from fleet.evidence.trace import Trace
from fleet.replay.task import TraceOrder
from fleet.schedule.driver import AttemptEnd
from fleet.schedule.plan import Slot, Work
from fleet.schedule.resolve import Resolved
from fleet.schedule.tracing import TracePlan, Tracing, check_step
from tests.campaigns import planned_in, write_configs
from tests.unit.hand_traces import trace_of


class Landed(Tracing):
    """Traces by attempt, instead of a landing."""

    landed: dict[str, Trace]

    def _read(self, attempts: Sequence[str]) -> list[Trace]:
        return [self.landed[a] for a in attempts]


@pytest.fixture
def resolved(tmp_path: Path) -> Resolved:
    write_configs(tmp_path / "configs")
    return planned_in(tmp_path)[1].named[0]


def tracing(resolved: Resolved, tmp_path: Path, *traces: Trace) -> Landed:
    plan = TracePlan(resolved, Work("trace", ("s0",), ("current",), TraceOrder()), 2)
    follow = Landed(Landing(tmp_path), {resolved.name: plan})
    follow.landed = {t.attempt: t for t in traces}
    return follow


def ended(slots: Sequence[Slot], *names: str) -> list[AttemptEnd]:
    return [AttemptEnd(name, s, "COMPLETE", None) for name, s in zip(names, slots, strict=True)]


def test_a_clean_pair_of_traces_asks_for_nothing_more(resolved: Resolved, tmp_path: Path) -> None:
    follow = tracing(resolved, tmp_path, trace_of("a", b"o"), trace_of("b", b"o"))
    first = follow.plans[resolved.name].first_slots(0)
    assert follow(ended(first, "a", "b")) == []


def test_a_differing_call_is_repeated_in_another_fresh_process(
    resolved: Resolved, tmp_path: Path
) -> None:
    follow = tracing(resolved, tmp_path, trace_of("a", b"o"), trace_of("b", b"p"))
    ends = ended(follow.plans[resolved.name].first_slots(0), "a", "b")
    (slot,) = follow(ends)
    assert slot.index == 2
    assert slot.work is not None and slot.work.trace is not None
    (target,) = slot.work.trace.targets
    assert (target.path, target.step, slot.work.trace.repeats) == ("layer", 0, 200)


def test_a_proven_race_ends_the_repeats_and_a_clean_repeat_has_one_more(
    resolved: Resolved, tmp_path: Path
) -> None:
    pair = (trace_of("a", b"o"), trace_of("b", b"p"))
    for unique, more in ((3, 0), (1, 1)):
        follow = tracing(resolved, tmp_path, *pair, trace_of("c", b"o", unique=unique))
        ends = ended(follow.plans[resolved.name].first_slots(0), "a", "b")
        ends += ended(follow(ends), "c")
        assert len(follow(ends)) == more


def test_every_process_has_its_turn_once_and_no_more(resolved: Resolved, tmp_path: Path) -> None:
    traces = [trace_of("a", b"o"), trace_of("b", b"p")]
    traces += [trace_of(name, b"o", unique=1) for name in "cd"]
    follow = tracing(resolved, tmp_path, *traces)
    ends = ended(follow.plans[resolved.name].first_slots(0), "a", "b")
    for name in "cd":
        ends += ended(follow(ends), name)
    assert follow(ends) == []


def test_repeats_that_never_end_are_not_asked_for_for_ever(
    resolved: Resolved, tmp_path: Path
) -> None:
    follow = tracing(resolved, tmp_path, trace_of("a", b"o"), trace_of("b", b"p"))
    ends = ended(follow.plans[resolved.name].first_slots(0), "a", "b")
    for name in "cd":
        (end,) = ended(follow(ends), name)
        ends.append(replace(end, state="FAILED", cause=Cause("killed", "by a signal")))
    assert follow(ends) == []


def test_a_replay_that_ended_early_is_no_trace(resolved: Resolved, tmp_path: Path) -> None:
    follow = tracing(resolved, tmp_path, trace_of("a", b"o"), trace_of("b", b"p"))
    ends = ended(follow.plans[resolved.name].first_slots(0), "a", "b")
    killed = replace(ends[1], state="FAILED", cause=Cause("killed", "by a signal"))
    assert follow([ends[0], killed]) == []


def test_failing_contracts_are_asked_for_once(resolved: Resolved, tmp_path: Path) -> None:
    asked: list[int] = []

    def failing() -> list[TracePlan]:
        asked.append(1)
        return [TracePlan(resolved, Work("trace", ("s0",), ("current",), TraceOrder()), 2)]

    follow = Landed(Landing(tmp_path), {}, failing)
    follow.landed = {name: trace_of(name, b"o") for name in "ab"}
    slots = follow([])
    assert [slot.contract for slot in slots] == [resolved.name] * 2
    assert follow(ended(slots, "a", "b")) == []
    assert asked == [1]


@pytest.mark.parametrize("text", ["all", "prefill", "0", "12"])
def test_a_step_is_a_word_or_a_number(text: str) -> None:
    assert check_step(text) == text


@pytest.mark.parametrize("text", ["first", "-1", "1.5", ""])
def test_another_step_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="all, prefill, or a step number from 0"):
        check_step(text)
