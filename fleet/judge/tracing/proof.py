"""What kind of fault a call shows, by evidence of its own.

*Race* takes two outputs of one frozen input in one process, *kernel choice* another list of
executed operations in processes that each repeat themselves, *heterogeneity* a module that was set
up otherwise. Without such proof the kind is *undecided*, with the bound that clean repeats give
(law 10). Pure.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleet.evidence.operations import Operation, first_difference
from fleet.evidence.trace import Call, Trace
from fleet.judge.bounds import record_bound
from fleet.judge.tracing.culprit import Culprit, Kind, Source

NOT_REPEATED = "not repeated: race or kernel choice, undecided"
ACROSS = "the same input, another output"
"""Of a call on two software stacks, where within one a race or a choice of kernel is meant."""

Pair = tuple[int, int]
"""A replay that stayed and one that departed."""

At = tuple[str, str]
"""(phase, path): the observation at which replays parted."""


@dataclass(frozen=True)
class Finding:
    """A kind, and what shows it. ``proof``: fields of a culprit."""

    kind: Kind
    words: str
    proof: Mapping[str, Any]


class Proof:
    """Evidence about calls, from traced replays and from those that repeated a call."""

    def __init__(self, traces: Sequence[Trace], repeated: Sequence[Trace], source: Source) -> None:
        self._traces, self._repeated, self._source = traces, repeated, source
        self.trouble: list[str] = []

    def _clean(self, call: Call) -> list[Mapping[str, Any]]:
        """Repeats of this call that count; why others do not is kept as trouble."""
        found = [r for t in self._repeated for r in t.repeats if _is_of(r, call)]
        for result in found:
            if result["trouble"]:
                self.trouble.append(f"{name_of(call.path)}: {result['trouble']}")
        return [r for r in found if r["repeats"] and not r["trouble"]]

    def race(self, call: Call, at: At) -> Finding | None:
        """Two outputs of one frozen input, when repeats part where the replays parted."""
        clean = self._clean(call)
        shown = [r for r in clean if r["unique"] > 1 and _first_of(r) == at]
        if not shown:
            return None
        most = max(shown, key=lambda r: int(r["unique"]))
        unique, repeats = int(most["unique"]), int(most["repeats"])
        words = f"{unique} outputs of one frozen input in {repeats} repeats in one process"
        proof = {"unique": unique, "repeats": repeats, "zoom": most.get("zoom")}
        return Finding("race", words, proof)

    def other(self, call: Call, pair: Pair) -> Finding:
        """What is known where no race was shown."""
        clean = self._clean(call)
        elsewhere = next((_first_of(r) for r in clean if r["unique"] > 1), None)
        total = 0 if elsewhere else sum(int(r["repeats"]) for r in clean)
        bound = record_bound(total) if total else None
        parted = _parted(clean)
        proof = {"unique": 1 if total else 0, "repeats": total, "bound": bound, "zoom": parted}
        odd = self._odd_facts(call.path, pair)
        if odd:
            words = f"replays ran it with other settings: {', '.join(odd)}"
            return Finding("heterogeneity", words, proof)
        inside = f"; {_inside(parted)}" if parted else ""
        if _other_kernel(clean):
            words = f"replays executed other operations for it{inside}"
            return Finding("kernel_choice", words, proof)
        across = self._source == "stacks"
        if elsewhere:
            words = f"its repeats part first at the {_moment(elsewhere)}: undecided"
        elif total and across:
            words = f"{ACROSS}, each stack's own in {total} repeats{inside}"
        elif total:
            words = f"{total} repeats agree: a rare race (<= {bound:.2g} a call) or a kernel choice"
            words += inside
        else:
            words = ACROSS if across else NOT_REPEATED
        return Finding("undecided", words, proof)

    def _odd_facts(self, path: str, pair: Pair) -> list[str]:
        """Names of plain facts of a module in which the two replays differ.

        A number at the end may be a consequence of what was computed; a name (of a kernel, a mode)
        that a module chose for itself is not.
        """
        rows = [self._traces[r].modules.get(path) for r in pair]
        odd: dict[str, None] = {}
        for moment in ("facts", "facts_at_end"):
            a, b = (json.loads(getattr(row, moment)) if row else {} for row in rows)
            for name in sorted({*a, *b}):
                chosen = isinstance(a.get(name), str) or isinstance(b.get(name), str)
                if a.get(name) != b.get(name) and (moment == "facts" or chosen):
                    odd[name] = None
        return list(odd)

    def changed_weight(self, paths: Collection[str], pair: Pair) -> str | None:
        """A weight of one of these modules that two replays loaded alike and ended with unlike."""
        mine, theirs = (self._traces[r].weights for r in pair)
        for name, row in mine.items():
            if row.path in paths and name in theirs and row.end_sha256 != theirs[name].end_sha256:
                return name
        return None

    def changed_weights(self) -> list[str]:
        """Every weight that is another at the end of some replay."""
        rows = [row for t in self._traces for row in t.weights.values()]
        return list(dict.fromkeys(r.name for r in rows if r.end_sha256 != r.load_sha256))


def _other_kernel(clean: Sequence[Mapping[str, Any]]) -> bool:
    """Each process is true to itself in operations and output, and processes are unlike in both."""
    executed = {r.get("executed_sha256") or "" for r in clean}
    return _each_its_own(clean) and "" not in executed and len(executed) > 1


def _each_its_own(clean: Sequence[Mapping[str, Any]]) -> bool:
    """One input, each process true to itself, and processes unlike."""
    steady = all(r["unique"] == 1 for r in clean)
    one_input = len({r["in_sha256"] for r in clean}) == 1
    return steady and one_input and len({tuple(r["outputs"]) for r in clean}) > 1


def _parted(clean: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The first operation that processes of unlike outputs, each true to itself, ran otherwise."""
    if not _each_its_own(clean):
        return None
    by_output = {tuple(r["outputs"]): r.get("operations") for r in clean}
    runs = [[Operation.from_json(raw) for raw in told] for told in by_output.values() if told]
    return first_difference(runs) if len(runs) == len(by_output) else None


def _inside(parted: Mapping[str, Any]) -> str:
    """Where inside a call processes part, in words."""
    at = f" ({parted['where']})" if parted["where"] else ""
    if parted["how"] == "operation":
        return f"inside it other operations ran first at {' or '.join(parted['names'])}{at}"
    if parted["how"] == "input":
        return f"inside it the code before {parted['name']} differs{at}"
    covered = "the same input" if parted["hashed"] else "an input that is not all hashed"
    return f"inside it {parted['name']} has {covered} and another output{at}"


def is_one_operation(culprit: Culprit) -> bool:
    """Was one operation seen to give other outputs for one input?"""
    zoom = culprit.zoom or {}
    return zoom.get("how") == "output" and bool(zoom.get("hashed"))


def _first_of(result: Mapping[str, Any]) -> At | None:
    first = result.get("first")
    return (str(first["phase"]), str(first["path"])) if first else None


def _moment(at: At) -> str:
    phase, path = at
    return f"{'beginning' if phase == 'in' else 'end'} of {name_of(path)}"


def _is_of(result: Mapping[str, Any], call: Call) -> bool:
    names = ("arm", "batch", "step", "path", "occurrence")
    return all(result[name] == getattr(call, name) for name in names)


def name_of(path: str) -> str:
    """A module's path in words."""
    return path or "the model"
