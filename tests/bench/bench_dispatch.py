"""A night that loses units, against a schedule that knew it would.

    python -m tests.bench.bench_dispatch

64 simulated devices in 4 classes; two of a class go away in the night, one early and one late. Who
takes what is the board's to say, as in a real night; time is counted, nothing runs. What a lost
unit had begun is done again. Held against it: longest-first lists over the units and their last
moments, known beforehand. Target: 0.95 of the useful seconds when that schedule is done.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator, Mapping, Sequence

from fleet.schedule.board import Board
from fleet.schedule.night_terms import Item, Unit
from tests.bench.result import Result
from tests.night_fleet import simulated

TARGET = 0.95
LOST = {"u01": 0.2, "u05": 0.6}
"""Unit -> share of the planned night after which it is gone; both of class 1."""

NEVER = float("inf")


def dispatched(
    items: Sequence[Item], units: Sequence[Unit], gone_s: Mapping[str, float]
) -> list[tuple[float, float]]:
    """(end, seconds) of every set that was done, as the board hands them out."""
    now = [0.0]
    board = Board(items, NEVER, clock=lambda: now[0])
    board.seen({unit.name for unit in units})
    done: list[tuple[float, float]] = []
    order = {unit.name: unit for unit in units}
    free = [(0.0, name) for name in order]
    idle: list[str] = []
    heapq.heapify(free)
    while free:
        now[0], name = heapq.heappop(free)
        unit, ends_s = order[name], gone_s.get(name, NEVER)
        if now[0] >= ends_s:
            continue
        item = board.take(unit)
        if item is None:
            idle.append(name)
            continue
        end_s = now[0] + item.seconds
        if end_s <= ends_s:
            done.append((end_s, item.seconds))
            heapq.heappush(free, (end_s, name))
            continue
        now[0] = ends_s
        board.give_back(unit, [item])
        board.seen({n for n in order if gone_s.get(n, NEVER) > ends_s})
        for each in idle:
            heapq.heappush(free, (ends_s, each))
        idle.clear()
    return done


def offline(
    items: Sequence[Item], units: Sequence[Unit], gone_s: Mapping[str, float]
) -> list[tuple[float, float]]:
    """The same, longest first on the unit where it ends first, by somebody who knows the losses."""
    free_s = {unit.name: 0.0 for unit in units}
    done: list[tuple[float, float]] = []
    for item in sorted(items, key=lambda i: (i.role != "control", -i.seconds)):
        own = [item.unit] if item.fixed else [u for u in units if u.kind == item.unit.kind]
        ends = [(free_s[u.name] + item.seconds, u.name) for u in own]
        fit = [(end, name) for end, name in ends if end <= gone_s.get(name, NEVER)]
        if fit:
            end, name = min(fit)
            free_s[name] = end
            done.append((end, item.seconds))
    return done


def efficiency(seed: int, replays: int) -> float:
    """Useful seconds done by the end of the offline schedule, over all of its own."""
    night = simulated(replays, seed, mixed=False)
    plan = night.plan()
    gone_s = {name: share * plan.ends_s for name, share in LOST.items()}
    best = offline(plan.items, night.units, gone_s)
    until_s = max(end for end, _ in best)
    ours = dispatched(plan.items, night.units, gone_s)
    return sum(s for end, s in ours if end <= until_s) / sum(s for _, s in best)


def run(quick: bool = False) -> Iterator[Result]:
    """One result; ``quick`` for a smoke test."""
    seeds, replays = (range(2), 1000) if quick else (range(10), 4000)
    shares = tuple(efficiency(seed, replays) for seed in seeds)
    what = f"useful seconds of a night that loses 2 of 64 units, {replays:,} replays"
    yield Result(what, TARGET, shares, "of offline", better="higher")


def main() -> None:
    """Print one JSON line."""
    for result in run():
        print(json.dumps(result.to_json()), flush=True)


if __name__ == "__main__":
    main()
