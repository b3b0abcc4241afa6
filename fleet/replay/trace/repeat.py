"""Repeat one frozen call in this process, and count the outputs.

Two outputs of one frozen input in one process are a race; nothing else proves one. The call's
inputs, weights and caches are restored and hashed again before every repeat. Modules inside the
call are observed as well, so that code between them can be told from a module. Knows no other
replay; what the counts mean is judged elsewhere.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from fleet.contract.canonical import digest_json, to_text
from fleet.evidence.operations import MOST, Operation, first_difference
from fleet.evidence.trace import Call, moments
from fleet.replay.task import Target
from fleet.replay.trace.frozen import FrozenCall
from fleet.replay.trace.tracer import Sink, Tracer, in_root
from fleet.replay.trace.zoom import Recorder

FEWEST = 5
"""Repeats that are made however long they take; as many must execute the same operations."""

LONGEST_S = 20.0
"""No further repeat is begun after this long."""

ZOOMED = 12
"""Repeats under the recorder of operations, when it notes their values too."""

OUR_HOOKS = 2
"""Forward hooks of a target: the tracer's and the one in here. The model itself has an engine's
hook too, which reads logits."""

Observation = tuple[str, str, int, bytes | None]
"""(``in`` or ``out``, path, occurrence inside the call, digest)."""


@dataclass
class Repeater:
    """Waits for its targets to be called, and repeats each once it has returned."""

    tracer: Tracer
    targets: Sequence[Target]
    repeats: int
    zoom: bool = False
    results: list[dict[str, Any]] = field(default_factory=list)
    _seen: Counter[tuple[Any, ...]] = field(default_factory=Counter)
    _frozen: FrozenCall | None = None
    _trouble: str = ""
    _busy: bool = False
    _handles: list[RemovableHandle] = field(default_factory=list)

    def attach(self) -> None:
        """Behind the tracer's own hooks: the call has then been observed."""
        for path in dict.fromkeys(t.path for t in self.targets):
            module = self.tracer.modules.get(path)
            if module is not None:
                self._handles += [
                    module.register_forward_pre_hook(self._before(path), with_kwargs=True),
                    module.register_forward_hook(self._after(path), with_kwargs=True),
                ]

    def detach(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _target(self, path: str) -> Target | None:
        """The target that this call is, counted when it begins."""
        arm, batch, step = self.tracer.place
        number = self._seen[arm, batch, step, path]
        return next(
            (
                t
                for t in self.targets
                if (t.arm, t.batch, t.step, t.path, t.occurrence)
                == (arm, batch, step, path, number)
            ),
            None,
        )

    def _before(self, path: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
            if self._busy or self._target(path) is None:
                return
            try:
                self._frozen = FrozenCall(module, args, kwargs)
            except (TypeError, RuntimeError) as error:
                self._trouble = f"cannot freeze the call: {type(error).__name__}: {error}"[:300]

        return hook

    def _after(self, path: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Mapping[str, Any], output: Any) -> None:
            if self._busy:
                return
            target = self._target(path)
            self._seen[(*self.tracer.place, path)] += 1
            if target is None:
                return
            frozen, self._frozen, self._busy = self._frozen, None, True
            try:
                self.results.append(self._repeat(target, module, frozen))
            finally:
                self._busy = False

        return hook

    def _repeat(
        self, target: Target, module: nn.Module, frozen: FrozenCall | None
    ) -> dict[str, Any]:
        if frozen is None:
            return _result(target, [], "", self._trouble)
        if target.path and len(module._forward_hooks) > OUR_HOOKS:
            return _result(target, [], "", "it has forward hooks, which a repeat would leave out")
        began = time.monotonic()
        runs: list[list[Observation]] = []
        roots: set[bytes | None] = set()
        weights = self.tracer.owned.weights(target.path)
        while len(runs) < self.repeats:
            if len(runs) >= FEWEST and time.monotonic() - began > LONGEST_S:
                break
            root, run = self._once(target.path, module, frozen)
            roots.add(root)
            runs.append(run)
        recorded, outputs = self._operations(target.path, module, frozen)
        trouble = "" if len(roots) == 1 else "the inputs could not be restored to the same bits"
        if self.tracer.owned.weights(target.path) != weights:
            trouble = "weights changed while the call was repeated"
        result = _result(target, runs, _text(next(iter(roots))), trouble)
        executed = {to_text(digest_json([op.name for op in run])) for run in recorded}
        result["executed"] = len(recorded[0])
        result["executed_sha256"] = executed.pop() if len(executed) == 1 else ""
        result["zoom"] = first_difference(recorded) if self.zoom else None
        # operations that gave another output than the repeats did explain nothing about them
        same = outputs == {run[-1][3] for run in runs} and len(outputs) == 1
        if self.zoom and result["zoom"] is None and same and len(recorded[0]) <= MOST:
            result["operations"] = [op.to_json() for op in recorded[0]]
        result["seconds"] = time.monotonic() - began
        return result

    def _once(
        self, path: str, module: nn.Module, frozen: FrozenCall
    ) -> tuple[bytes | None, list[Observation]]:
        """(in-root of the restored call, what was observed in it)."""
        calls: list[Call] = []
        root, out = self._observed(path, module, frozen, calls.append, nullcontext())
        return root, [*_observations(calls), ("out", path, 0, out)]

    def _observed(
        self,
        path: str,
        module: nn.Module,
        frozen: FrozenCall,
        sink: Sink | None,
        around: AbstractContextManager[Any],
    ) -> tuple[bytes | None, bytes | None]:
        """(in-root, out-root) of the restored call. ``sink``: takes the calls in it; ``around``: is
        entered for its forward alone."""
        with frozen.thawed() as (args, kwargs), self.tracer.aside(sink):
            before = self.tracer.observe_input(path, args, kwargs)
            with around:
                output = module.forward(*args, **kwargs)
            out = self.tracer.observe_output(path, before, args, kwargs, output)
            self.tracer.settle()
        return in_root(before), out.root()

    def _operations(
        self, path: str, module: nn.Module, frozen: FrozenCall
    ) -> tuple[list[list[Operation]], set[bytes | None]]:
        """(Operations of each run under the recorder, every output that these runs had.)"""
        found: list[list[Operation]] = []
        outputs: set[bytes | None] = set()
        for _ in range(ZOOMED if self.zoom else FEWEST):
            recorder = Recorder(self.tracer.digests if self.zoom else None)
            outputs.add(self._observed(path, module, frozen, None, recorder)[1])
            found.append(recorder.operations)
        return found, outputs


def _observations(calls: Sequence[Call]) -> list[Observation]:
    """In the order they were made."""
    return [
        (phase, c.path, c.occurrence, c.in_sha256 if phase == "in" else c.out_sha256)
        for phase, c in moments(calls)
    ]


def _result(
    target: Target, runs: Sequence[Sequence[Observation]], root: str, trouble: str
) -> dict[str, Any]:
    """What was counted. ``first``: the first observation with more than one value."""
    outputs = Counter(_text(run[-1][3]) for run in runs)
    return {
        "arm": target.arm,
        "batch": target.batch,
        "step": target.step,
        "path": target.path,
        "occurrence": target.occurrence,
        "repeats": len(runs),
        "unique": len(outputs),
        "outputs": dict(outputs.most_common(8)),
        "in_sha256": root,
        "first": _first(runs),
        "trouble": trouble,
    }


def _first(runs: Sequence[Sequence[Observation]]) -> dict[str, Any] | None:
    for row in zip(*runs, strict=False):
        keys = {observation[:3] for observation in row}
        values = {observation[3] for observation in row}
        if len(keys) > 1:
            phase, path, occurrence = min(keys)
            return {"phase": phase, "path": path, "occurrence": occurrence, "unique": len(keys)}
        if len(values) > 1:
            phase, path, occurrence = row[0][:3]
            return {"phase": phase, "path": path, "occurrence": occurrence, "unique": len(values)}
    return None


def _text(digest: bytes | None) -> str:
    return "" if digest is None else to_text(digest)
