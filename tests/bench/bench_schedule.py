"""Planning a night: how long 10,000 pending replays take to lay out, and how well that is done.

    python -m tests.bench.bench_schedule

64 simulated devices in 4 classes, all reasons; nothing runs. The end of the night is held against
what no schedule can beat. Targets: 1 s, and 2 % above that bound.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

from tests.bench.result import Result
from tests.night_fleet import Simulated, simulated

TARGET_S = 1.0
TARGET_PERCENT = 2.0


def measure(night: Simulated) -> tuple[float, float]:
    """(seconds to plan, percent by which the plan ends above its lower bound)."""
    begun = time.perf_counter()
    found = night.plan()
    took = time.perf_counter() - begun
    return took, 100.0 * (found.ends_s / night.bound_s(found) - 1.0)


def run(quick: bool = False) -> Iterator[Result]:
    """Two results; ``quick`` for a smoke test."""
    replays = 1000 if quick else 10_000
    found = [measure(simulated(replays, seed)) for seed in range(2 if quick else 10)]
    what = f"{replays:,} replays, 64 devices in 4 classes"
    yield Result(f"plan of a night, {what}", TARGET_S, tuple(took for took, _ in found), "s")
    yield Result(
        f"end of a night above the least possible, {what}",
        TARGET_PERCENT,
        tuple(percent for _, percent in found),
        "%",
    )


def main() -> None:
    """Print one JSON line per result."""
    for result in run():
        print(json.dumps(result.to_json()), flush=True)


if __name__ == "__main__":
    main()
