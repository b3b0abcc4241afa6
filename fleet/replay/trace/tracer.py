"""Hooks on every module: each call is observed before and after, and landed as one row.

Before a call: its arguments, what the module owns, and its caches. After it: what it returned, and
whatever of those it changed in place. Everything is hashed before the hook returns, and nothing is
kept by reference. Eager execution only: hooks set after a model was compiled do not fire, and a
``forward`` that is called directly does not either; coverage says so. Knows no other replay.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from fleet.evidence.trace import Call, ModuleRow, WeightRow, root_of
from fleet.replay.trace.digesting import Seen, TensorDigests, cache_digest, walk
from fleet.replay.trace.late import Part, settled
from fleet.replay.trace.modules import Owned, facts_text, has_forward, layers_below

Sink = Callable[[Call], None]
Parts = tuple[Part, Part, Part]
"""Digests of arguments, own tensors and caches."""


class Output(NamedTuple):
    """What came out of a call: what it returned, and its parts after and before it."""

    returned: Part
    after: Parts
    before: Parts

    def root(self) -> bytes | None:
        """The out-root. What did not change is left out, so that equal outputs of different inputs
        are equal."""
        pairs = zip(self.after, self.before, strict=True)
        changed = [None if now == then else settled(now) for now, then in pairs]
        return root_of((settled(self.returned), *changed))


@dataclass(slots=True)
class _Open:
    """A call that has begun: its observations so far."""

    path: str
    begin: int
    parent: int
    occurrence: int
    given: Parts
    dtype: str
    shape: str
    unhashed: int


class Tracer:
    """Traces one loaded model.

    Args:
        model: the loaded model.
        packed: paths of modules whose buffers are packed weights.
        sink: takes each call when it ends.
        steps: which steps of each batch: ``all``, ``prefill`` or a number.
        digests: what hashes tensors; None for the host.
    """

    def __init__(
        self,
        model: nn.Module,
        packed: Collection[str],
        sink: Sink,
        steps: str = "all",
        digests: TensorDigests | None = None,
    ) -> None:
        self.model = model
        self.modules: dict[str, nn.Module] = dict(model.named_modules())
        self.digests = digests or TensorDigests()
        self.owned = Owned(self.modules, packed, self.digests)
        self.sink = sink
        self.fired: Counter[str] = Counter()
        self._wanted = steps
        self._facts = {path: facts_text(module) for path, module in self.modules.items()}
        self._layers = {path: layers_below(module) for path, module in self.modules.items()}
        self._arm, self._batch = "", -1
        self._samples: tuple[str, ...] = ()
        self.step = -1
        self._place = 0
        self._open: list[_Open] = []
        self._calls: Counter[str] = Counter()
        self._handles: list[RemovableHandle] = []
        self._paused = False
        self._waiting: list[_Ended] = []
        self._own = {path: self.owned.digest(path) for path in self.modules}
        self.settle()

    def attach(self) -> None:
        """Put the hooks in place, behind all that are there already."""
        for path, module in self.modules.items():
            self._handles.append(
                module.register_forward_pre_hook(self._before(path), with_kwargs=True)
            )
            self._handles.append(module.register_forward_hook(self._after(path), with_kwargs=True))

    def detach(self) -> None:
        """Take them away."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.end_batch()

    def end_batch(self) -> None:
        """Land what is open or waits; calls that never returned land as such."""
        self._abandon()
        self.settle()

    def start_batch(self, arm: str, ordinal: int, sample_ids: Sequence[str]) -> None:
        """What follows is this batch, from its prefill on."""
        self._abandon()
        self._arm, self._batch, self._samples, self.step = arm, ordinal, tuple(sample_ids), -1
        self._place = 0
        self._calls.clear()

    @property
    def place(self) -> tuple[str, int, int]:
        """(arm, batch ordinal, step) of what runs now."""
        return self._arm, self._batch, self.step

    @contextmanager
    def aside(self, sink: Sink | None) -> Iterator[None]:
        """Let calls in here go to ``sink`` (None: nowhere) and leave no mark on the trace."""
        self.settle()
        kept = (self.sink, self._place, self._open, self._calls, self._paused, self.fired)
        self._place, self._open, self._calls, self.fired = 0, [], Counter(), Counter()
        self._paused = sink is None
        self.sink = sink or self.sink
        try:
            yield
        finally:
            self.settle()
            self.sink, self._place, self._open, self._calls, self._paused, self.fired = kept

    def settle(self) -> None:
        """Land what waits for the device's digests."""
        self.digests.settle()
        waiting, self._waiting = self._waiting, []
        for ended in waiting:
            ended.land()

    def module_rows(self) -> list[ModuleRow]:
        """Every module as it was when tracing began and as it is now."""
        return [
            ModuleRow(
                path=path,
                class_name=type(module).__name__,
                facts=self._facts[path],
                facts_at_end=facts_text(module),
                expected=has_forward(module),
                fired=self.fired[path],
                own_sha256=settled(self._own[path]),
            )
            for path, module in self.modules.items()
        ]

    def weight_rows(self) -> list[WeightRow]:
        """Every weight at load and now."""
        return self.owned.rows()

    def _wants(self) -> bool:
        if self._paused:
            return False
        if self._wanted == "all":
            return True
        if self._wanted == "prefill":
            return self.step <= 0  # -1: what is called before the model, as encoders of images are
        return self._wanted == str(self.step)

    def _before(self, path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
            if not path and not self._paused:
                self._abandon()
                self.settle()
                self.step += 1
                self._place = 0
                self._calls.clear()
            if self._wants():
                self._open.append(self._begin(path, args, kwargs))
                self.digests.launch()

        return hook

    def _after(self, path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Mapping[str, Any], output: Any) -> None:
            if self._wants() and any(o.path == path for o in reversed(self._open)):
                while self._open[-1].path != path:
                    self._land(self._open.pop(), None)
                opened = self._open.pop()
                self._land(opened, self.observe_output(path, opened.given, args, kwargs, output))
                self.digests.launch()

        return hook

    def _begin(self, path: str, args: Any, kwargs: Mapping[str, Any]) -> _Open:
        seen, given = self._look(path, args, kwargs)
        opened = _Open(
            path=path,
            begin=self._place,
            parent=self._open[-1].begin if self._open else -1,
            occurrence=self._calls[path],
            given=given,
            dtype="" if seen.first is None else _dtype(seen.first.dtype),
            shape="" if seen.first is None else _shape(seen.first.shape),
            unhashed=len(seen.unhashed),
        )
        self.fired[path] += 1
        self._calls[path] += 1
        self._place += 1
        return opened

    def observe_output(
        self,
        path: str,
        before: Parts,
        args: Any,
        kwargs: Mapping[str, Any],
        output: Any,
    ) -> Output:
        """What was returned, and what the arguments, own tensors and caches are now."""
        returned = walk(output, self.digests)
        after = walk(_given(args, kwargs), self.digests)
        own = self.owned.digest(path)
        cache = cache_digest(_caches(after, returned), self._layers[path], self.digests)
        return Output(returned.digest(), (after.digest(), own, cache), before)

    def observe_input(self, path: str, args: Any, kwargs: Mapping[str, Any]) -> Parts:
        """What a call of ``path`` with these arguments is about to see."""
        given = self._look(path, args, kwargs)[1]
        self.digests.launch()
        return given

    def _look(self, path: str, args: Any, kwargs: Mapping[str, Any]) -> tuple[Seen, Parts]:
        seen = walk(_given(args, kwargs), self.digests)
        cache = cache_digest(seen.caches, self._layers[path], self.digests)
        return seen, (seen.digest(), self.owned.digest(path), cache)

    def _land(self, opened: _Open, output: Output | None) -> None:
        """Calls land in the order they ended, at once or when the device has been asked."""
        end = -1 if output is None else self._place
        self._place += output is not None
        kind = type(self.modules[opened.path]).__name__
        ended = _Ended(
            self.sink, self._arm, self._batch, self._samples, self.step, kind, opened, end, output
        )
        if self.digests.late:
            self._waiting.append(ended)
        else:
            ended.land()

    def _abandon(self) -> None:
        while self._open:
            self._land(self._open.pop(), None)


class _Ended(NamedTuple):
    """A call that is over, where it ran and who takes it. ``output``: None if it never returned."""

    sink: Sink
    arm: str
    batch: int
    samples: tuple[str, ...]
    step: int
    class_name: str
    opened: _Open
    end: int
    output: Output | None

    def land(self) -> None:
        """Everything must have been settled."""
        opened = self.opened
        args, own, cache = (settled(part) for part in opened.given)
        call = Call(
            arm=self.arm,
            batch=self.batch,
            sample_ids=self.samples,
            step=self.step,
            begin=opened.begin,
            end=self.end,
            parent=opened.parent,
            path=opened.path,
            occurrence=opened.occurrence,
            class_name=self.class_name,
            args_sha256=args,
            own_sha256=own,
            cache_sha256=cache,
            in_sha256=root_of((args, own, cache)),
            out_sha256=None if self.output is None else self.output.root(),
            dtype=opened.dtype,
            shape=opened.shape,
            unhashed=opened.unhashed,
        )
        self.sink(call)


def _given(args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Arguments to walk; the order of keywords is nothing that a call is given."""
    return args, dict(sorted(kwargs.items())) if kwargs else kwargs


def _caches(*seen: Seen) -> list[Any]:
    """Caches of several walks, each object once."""
    return list({id(cache): cache for one in seen for cache in one.caches}.values())


def in_root(given: Parts) -> bytes | None:
    """The in-root of what a call was given; everything must have been settled."""
    return root_of([settled(part) for part in given])


@functools.cache
def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@functools.lru_cache(maxsize=4096)
def _shape(shape: torch.Size) -> str:
    return ",".join(str(n) for n in shape)
