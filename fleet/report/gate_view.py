"""A gate's answer for a person and for the summary of a CI job. Knows no rule."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from fleet.contract.vary import in_words
from fleet.report import screen
from fleet.report.gate import Check, GateAnswer, RuleAnswer

COLOURS = {"held": "green", "failed": "red", "not covered": "yellow"}


def print_gate(console: Console, answer: GateAnswer) -> None:
    """A line for each rule and what of it is not met; the whole last."""
    for told in answer.rules:
        held = sum(check.result == "held" for check in told.checks)
        head = Text(told.result, style=COLOURS[told.result])
        words = f" {told.rule.name}: {_asks(told)}: {held} of {len(told.checks)} held"
        screen.verbatim(console, head + Text(words))
        for check in told.checks:
            if check.result != "held":
                screen.verbatim(console, f"  {check.result}: {_place(check)}: {check.words}")
    result = Text(answer.result, style=COLOURS[answer.result])
    blocks = "" if answer.mode == "block" else f" (mode {answer.mode}: blocks nothing)"
    screen.verbatim(console, Text(f"policy {answer.policy}: ") + result + Text(blocks))


def print_markdown(console: Console, answer: GateAnswer) -> None:
    """One table a rule, in GitHub's dialect."""
    lines = [f"## fleet gate: {answer.policy}: {answer.result}", ""]
    if answer.mode != "block":
        lines += [f"Mode {answer.mode}: blocks nothing.", ""]
    for told in answer.rules:
        lines += [f"### {cell(told.rule.name)}: {told.result}", "", cell(_asks(told)), ""]
        lines += ["| contract | varied | platform | result | state | units | n | age | why |"]
        lines += ["|---|---|---|---|---|---|---|---|---|"]
        lines += [_row(check) for check in told.checks]
        lines += [""]
    for line in lines:
        screen.verbatim(console, line)


def _row(check: Check) -> str:
    values = (
        check.contract, in_words(check.vary), check.platform_label or "-", check.result,
        check.state, str(check.units), str(check.n), screen.age(check.age_s), check.words,
    )  # fmt: skip
    return f"| {' | '.join(cell(value) for value in values)} |"


def cell(text: str) -> str:
    """What evidence holds is no markup."""
    flat = " ".join(text.split())
    return "".join(f"\\{c}" if c in "\\|`*_<>[]" else c for c in flat)


def _place(check: Check) -> str:
    digest = check.platform.removeprefix("sha256:")[:12]
    on = f" on {check.platform_label} [{digest}]" if check.platform else ""
    return f"{check.contract}, {in_words(check.vary)}{on}"


def _asks(told: RuleAnswer) -> str:
    rule = told.rule
    parts = [rule.grade, rule.scope, f"units >= {rule.min_units}", f"n >= {rule.min_n}"]
    parts += [f"at most {rule.max_age_days:g} d old"] if rule.max_age_days is not None else []
    for kind, most in (("record", rule.max_record_bound), ("process", rule.max_process_bound)):
        parts += [f"per {kind} <= {most:.3%}"] if most is not None else []
    return ", ".join(parts)
