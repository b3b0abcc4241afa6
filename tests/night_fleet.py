"""A simulated night over 64 devices in 4 classes, for tests and the benchmark of the planner.

Durations are drawn once from a seed; nothing runs. The bound is what no schedule can beat: in each
class the mean load of its devices, or its longest claim, after the controls that come first.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from fleet.schedule.night import plan_night
from fleet.schedule.night_terms import Claim, History, Known, NightPlan, Unit, Wanted

CLASSES, DEVICES = 4, 64
CONTROLS = (Wanted("racy"), Wanted("clean"))
NAMES = tuple(control.name for control in CONTROLS)
ENDLESS_S = 1e12


@dataclass(frozen=True)
class Simulated:
    """Everything that a plan takes."""

    wanted: tuple[Wanted, ...]
    units: tuple[Unit, ...]
    history: History

    def plan(self, budget_s: float = ENDLESS_S, seed: int = 0) -> NightPlan:
        """The night."""
        return plan_night(self.wanted, CONTROLS, self.units, self.history, budget_s, seed)

    def bound_s(self, plan: NightPlan) -> float:
        """No schedule of what is planned ends sooner."""
        found = 0.0
        for kind in {unit.kind for unit in self.units}:
            mine = [item for item in plan.items if item.unit.kind == kind]
            num = sum(unit.kind == kind for unit in self.units)
            named = [item.seconds for item in mine if item.role == "named"]
            controls_s = sum(item.seconds for item in mine if item.role == "control") / num
            found = max(found, sum(i.seconds for i in mine) / num, controls_s + max(named))
        return found


def simulated(replays: int, seed: int, mixed: bool = True) -> Simulated:
    """At least so many pending replays, in pairs; ``mixed``: of all reasons, else never tested.

    One replay takes 20 s to 20 min, most of them little.
    """
    chance = random.Random(seed)
    kinds = [f"class {n}" for n in range(CLASSES)]
    units = tuple(Unit(f"u{n:02}", f"n{n // 8}", kinds[n % CLASSES]) for n in range(DEVICES))
    count = replays // (2 * CLASSES)
    wanted = tuple(Wanted(f"c{n:04}", controls=NAMES) for n in range(count))
    pairs = [(each.name, kind) for each in wanted for kind in kinds]
    seconds = {pair: 20.0 * 60.0 ** chance.random() for pair in pairs}
    seconds |= {(name, kind): 30.0 for name in NAMES for kind in kinds}
    states = [Known("UNTESTED"), Known("STALE", 40 * 86400.0), Known("PASS", 20 * 86400.0)]
    states += [Known("REGRESSED", 86400.0)]  # of which each is planned on two units
    known = {
        Claim(name, (), kind): chance.choice(states) if mixed else states[0] for name, kind in pairs
    }
    return Simulated(wanted, units, History(known, seconds))
