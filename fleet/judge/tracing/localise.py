"""Where replays part: the first observation that differs, and what ran just before it.

Everything observed in a step has one order in time. Of several departures the first that reaches
the logits is looked into, or the first of all when none does. Law 10: what is not localised is
called so. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fleet.evidence.trace import Call, Trace
from fleet.judge.tracing.accuse import Accuser
from fleet.judge.tracing.calls import Key, coverage, key_of
from fleet.judge.tracing.culprit import Culprit, Localisation, Source
from fleet.judge.tracing.describe import Describer
from fleet.judge.tracing.history import History
from fleet.judge.tracing.proof import Proof, name_of
from fleet.judge.tracing.timeline import Departure, classes_of
from fleet.judge.tracing.tree import call_tree

MAX_ALSO = 20
MAX_DEPARTURES = 50


def localise(
    traces: Sequence[Trace], repeated: Sequence[Trace] = (), source: Source = "later"
) -> Localisation:
    """The culprit of several traces.

    Args:
        traces: two or more, of one contract on one platform, of the same samples; or of two
            software stacks.
        repeated: traces of replays that repeated the target of an earlier localisation.
        source: whether ``traces`` are the failing replays themselves, later ones, or of stacks.

    Raises:
        ValueError: fewer than two traces.
    """
    if len(traces) < 2:
        raise ValueError("a difference takes two traces")
    history, proof = History(traces), Proof(traces, repeated, source)
    describer = Describer(history, source)
    chosen = _first_that_matters(history)
    culprit, target = _at_load(history, describer), None
    if culprit is None and chosen is not None:
        culprit, target = Accuser(history, proof, describer).accuse(chosen)
    outside = chosen is None and culprit is None and history.logits_differ(range(len(traces)))
    if outside:
        proof.trouble.append("raw logits differ and no traced call does: it is outside the trace")
    return Localisation(
        attempts=tuple(t.attempt for t in traces),
        counts=history.aligned.counts(),
        coverage=tuple(coverage(t) for t in traces),
        departures=_some(history.departures, chosen),
        culprit=culprit,
        target=target,
        also=_also(history, culprit, target),
        not_localised=tuple(dict.fromkeys([*proof.trouble, *_silences(traces, proof)])),
        hooks=tuple(t.hooks for t in traces),
        logits_differ=outside,
        tree=call_tree(history.aligned, _wanted(history, culprit, chosen)),
    )


def _wanted(history: History, culprit: Culprit | None, chosen: Departure | None) -> list[Key]:
    """Where a tree is opened: at the culprit, else at a call of its module, else at the split."""
    departed = [key_of(chosen.call)] if chosen else []
    if culprit is None or culprit.path is None:
        return departed
    own = (culprit.arm, culprit.batch, culprit.step, culprit.path, culprit.occurrence)
    return [own, *(key for key in history.aligned.keys if key[3] == culprit.path), *departed]


def _at_load(history: History, describer: Describer) -> Culprit | None:
    """What differs before the first call explains everything after it."""
    traces = history.traces
    for name in dict.fromkeys(name for t in traces for name in t.weights):
        rows = [t.weights.get(name) for t in traces]
        classes = classes_of({r: row.load_sha256 if row else None for r, row in enumerate(rows)})
        if len(classes) > 1:
            path = next(row.path for row in rows if row is not None)
            made = {t.modules[path].class_name for t in traces if path in t.modules}
            if len(made) > 1:
                words = f"replays made it of other classes: {', '.join(sorted(made))}"
                return describer.at_load("heterogeneity", path, words, classes)
            words = f"{name} differs between replays when loading ends"
            return describer.at_load("weights", path, words, classes, tensor=name)
    for path in dict.fromkeys(path for t in traces for path in t.modules):
        owned = {r: t.modules[path].own_sha256 for r, t in enumerate(traces) if path in t.modules}
        classes = classes_of(owned)
        if len(classes) > 1:
            words = f"a buffer or plain tensor of {name_of(path)} differs when loading ends"
            return describer.at_load("weights", path, words, classes)
    return None


def _first_that_matters(history: History) -> Departure | None:
    """The first departure that reaches the logits, else the first of all."""
    first = next(iter(history.departures), None)
    return next((d for d in history.departures if history.survives(d)), first)


def _some(found: Sequence[Departure], chosen: Departure | None) -> tuple[Departure, ...]:
    """The first departures, and the one that was looked into."""
    shown = found[:MAX_DEPARTURES]
    later = [chosen] if chosen is not None and chosen not in shown else []
    return (*shown, *later)


def _also(
    history: History, culprit: Culprit | None, target: Call | None
) -> tuple[dict[str, Any], ...]:
    """Other modules with the same input and another output, and in how many calls."""
    named = culprit.path if culprit else (target.path if target else None)
    found: dict[tuple[str, str], int] = {}
    for call in history.aligned.candidates():
        if call.path != named:
            key = (call.path, call.class_name)
            found[key] = found.get(key, 0) + 1
    return tuple(
        {"path": path, "class": name, "calls": count} for (path, name), count in found.items()
    )[:MAX_ALSO]


def _silences(traces: Sequence[Trace], proof: Proof) -> list[str]:
    """What the traces cannot tell, whatever they found."""
    told = []
    unknown = sum(1 for t in traces for c in t.calls if c.in_sha256 is None)
    if unknown:
        told.append(f"{unknown} calls had nothing hashable going in")
    partly = sum(1 for t in traces for c in t.calls if c.unhashed)
    if partly:
        told.append(f"{partly} calls were given something that is not hashed")
    changed = proof.changed_weights()
    if changed:
        told.append(f"{len(changed)} weights changed while a replay ran, {changed[0]} among them")
    return told
