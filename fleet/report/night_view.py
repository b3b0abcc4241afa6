"""The plan of a night, for a person. Knows no planning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from fleet.contract.vary import in_words
from fleet.report import screen
from fleet.schedule.night_terms import Item, NightPlan

MARKS = {"measured": "", "other class": "~", "assumed": "?"}
"""Behind minutes that were not measured in the class they are planned in."""


def print_night(console: Console, plan: NightPlan) -> None:
    """One line per unit and claim as they begin, totals, and what is left out."""
    names = ("unit", "contract", "claim", "reason", "replays", "start", "minutes")
    table = screen.table(console, "plan of the night", *names)
    screen.to_the_right(table, "replays", "start", "minutes")
    for item in plan.items:
        minutes = f"{item.seconds / 60:.1f}{MARKS[item.estimate]}"
        claim, start = in_words(item.vary), f"{item.start_s / 60:.1f}"
        table.add_row(
            Text(item.unit.name), Text(item.contract), claim, item.reason,
            str(len(item.slots)), start, minutes,
        )  # fmt: skip
    console.print(table)
    for line in _totals(plan):
        screen.verbatim(console, line)
    for left in plan.left_out:
        if left.code != "current":
            about = f"{left.contract} ({in_words(left.vary)}) on {left.kind}"
            screen.verbatim(console, f"left out: {about}: {left.why}")


def _totals(plan: NightPlan) -> list[str]:
    units = {item.unit.name for item in plan.items}
    budget = f"the budget is {plan.budget_s / 60:.0f} min"
    replays = sum(len(item.slots) for item in plan.items)
    on = "1 unit" if len(units) == 1 else f"{len(units)} units"
    lines = [f"{replays} replays on {on}, {plan.ends_s / 60:.1f} min; {budget}"]
    if not plan.items:
        lines = [f"nothing to run; {budget}"]
    lines += _guesses(plan.items)
    looks = sorted({item.unit.name for item in plan.items if item.reason == "look"})
    if looks:
        lines.append(f"looks at quarantined units, and at others beside them: {', '.join(looks)}")
    codes = Counter(left.code for left in plan.left_out)
    words = {
        "current": "left out with a PASS that needs no renewal yet",
        "budget": "left out because the budget does not hold them",
    }
    return [*lines, *(f"{codes[code]} {text}" for code, text in words.items() if codes[code])]


def _guesses(items: Sequence[Item]) -> list[str]:
    words = {
        "other class": "~ measured in another class: the longest median of those",
        "assumed": "? never measured: 5 min a replay are assumed",
    }
    used = {item.estimate for item in items}
    return [text for estimate, text in words.items() if estimate in used]
