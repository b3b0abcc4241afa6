"""What a person sees of a trace: the culprit first, then what qualifies it.

Reads the document that ``--json`` gives, so that both say the same. Holds no rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

HEADS = {
    "DIFFERENT": ("red", "the traced replays differ"),
    "NO_DIFFERENCE_SEEN": ("green", "no difference seen (no verdict)"),
    "NO_EVIDENCE": ("yellow", "fewer than two traced replays came to their end"),
}


def print_trace(console: Console, document: Mapping[str, Any]) -> None:
    """Every contract of a document of ``fleet trace``."""
    for entry in document["contracts"]:
        style, words = HEADS[entry["result"]]
        _line(console, Text(f"{entry['contract']}: {words}", style=style))
        for line in trace_lines(entry):
            _line(console, Text(line))


def _line(console: Console, text: Text) -> None:
    console.print(text, soft_wrap=True, highlight=False)


def print_screen(console: Console, document: Mapping[str, Any]) -> None:
    """Every contract of a document of ``fleet screen``."""
    for entry in document["contracts"]:
        style, words = HEADS[entry["result"]]
        words = words.replace("the traced replays differ", "differences seen")
        _line(console, Text(f"{entry['contract']}: {words}", style=style))
        for line in (*_screen_lines(entry), *(trace_lines(entry) if entry["traced"] else ())):
            _line(console, Text(line))


def _screen_lines(entry: Mapping[str, Any]) -> Iterator[str]:
    covered, margins, bounds = entry["covered"], entry["margins"], entry["bounds"]
    yield f"  covered: {covered['samples']} of {covered['of_samples']} samples, " + (
        f"{len(covered['shapes'])} of {covered['of_shapes']} input shapes, "
        f"{' and '.join(covered['phases'])} ({covered['decode_steps']} steps), "
        f"{len(covered['near_margins'])} chosen by margin, {covered['replays']} replays"
    )
    if bounds["record"] is not None:
        process = bounds["process"]
        told = "not bounded" if process is None else f"<= {process:.1%}"
        yield f"  bound: record <= {bounds['record']:.2%}, process {told}"
    for pair in entry["pairs"]:
        yield f"  {pair['a']} and {pair['b']}: {pair['result']} {pair['words']}".rstrip()
    if margins["records"]:
        smallest = margins["smallest"][0]
        yield f"  margins: {margins['near_boundary']} of {margins['records']} records within " + (
            f"{margins['near_boundary_ulps']} ulps, {margins['exact_ties']} exact ties, smallest "
            f"{smallest['logits']:g} ({smallest['ulps']} ulps) at "
            f"{smallest['arm']}/{smallest['sample_id']}"
        )
    for words in entry["ended"]:
        yield f"  ended: {words}"


def trace_lines(entry: Mapping[str, Any]) -> Iterator[str]:
    """One entry, line by line."""
    samples = _few([str(s) for s in entry.get("samples", [])])
    yield f"  traced: sample {samples} ({entry['chosen']}), arm {_few(entry['arms'])}, " + (
        f"steps {entry['steps']}"
    )
    for attempt, why in entry["left_out"].items():
        yield f"  left out: attempt {attempt}: {why}; fleet logs {attempt}"
    if "calls" not in entry:
        return
    if entry["culprit"] is not None:
        yield from culprit_lines(entry["culprit"])
    elif entry["result"] == "DIFFERENT":
        yield "  not localised"
    yield from _departures(entry)
    yield from _qualified(entry)


def culprit_lines(culprit: Mapping[str, Any]) -> Iterator[str]:
    """The culprit of a trace, as a person reads it."""
    yield f"  first divergence: {place_of(culprit)}"
    yield f"  kind: {culprit['kind']} ({culprit['words']})"
    yield f"  where: arm {culprit['arm']}, sample {_few(culprit['sample_ids'])}, " + (
        f"step {culprit['step']}, call {culprit['occurrence'] + 1}, "
        f"input {culprit['dtype']} [{culprit['shape']}]"
    )
    for side in ("in", "out"):
        shown = [digest[:12] or "-" for digest in culprit["digests"].get(side, [])]
        if shown:
            yield f"  {side}: {'  '.join(shown)}"
    if culprit["repeats"]:
        yield f"  repeated: {culprit['unique']} distinct outputs of {culprit['repeats']}" + (
            "" if culprit["bound"] is None else f", a race <= {culprit['bound']:.3%} a call"
        )
    zoom = culprit["zoom"]
    if zoom:
        yield f"  inside it: {zoom['name']}, other {zoom['how']} in {zoom['runs']} runs"
        yield f"    at {zoom['where'] or 'no line of Python'}"
    yield f"  reaches the logits: {'yes' if culprit['survives_to_logits'] else 'no'}"
    if culprit["ancestors"]:
        yield f"  inside: {' < '.join(culprit['ancestors'])} (context, not suspects)"
    yield f"  seen in: {culprit['source']} replays"


NO_MODULE = {
    "input": "the model's input, no module",
    "batch_shape": "the batch, no module",
    "cache": "the cache, no layer known",
}


def place_of(culprit: Mapping[str, Any]) -> str:
    """What is accused, in a few words."""
    if culprit["path"] is None:
        return NO_MODULE.get(culprit["kind"], "no module")
    name = culprit["path"] or "the model"
    facts = [str(culprit[key]) for key in ("class", "backend", "mode") if culprit[key]]
    gap = culprit["gap"]
    between = f", between {gap['after']} and {gap['before']}" if gap else ""
    return f"{name}{between} ({', '.join(facts)})"


def _departures(entry: Mapping[str, Any]) -> Iterator[str]:
    """Who parts from whom, where; for two replays the culprit says it all."""
    for d in entry["departures"][:5] if len(entry["attempts"]) > 2 else ():
        most, *others = d["classes"]
        gone = ", ".join(_few([str(r) for r in group]) for group in others)
        yield f"  {len(most)} agree, replay {gone} departs at {d['arm']}/" + (
            f"{_few(d['sample_ids'])} step {d['step']}, {d['path'] or 'the model'}"
        )


def _qualified(entry: Mapping[str, Any]) -> Iterator[str]:
    also = [f"{a['path'] or 'the model'} ({a['calls']} calls)" for a in entry["also"]]
    if also:
        yield f"  also same input, other output: {_few(also, 4)}"
    counts = [f"{word} {n}" for word, n in entry["calls"].items() if n]
    yield f"  calls: {', '.join(counts) or 'none'}"
    first = entry["coverage"][0]
    yield f"  coverage: {first['hooked']} modules hooked, {first['fired']} of " + (
        f"{first['expected']} fired, {first['calls']} calls a replay, {first['unknown']} unknown, "
        f"{first['partly_unhashed']} partly unhashed"
    )
    if first["silent"]:
        yield f"  never fired: {_few(first['silent'], 5)}"
    for words in dict.fromkeys(entry["hooks"]):
        yield f"  hooks: {words or 'not checked'}"
    for words in entry["not_localised"]:
        yield f"  not localised: {words}"


def _few(items: Sequence[str], most: int = 3) -> str:
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more
