"""Which decisions about units are due: quarantine at p < 0.01, release after clean nights.

Reads the exact repeats of one contract on all its platforms, and the decisions recorded so far. A
release asks for nights of the same contract, on whatever platform the unit shows by then. Writes
nothing and knows no clock. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from fleet.contract.model import Require
from fleet.evidence.decisions import Decision, DecisionKey, in_force
from fleet.evidence.summary import AttemptSummary
from fleet.judge.charge import Replay, Suspicion, replays_of, suspicions, usual_root
from fleet.judge.sets import SetKey, groups

CHARGE_RULE = 1
"""Carried by every decision; rises when the same evidence could lead to another one."""

QUARANTINE_P = 0.01

CLEAN_NIGHTS = 14
"""A pair of replays a night makes 28: a fault that shows in one replay of ten stays hidden in all
of them with probability 0.9 ** 28 = 0.052. A rarer one may come back, and is then counted anew."""

REPLAYS_A_NIGHT = 2

NIGHT_S = 16 * 3600.0
"""All replays within so long of the first one are of one night: longer than any night, shorter than
from one evening to the next."""


def due(
    summaries: Sequence[AttemptSummary],
    require: Require,
    contract: str,
    decided: Iterable[Decision],
    as_of_s: float,
) -> list[Decision]:
    """Decisions that the evidence asks for and that are not recorded yet.

    Args:
        summaries: every attempt of one execution id.
        require: its grade is the one that roots are looked at.
        contract: a name of it, for the reader.
        decided: what is recorded.
        as_of_s: evidence accepted later is left out.
    """
    known = [s for s in summaries if s.accepted_at_s is not None and s.accepted_at_s <= as_of_s]
    sets = {key: m for key, m in groups(known).items() if key.platform and not key.vary}
    replays = {key: replays_of(members, require) for key, members in sets.items()}
    return due_of(replays, require.grade, contract, in_force(decided), as_of_s)


def due_of(
    sets: Mapping[SetKey, Sequence[Replay]],
    grade: str,
    contract: str,
    decided: Mapping[DecisionKey, Decision],
    as_of_s: float,
) -> list[Decision]:
    """:func:`due` of replays in order, by set; ``decided``: the newest decision of each key."""
    found: list[Decision] = []
    for key, replays in sets.items():
        about = _about(decided, key, grade)
        out = {d.unit for d in about if d.kind == "quarantined"}
        since_s = {d.unit: d.as_of_s for d in about if d.kind == "released"}
        found += [
            _quarantine(key, replays, s, grade, contract, as_of_s)
            for s in suspicions(replays, since_s)
            if s.p < QUARANTINE_P and s.unit not in out
        ]
    for decision in decided.values():
        mine = [r for key, r in sets.items() if decision in _about(decided, key, grade)]
        if decision.kind == "quarantined":
            found += _release(decision, mine, as_of_s)
    return found


def _about(decided: Mapping[DecisionKey, Decision], key: SetKey, grade: str) -> list[Decision]:
    """Of one contract and grade, whatever the platform."""
    wanted = (key.execution_id, key.traced, grade)
    return [d for d in decided.values() if (d.execution_id, d.traced, d.grade) == wanted]


def _quarantine(
    key: SetKey, replays: Sequence[Replay], s: Suspicion, grade: str, contract: str, as_of_s: float
) -> Decision:
    first = next(r for r in replays if r.attempt == s.raised_by)
    fresh = [r for r in replays if r > first]
    return Decision(
        kind="quarantined",
        unit=s.unit,
        contract=contract,
        execution_id=key.execution_id,
        platform=key.platform,
        traced=key.traced,
        grade=grade,
        as_of_s=as_of_s,
        rule=CHARGE_RULE,
        odd=s.fresh_odd,
        replays=s.fresh_replays,
        elsewhere_odd=s.elsewhere_odd,
        elsewhere_replays=s.elsewhere_replays,
        p=s.p,
        raised_by=s.raised_by,
        attempts=tuple(r.attempt for r in fresh if r.unit == s.unit),
        attempts_elsewhere=tuple(r.attempt for r in fresh if r.unit != s.unit),
    )


def _release(
    decision: Decision, sets: Sequence[Sequence[Replay]], as_of_s: float
) -> Iterator[Decision]:
    nights = clean_nights(decision.unit, sets, decision.as_of_s)
    if len(nights) < CLEAN_NIGHTS:
        return
    replays = [r for night in nights for r in night]
    mine = tuple(r.attempt for r in replays if r.unit == decision.unit)
    others = tuple(r.attempt for r in replays if r.unit != decision.unit)
    yield Decision(
        kind="released",
        unit=decision.unit,
        contract=decision.contract,
        execution_id=decision.execution_id,
        platform=decision.platform,
        traced=decision.traced,
        grade=decision.grade,
        as_of_s=as_of_s,
        rule=CHARGE_RULE,
        odd=0,
        replays=len(mine),
        elsewhere_odd=0,
        elsewhere_replays=len(others),
        nights=len(nights),
        attempts=mine,
        attempts_elsewhere=others,
    )


def clean_nights(unit: str, sets: Iterable[Sequence[Replay]], after_s: float) -> list[list[Replay]]:
    """The unit's nights since its last odd replay in which it agreed with others: their replays
    that agree.

    A night counts with at least two replays on the unit, and one elsewhere, that show the usual
    root. One with fewer, or of a class without a usual root, shows nothing.

    Args:
        unit: the quarantined one.
        sets: one contract's replays, by platform.
        after_s: the time of the decision; earlier replays are what it rests on.
    """
    told: list[tuple[float, bool, list[Replay]]] = []
    for replays in sets:
        usual = usual_root(replays)
        for night in _nights([r for r in replays if r.at_s > after_s]):
            agreeing = [r for r in night if r.root == usual]
            own = sum(r.unit == unit for r in agreeing)
            odd = usual is not None and own < sum(r.unit == unit for r in night)
            if odd or (own >= REPLAYS_A_NIGHT and len(agreeing) > own):
                told.append((night[0].at_s, odd, agreeing))
    clean: list[list[Replay]] = []
    for _, odd, agreeing in sorted(told):
        clean = [] if odd else [*clean, agreeing]
    return clean


def _nights(replays: Iterable[Replay]) -> Iterator[list[Replay]]:
    night: list[Replay] = []
    for replay in replays:
        if night and replay.at_s - night[0].at_s > NIGHT_S:
            yield night
            night = []
        night.append(replay)
    if night:
        yield night
