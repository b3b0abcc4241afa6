"""What kind of fault a call shows, by evidence of its own.

*Race* takes two outputs of one frozen input in one process, *kernel choice* another list of
executed operations, *heterogeneity* a module whose facts differ while each process agrees with
itself. Without such proof the kind is *undecided*, with the bound that the clean repeats give
(law 10). Pure.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fleet.evidence.trace import Call, Trace
from fleet.judge.bounds import record_bound
from fleet.judge.tracing.culprit import Kind


class Proof:
    """Evidence about calls, from traced replays and from those that repeated a call."""

    def __init__(self, traces: Sequence[Trace], repeated: Sequence[Trace]) -> None:
        self._traces, self._repeated = traces, repeated
        self.trouble: list[str] = []

    def kind(self, call: Call) -> tuple[Kind, dict[str, Any], str]:
        """(kind, proof, words) for code that was called with equal inputs."""
        found = [r for t in self._repeated for r in t.repeats if _is_of(r, call)]
        for result in found:
            if result["trouble"]:
                self.trouble.append(f"{name_of(call.path)}: {result['trouble']}")
        clean = [r for r in found if r["repeats"] and not r["trouble"]]
        total = sum(int(r["repeats"]) for r in clean)
        most = max(clean, key=lambda r: int(r["unique"]), default=None)
        zoom = next((r["zoom"] for r in clean if r.get("zoom")), None)
        if most is not None and most["unique"] > 1:
            unique, repeats = int(most["unique"]), int(most["repeats"])
            words = f"{unique} outputs of one frozen input in {repeats} repeats in one process"
            return "race", {"unique": unique, "repeats": repeats, "zoom": zoom}, words
        bound = record_bound(total) if total else None
        proof = {"unique": 1 if total else 0, "repeats": total, "bound": bound, "zoom": zoom}
        odd = self._odd_facts(call.path)
        if odd:
            return "heterogeneity", proof, f"replays ran it with other settings: {', '.join(odd)}"
        executed = {str(r.get("executed_sha256")) for r in clean}
        if len(executed) > 1:
            return "kernel_choice", proof, "replays executed other operations for it"
        if not total:
            return "undecided", proof, "not repeated: race or kernel choice, undecided"
        words = f"{total} repeats agree: a rare race (<= {bound:.2g} a call) or a kernel choice"
        return "undecided", proof, words

    def _odd_facts(self, path: str) -> list[str]:
        """Names of a module's plain facts that are not the same in every replay."""
        odd: dict[str, None] = {}
        for moment in ("facts", "facts_at_end"):
            tables = [
                json.loads(getattr(t.modules[path], moment)) for t in self._traces
                if path in t.modules
            ]  # fmt: skip
            names = dict.fromkeys(n for table in tables for n in table)
            for name in names:
                shown = {json.dumps(table.get(name)) for table in tables}
                if len(shown) > 1:
                    odd[name] = None
        return list(odd)

    def changed_weight(self, paths: Collection[str]) -> str | None:
        """A weight owned by one of these modules that is another at the end of a replay."""
        for trace in self._traces:
            for row in trace.weights.values():
                if row.path in paths and row.end_sha256 != row.load_sha256:
                    return row.name
        return None


def _is_of(result: Mapping[str, Any], call: Call) -> bool:
    names = ("arm", "batch", "step", "path", "occurrence")
    return all(result[name] == getattr(call, name) for name in names)


def name_of(path: str) -> str:
    """A module's path in words."""
    return path or "the model"
