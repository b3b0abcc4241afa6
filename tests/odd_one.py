"""A fleet of 64 units in 4 classes, simulated night by night, and who is charged with its faults.

    python -m tests.odd_one [--runs 200] [--nights 30]

Only replays are simulated: what is odd, who is charged and what is decided is the product's own
code. A night is a pair of exact repeats on every unit, quarantined ones included, in a shuffled
order; then another pair on each unit that is odd and not quarantined yet, and on as many others of
its class; then decisions. Each run has its own seed, and a scenario the same seeds every time.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from fleet.evidence.decisions import Decision, in_force
from fleet.judge.charge import Replay, Suspicion, charge, suspicions
from fleet.judge.quarantine import QUARANTINE_P, due_of
from fleet.judge.separation import fisher_one_sided
from fleet.judge.sets import SetKey

DAY_S = 86400.0
CLASSES, UNITS_A_CLASS = 4, 16
UNITS = CLASSES * UNITS_A_CLASS
USUAL = "usual"

Root = Callable[[int, int, random.Random], str]
"""(unit, night, chance) -> the root that a replay shows."""


def race(p: float) -> Callable[[random.Random], str]:
    """Another root each time, in a share p of replays."""
    return lambda chance: f"{chance.random()}" if chance.random() < p else USUAL


@dataclass(frozen=True)
class Scenario:
    """``faulty``: units at fault, none when a class is. ``right``: the charge of class 0.

    ``contracts``: a night runs one of so many, in turn; the fault shows in the first of them only.
    """

    name: str
    root: Root
    right: str | None
    faulty: frozenset[int] = frozenset()
    contracts: int = 1


def _racy_class(p: float) -> Root:
    return lambda unit, night, chance: race(p)(chance) if unit < UNITS_A_CLASS else USUAL


SCENARIOS = (
    Scenario("all clean", lambda *_: USUAL, None),
    Scenario("one bad unit", lambda u, *_: USUAL if u else "bad", "unit", frozenset({0})),
    Scenario("repaired after night 5", lambda u, night, _: "bad" if not u and night < 5 else USUAL,
             "unit", frozenset({0})),
    Scenario("two bad units of a class", lambda u, *_: f"bad {u}" if u < 2 else USUAL,
             "unit", frozenset({0, 1})),
    Scenario("rare race on one unit, 0.1", lambda u, _, c: USUAL if u else race(0.1)(c),
             "unit", frozenset({0})),
    Scenario("odd in 1 of 8 contracts", lambda u, *_: USUAL if u else "bad",
             "unit", frozenset({0}), contracts=8),
    Scenario("racy class, 0.3", _racy_class(0.3), "class"),
    Scenario("racy class, 0.03", _racy_class(0.03), "class"),
)  # fmt: skip


@dataclass
class Run:
    """One fleet. ``sets``: (contract, class) -> its replays in order."""

    scenario: Scenario
    seed: int
    sets: dict[tuple[int, int], list[Replay]] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)
    charges: list[str | None] = field(default_factory=list)
    uncorrected: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.count = 0

    def night(self, night: int) -> None:
        """Pairs on all units, pairs again where something is odd, then what is due."""
        contract, at_s = night % self.scenario.contracts, night * DAY_S
        order = self.chance.sample(range(UNITS), UNITS)
        self._replay(contract, night, at_s, order)
        out = {d.unit for d in in_force(self.decisions).values() if d.kind == "quarantined"}
        again = [
            int(s.unit)
            for number in range(CLASSES)
            for s in suspicions(self.sets[contract, number])
            if s.unit not in out
        ]
        others = [self.chance.choice([o for o in mates(u) if o not in again] or [u]) for u in again]
        self._replay(contract, night, at_s + DAY_S / 4, [*again, *others])
        sets = {
            SetKey(f"contract {contract}", f"class {number}", (), False): self.sets[
                contract, number
            ]
            for number in range(CLASSES)
        }
        decided = in_force(self.decisions)
        self.decisions += due_of(sets, "logits", "simulated", decided, at_s + DAY_S / 2)
        here = self.sets[0, 0]
        self.uncorrected |= {int(s.unit) for s in suspicions(here) if _fisher(s) < QUARANTINE_P}
        self.charges.append(charge(here).charge if len({r.root for r in here}) > 1 else None)

    def _replay(self, contract: int, night: int, at_s: float, units: Iterable[int]) -> None:
        for place, unit in enumerate(u for u in units for _ in range(2)):
            shows = self.scenario.root if contract == 0 else lambda *_: USUAL
            root = shows(unit, night, self.chance)
            replay = Replay(at_s + place, f"{self.count:06d}", str(unit), root)
            self.sets.setdefault((contract, unit // UNITS_A_CLASS), []).append(replay)
            self.count += 1

    def decided(self, kind: str, faulty: bool) -> list[Decision]:
        """Decisions about units that are at fault, or about the others."""
        units = {str(u) for u in self.scenario.faulty}
        return [d for d in self.decisions if d.kind == kind and (d.unit in units) == faulty]


def _fisher(s: Suspicion) -> float:
    """What p would be if the number of odd units did not count."""
    return fisher_one_sided(s.fresh_odd, s.fresh_replays, s.elsewhere_odd, s.elsewhere_replays)


def mates(unit: int) -> list[int]:
    """The other units of a class."""
    first = unit - unit % UNITS_A_CLASS
    return [u for u in range(first, first + UNITS_A_CLASS) if u != unit]


def simulated(scenario: Scenario, runs: int, nights: int = 30) -> list[Run]:
    """Seeded runs."""
    made = [Run(scenario, seed) for seed in range(runs)]
    for run in made:
        for night in range(nights):
            run.night(night)
    return made


@dataclass(frozen=True)
class Rates:
    """Shares of runs, but for the nights: counted from the first one, of the runs that decided.

    ``other_charge``: charged otherwise, which neither *undecided* nor a fault that never showed is.
    ``wrong_quarantine``: a unit that is not at fault was quarantined; ``uncorrected``: would have
    been, by Fisher's p alone.
    """

    right_charge: float
    other_charge: float
    wrong_quarantine: float
    uncorrected: float
    quarantined: float
    median_nights: float | None
    released: float

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Rates:
        """What happened to the units at fault, to the others, and to the charge at the end."""
        right = runs[0].scenario.right
        wrong = {"class", "unit"} - {right}
        first = [found[0] for run in runs if (found := run.decided("quarantined", faulty=True))]
        nights = [int(decision.as_of_s // DAY_S) + 1 for decision in first]
        return cls(
            right_charge=_share(run.charges[-1] == right for run in runs),
            other_charge=_share(run.charges[-1] in wrong for run in runs),
            wrong_quarantine=_share(bool(run.decided("quarantined", faulty=False)) for run in runs),
            uncorrected=_share(bool(run.uncorrected - run.scenario.faulty) for run in runs),
            quarantined=_share(bool(run.decided("quarantined", faulty=True)) for run in runs),
            median_nights=statistics.median(nights) if nights else None,
            released=_share(bool(run.decided("released", faulty=True)) for run in runs),
        )


def _share(told: Iterable[bool]) -> float:
    return statistics.mean(told)


COLUMNS = (
    "right", "wrong", "good out", "uncorrected", "faulty out", "median nights", "released",
)  # fmt: skip


def line(name: str, rates: Rates) -> str:
    """One row of the table."""
    nights = "-" if rates.median_nights is None else f"{rates.median_nights:g}"
    shares = [f"{value:.1%}" for value in (rates.right_charge, rates.other_charge,
              rates.wrong_quarantine, rates.uncorrected, rates.quarantined)]  # fmt: skip
    cells = [*shares, nights, f"{rates.released:.1%}"]
    return f"{name:28}" + "".join(f"{cell:>14}" for cell in cells)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.odd_one")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--nights", type=int, default=30)
    given = parser.parse_args()
    print(
        f"{f'{given.runs} runs of {given.nights} nights':28}" + "".join(f"{c:>14}" for c in COLUMNS)
    )
    for scenario in SCENARIOS:
        rates = Rates.of(simulated(scenario, given.runs, given.nights))
        print(line(scenario.name, rates), flush=True)


if __name__ == "__main__":
    main()
