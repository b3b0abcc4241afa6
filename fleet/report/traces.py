"""Traced attempts of a campaign, read from the landing and localised: what ``trace`` answers.

Derived at every call from landed evidence; holds no rule of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from fleet.errors import EvidenceError
from fleet.evidence.landing import Landing
from fleet.evidence.manifest import Manifest
from fleet.evidence.modules import Batch, in_turn
from fleet.evidence.states import ran_to_its_end
from fleet.evidence.summary import AttemptSummary
from fleet.evidence.trace import Trace, read_trace
from fleet.judge.tracing.culprit import Localisation, Source
from fleet.judge.tracing.localise import localise


@dataclass(frozen=True)
class Traced:
    """Traces of one contract in one campaign; ``left_out``: attempt -> why it is no evidence."""

    found: Localisation | None
    traces: tuple[Trace, ...]
    repeated: tuple[Trace, ...]
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def injected(self) -> str | None:
        """Where the control's own fault was put, when every replay says the same."""
        places = {t.injected for t in (*self.traces, *self.repeated)}
        return places.pop() if len(places) == 1 else None


def usable(summary: AttemptSummary) -> str | None:
    """Why a traced attempt is no evidence of where replays part, or None.

    A replay that ended early lacks calls, which would look like another structure.
    """
    if ran_to_its_end(summary.state, summary.cause):
        return None
    code = summary.cause.code if summary.cause else summary.state
    return f"{summary.state}({code})"


def traced(
    landing: Landing, summaries: Sequence[AttemptSummary], source: Source = "later"
) -> Traced:
    """Read and localise, without attempts that are no evidence or whose trace was altered."""
    traces: list[Trace] = []
    left_out: dict[str, str] = {}
    for summary in summaries:
        reason = usable(summary)
        if reason is not None:
            left_out[summary.attempt] = reason
            continue
        try:
            trace = read_trace(landing, summary.attempt)
        except EvidenceError as error:
            left_out[summary.attempt] = str(error)
            continue
        if trace is not None:
            traces.append(trace)
    plain = [t for t in traces if not t.repeats]
    repeated = [t for t in traces if t.repeats]
    found = localise(plain, repeated, source) if len(plain) > 1 else None
    return Traced(found, tuple(plain), tuple(repeated), left_out)


def trace_document(contract: str, about: Traced, head: dict[str, Any]) -> dict[str, Any]:
    """One entry of ``contracts``: the culprit and everything that qualifies it."""
    found = about.found
    body: dict[str, Any] = {"contract": contract, **head, "result": result_of(about)}
    body |= {"culprit": None, "not_localised": [], "left_out": about.left_out}
    if found is None:
        return body
    return body | {
        "culprit": found.culprit.to_json() if found.culprit else None,
        "attempts": list(found.attempts),
        "repeated_in": [t.attempt for t in about.repeated],
        "calls": found.counts,
        "coverage": list(found.coverage),
        "departures": [departure(d) for d in found.departures],
        "also": list(found.also),
        "not_localised": list(found.not_localised),
        "hooks": list(found.hooks),
    }


def own_trace(landing: Landing, summaries: Sequence[AttemptSummary]) -> Localisation | None:
    """Where certification replays that were traced throughout part, by their own evidence: the
    first batch whose calls differ is read, no other whole, and none behind it.

    Args:
        landing: where the traces are.
        summaries: attempts of one contract and campaign; others than such replays are left out.
    """
    throughout = [s for s in summaries if s.trace and s.roots.get("modules")]
    other = next((s for s in throughout if _modules(s) != _modules(throughout[0])), None)
    if other is None:
        return None
    pair = (throughout[0].attempt, other.attempt)
    try:
        first = _first_batch(*(_batches(landing, attempt) for attempt in pair))
        if first is None:
            return None  # a lower grade's own field differs, and no call does
        read = [read_trace(landing, attempt, first) for attempt in pair]
    except EvidenceError:
        return None  # the attempt is VOID, and its summary says why
    return localise([t for t in read if t is not None], (), "failing")


def _modules(summary: AttemptSummary) -> str:
    return summary.roots["modules"]


def _batches(landing: Landing, attempt: str) -> Iterator[tuple[Batch, bytes]]:
    manifest = Manifest.from_bytes(landing.manifest(attempt).read_bytes())
    return in_turn(landing.attempt(attempt), manifest.trace["files"])


def _first_batch(
    one: Iterable[tuple[Batch, bytes]], other: Iterable[tuple[Batch, bytes]]
) -> Batch | None:
    """In the order they ran, and read up to there; None when the difference is in no call."""
    pairs = zip_longest(one, other)
    mine, theirs = next(((a, b) for a, b in pairs if a != b), (None, None))
    found = mine or theirs
    return found[0] if found else None


def result_of(about: Traced) -> str:
    """DIFFERENT, NO_DIFFERENCE_SEEN or NO_EVIDENCE. A trace without a call is no evidence."""
    if about.found is None or not all(trace.calls for trace in about.traces):
        return "NO_EVIDENCE"
    return "DIFFERENT" if about.found.differs else "NO_DIFFERENCE_SEEN"


def departure(d: Any) -> dict[str, Any]:
    """Where some replays part from the rest."""
    call = d.call
    return {
        "arm": call.arm,
        "batch": call.batch,
        "sample_ids": list(call.sample_ids),
        "step": call.step,
        "path": call.path,
        "class": call.class_name,
        "at": d.phase,
        "what": d.what,
        "classes": [list(c) for c in d.classes],
    }
