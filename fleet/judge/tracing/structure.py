"""Departures of structure: replays that call other modules, in another order, or of another class.

Whoever is told to be skipped or called once more is so by the calls of that step, never by its
place in a list. Pure.
"""

from __future__ import annotations

from fleet.evidence.trace import Call
from fleet.judge.tracing.culprit import Culprit
from fleet.judge.tracing.describe import Describer
from fleet.judge.tracing.history import History
from fleet.judge.tracing.proof import name_of
from fleet.judge.tracing.timeline import Departure


def structure(d: Departure, history: History, describer: Describer) -> Culprit:
    """The culprit of a departure in structure or class."""
    if d.what == "class":
        assert d.seen is not None and d.other is not None
        words = f"{d.seen.call.class_name} in one replay, {d.other.call.class_name} in another"
        return describer.culprit("heterogeneity", d.call.path, words, d)
    who = "replays " + ", ".join(str(r) for r in d.departed)
    sides = [o for o in (d.seen, d.other) if o is not None]
    if any(o.call.parent < 0 and o.phase == "in" for o in sides) or len(sides) < 2:
        how = "end here, the others go on" if d.seen else "go on, the others end here"
        return describer.culprit("structure", None, f"{who} {how}", d)
    for lacks, call in _lacking(d, history):
        how = "is not seen (skipped, or called past its hooks)" if lacks else "is called once more"
        words = f"{name_of(call.path)}, call {call.occurrence + 1}, {how} in {who}"
        return describer.culprit("structure", call.path, words, d, call=call)
    return _order(d, history, describer, who)


def _lacking(d: Departure, history: History) -> list[tuple[bool, Call]]:
    """Calls at the departure that the other side lacks; True when those who departed lack it."""
    stayed, gone = history.pair(d)
    found = []
    for observation, other, lacks in ((d.seen, gone, True), (d.other, stayed, False)):
        if observation is not None and observation.phase == "in":
            call = observation.call
            if history.twin(other, call) is None:
                found.append((lacks, call))
    return found


def _order(d: Departure, history: History, describer: Describer, who: str) -> Culprit:
    """Both sides make both calls, at other times."""
    assert d.seen is not None and d.other is not None
    call = d.seen.call
    owner = call if d.phase == "out" else history.caller(d.classes[0][0], call) or call
    moment = "the end of " if d.phase == "out" else ""
    words = f"{name_of(d.other.call.path)} comes before {moment}{name_of(call.path)} in {who}"
    return describer.culprit("structure", owner.path, words, d, call=owner)
