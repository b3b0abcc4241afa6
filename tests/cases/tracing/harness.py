"""Traced replays in this process: a copy of a model, a fault put into it, and a Trace of it.

Tracer, repeater and judge are the product; only the process and the engine are left out, so that a
case takes a fraction of a second. Faults draw from the operating system, which no seed reaches.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from fleet.evidence.trace import Call, Trace
from fleet.judge.tracing.culprit import Culprit, Localisation
from fleet.judge.tracing.localise import localise
from fleet.replay.host_digest import host_digest
from fleet.replay.task import Target
from fleet.replay.trace.repeat import Repeater
from fleet.replay.trace.tracer import Tracer

Fault = Callable[[nn.Module], None]

PROMPT = tuple(range(5, 17))
STEPS = 6
REPEATS = 60
ARM, SAMPLE = "arm", "s0"


def nothing(model: nn.Module) -> None:
    """The fault of a clean replay."""


@dataclass(frozen=True)
class Subject:
    """One architecture, loaded once; every replay traces a copy of it."""

    name: str
    model: nn.Module
    _clean: dict[str, Trace] = field(default_factory=dict, repr=False)

    @classmethod
    def load(cls, name: str, folder: Path) -> Subject:
        """A demo checkpoint in bfloat16."""
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.bfloat16, attn_implementation="sdpa"
        )
        return cls(name, model.eval().requires_grad_(False))

    def replay(self, fault: Fault = nothing, **options: Any) -> Trace:
        """One traced replay with a fault in it; options are fields of :class:`Replay`."""
        return Replay(self, fault, **options).run()

    def clean(self, **options: Any) -> Trace:
        """A replay without a fault, the same one for everybody: it is only compared with."""
        key = repr(sorted(options.items()))
        if key not in self._clean:
            self._clean[key] = self.replay(**options)
        return self._clean[key]

    def _side(self, fault: Fault, **options: Any) -> Trace:
        return self.clean(**options) if fault is nothing else self.replay(fault, **options)

    def study(self, *faults: Fault, repeats: int = REPEATS, **options: Any) -> Study:
        """A replay per fault, and repeats of the target in as many further ones."""
        traces = [self._side(fault, **options) for fault in faults]
        first = localise(traces)
        if first.target is None or not repeats:
            return Study(first, first)
        call = first.target
        again = {**options, "target": target_of(call), "repeats": repeats, "steps": call.step + 1}
        repeated = [self.replay(fault, **again) for fault in dict.fromkeys(faults)]
        return Study(first, localise(traces, repeated))


@dataclass(frozen=True)
class Study:
    """What the traces said alone, and what they said with repeats of the target."""

    first: Localisation
    found: Localisation

    @property
    def culprit(self) -> Culprit:
        """The culprit, which there is."""
        assert self.found.culprit is not None, self.found.not_localised
        return self.found.culprit


@dataclass(frozen=True)
class Replay:
    """One traced replay. ``prompts`` are batches of one sample each; ``order``: steps traced."""

    subject: Subject
    fault: Fault
    prompts: Sequence[Sequence[int]] = (PROMPT,)
    steps: int = STEPS
    order: str = "all"
    target: Target | None = None
    repeats: int = 0
    zoom: bool = False
    calls: list[Call] = field(default_factory=list)

    def run(self) -> Trace:
        model = copy.deepcopy(self.subject.model)
        self.fault(model)
        tracer = Tracer(model, (), self.calls.append, self.order)
        targets = [self.target] if self.target else []
        repeater = Repeater(tracer, targets, self.repeats, self.zoom)
        with torch.inference_mode():
            logits = {
                (ARM, f"s{i}"): self._batch(model, tracer, repeater, i)
                for i in range(len(self.prompts))
            }
        return Trace(
            attempt="",
            calls=tuple(self.calls),
            modules={row.path: row for row in tracer.module_rows()},
            weights={row.name: row for row in tracer.weight_rows()},
            repeats=tuple(repeater.results),
            logits=logits,
        )

    def _batch(
        self, model: nn.Module, tracer: Tracer, repeater: Repeater, number: int
    ) -> tuple[bytes, ...]:
        """Greedy steps of one prompt; the digest of the logits of every one."""
        logits: list[bytes] = []
        watch = model.register_forward_hook(
            lambda _, args, out: logits.append(host_digest(out.logits[:, -1, :]))
        )
        tracer.start_batch(ARM, number, [f"s{number}"])
        tracer.attach()
        repeater.attach()
        ids = torch.tensor([list(self.prompts[number])])
        model.generate(  # type: ignore[operator]
            inputs=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=self.steps,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None,
        )
        repeater.detach()
        tracer.detach()
        watch.remove()
        return tuple(logits)


def target_of(call: Call) -> Target:
    """The order to freeze and repeat this call."""
    return Target(call.arm, call.batch, call.step, call.path, call.occurrence)


def put(model: nn.Module, path: str, module: nn.Module) -> None:
    """Replace the module at ``path``."""
    parent, _, leaf = path.rpartition(".")
    setattr(model.get_submodule(parent), leaf, module)


def at_step(model: nn.Module, step: int, act: Callable[[Mapping[str, Any]], None]) -> None:
    """Call ``act`` with the model's arguments before its ``step``-th forward."""
    seen = iter(range(10**6))

    def hook(module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        if next(seen) == step:
            act(kwargs)

    model.register_forward_pre_hook(hook, with_kwargs=True)


class Clock:
    """The step that a model is at, -1 before the first."""

    def __init__(self, model: nn.Module) -> None:
        self.step = -1
        model.register_forward_pre_hook(self._tick)

    def _tick(self, *_: object) -> None:
        self.step += 1
