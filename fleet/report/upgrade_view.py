"""A comparison of two stacks for a person, and for a comment on a pull request. Knows no rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from fleet.judge.stages import BY_NAME, ORDER, layer_words
from fleet.judge.upgrade import BROKE, CODES
from fleet.report.difference import difference_lines
from fleet.report.gate_view import cell
from fleet.report.screen import verbatim
from fleet.report.upgrade import Entry, Replays, UpgradeAnswer

COLOURS = {0: "green", 1: "red", 3: "yellow"}
SHOWN = 5
"""Samples and settings named in a line."""

KINDS = 3
"""Kinds of difference that are shown; the document has all."""

NAMED = 12
"""Packages named in a line; the document has all."""


def print_upgrade(console: Console, answer: UpgradeAnswer) -> None:
    """What the stacks have otherwise, then each contract and what is behind its word."""
    base, new = answer.upgrade.base.stack, answer.upgrade.new.stack
    verbatim(console, f"{base} -> {new}: {_candidates(answer)}")
    for entry in answer.entries:
        colour = COLOURS[CODES[entry.moved.word]]
        head = Text(entry.moved.in_words(), style=colour)
        verbatim(console, Text(f"{entry.contract}: ") + head + Text(f": {entry.moved.reason}"))
        for line in entry_lines(entry):
            verbatim(console, f"  {line}")
    if answer.mode != "block":
        verbatim(console, f"mode {answer.mode}: blocks nothing")


def print_markdown(console: Console, answer: UpgradeAnswer) -> None:
    """One table, then what is behind each word that is not KEPT, in GitHub's dialect."""
    base, new = answer.upgrade.base.stack, answer.upgrade.new.stack
    lines = [f"## fleet upgrade-check: {cell(base)} to {cell(new)}", ""]
    lines += [f"Mode {answer.mode}: blocks nothing.", ""] if answer.mode != "block" else []
    lines += [f"The stacks differ in {cell(_candidates(answer))}.", ""]
    lines += ["| contract | | tokens differ | answers differ | correct | starts at |"]
    lines += ["|---|---|---|---|---|---|"]
    lines += [_row(entry) for entry in answer.entries]
    for entry in answer.entries:
        if entry.moved.word != "KEPT":
            lines += ["", f"**{cell(entry.contract)}**: {cell(entry.moved.reason)}"]
            lines += [_item(line) for line in entry_lines(entry)]
    for line in lines:
        verbatim(console, line)


def _item(line: str) -> str:
    """A line as an item of a list, as deep as it was."""
    deep = len(line) - len(line.lstrip(" "))
    return f"{' ' * deep}- {cell(line.strip())}"


def _row(entry: Entry) -> str:
    replays = entry.replays
    values = [entry.contract, entry.moved.in_words()]
    values += ["-"] * 3 if replays is None else [
        _counts(replays.differing("tokens")), _counts(replays.differing("prediction")),
        _metric(replays.metric()),
    ]  # fmt: skip
    values.append(_where(entry) if entry.start else "-")
    return f"| {' | '.join(cell(value) for value in values)} |"


def _candidates(answer: UpgradeAnswer) -> str:
    both_first = sorted(answer.candidates, key=lambda each: None in (each.base, each.new))
    told = [each.in_words() for each in both_first]
    more = f" and {len(told) - NAMED} more" if len(told) > NAMED else ""
    return (", ".join(told[:NAMED]) or "nothing that was frozen") + more


def entry_lines(entry: Entry) -> Iterator[str]:
    """What is behind a contract's word."""
    replays = entry.replays
    if replays is not None and entry.moved.word in BROKE:
        for word, grade in (("tokens", "tokens"), ("answers", "prediction")):
            named = ", ".join(f"{sample} ({arm})" for arm, sample in replays.samples(grade)[:SHOWN])
            first = f"; first {named}" if named else ""
            yield f"{word} differ: {_counts(replays.differing(grade))}{first}"
        yield f"correct, base and new: {_metric(replays.metric())}"
        yield from _differences(replays)
    if entry.start is not None:
        yield f"starts at: {_where(entry)}"
    if entry.trace is not None:
        yield from _traced(entry)
    if replays is not None and replays.settings and entry.start is not None:
        told = [f"{key} {x!r} -> {y!r}" for key, (x, y) in replays.settings.items()]
        more = f" and {len(told) - SHOWN} more" if len(told) > SHOWN else ""
        yield f"settings in force, candidates: {', '.join(told[:SHOWN])}{more}"
    if entry.facts and entry.start is not None:
        told = [f"{key} {x!r} -> {y!r}" for key, (x, y) in entry.facts.items()]
        yield f"facts of the platforms, candidates: {', '.join(told)}"
    if entry.same_unit is False:
        yield "the two sides ran on two units: hardware is a candidate too"
    if entry.bisection:
        yield from bisection_lines(entry.bisection)


def _differences(replays: Replays) -> Iterator[str]:
    """The first record of each kind of difference; those of the earliest stages first."""
    kinds = sorted(replays.rows.kinds, key=lambda kind: ORDER[kind.stage])
    for kind in kinds[:KINDS]:
        where = f"differ first at {BY_NAME[kind.stage].words}; A is the base, B the new stack"
        yield f"{kind.rows} records of arm {kind.arm} {where}"
        yield from (f"  {line}" for line in difference_lines(kind.first))
    if len(kinds) > KINDS:
        yield f"and {len(kinds) - KINDS} more kinds of difference"


def _where(entry: Entry) -> str:
    assert entry.start is not None
    return f"{layer_words(entry.start.layer, entry.start.layers)}: {entry.start.words}"


def _traced(entry: Entry) -> Iterator[str]:
    assert entry.trace is not None
    culprit = entry.trace.culprit
    if culprit is None:
        yield "traced on both stacks: no module has the same input and another output"
    else:
        who = f"{culprit.path or 'the model'} ({culprit.class_name or culprit.kind})"
        at = f", step {culprit.step}, sample {', '.join(culprit.sample_ids)}"
        when = at if culprit.sample_ids else ", at load"
        yield f"traced on both stacks: {who}{when}: {culprit.words}"
    yield from (f"not told by the trace: {words}" for words in entry.trace.not_localised)


def bisection_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """What a bisection showed, and how."""
    moves, before = found["moves"], found["before"]
    if not moves:
        yield "bisected: no package differs"
        return
    if not found["steps"]:
        yield f"nothing to bisect: {', '.join(moves)} is all that differs, or moves together"
        return
    alone = {
        True: "by itself, all else as in the base",
        False: f"after {', '.join(before)} moved, and not by itself",
        None: f"after {', '.join(before)} moved; whether by itself was not shown",
    }[found["alone"]]
    named = ", ".join(moves)
    if not any(step["seen"] in ("base", "changed") for step in found["steps"]):
        yield f"not bisected: no step told anything; what differs: {named}"
    elif found.get("undivided"):
        yield f"bisected, shown by replays: no step parted {named}: one or more bring it, {alone}"
    elif len(moves) > 1:
        yield f"bisected, shown by replays: {named}, which move together, bring the change, {alone}"
    else:
        yield f"bisected, shown by replays: {named} brings the change, {alone}"
    for number, step in enumerate(found["steps"], 1):
        yield f"  step {number}: {', '.join(step['moved'])}: {step['seen']}: {step['words']}"


def _counts(counts: Mapping[str, tuple[int, int]]) -> str:
    return ", ".join(f"{arm} {n} of {total}" for arm, (n, total) in counts.items()) or "-"


def _metric(metric: Mapping[str, Mapping[str, list[int]]]) -> str:
    told = (
        f"{arm} {sides['base'][0]} and {sides['new'][0]} of {sides['new'][1]}"
        for arm, sides in metric.items()
    )
    return ", ".join(told) or "-"


def print_upgrade_plan(console: Console, plan: Mapping[str, Any]) -> None:
    """What would run on each stack, and for how long."""
    for side in plan["stacks"]:
        verbatim(console, f"{side['stack']}: {side['place']}")
        for each in side["replays"]:
            took = "not known" if each["seconds"] is None else f"about {each['seconds']:.0f} s each"
            verbatim(console, f"  {each['contract']}: {each['replays']} replays, {took}")
    whole = plan["seconds"]
    known = "not known: some contract never ran" if whole is None else f"about {whole / 60:.0f} min"
    verbatim(console, f"in all {known}; {plan['more']}")
