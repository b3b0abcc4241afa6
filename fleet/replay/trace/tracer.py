"""Hooks on every module: each call is observed before and after, and landed as one row.

Before a call: its arguments, what the module owns, and its caches. After it: what it returned, and
whatever of those it changed in place. Everything is hashed before the hook returns, and nothing is
kept by reference. Eager execution only: hooks set after a model was compiled do not fire, and a
``forward`` that is called directly does not either; coverage says so. Knows no other replay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from fleet.evidence.trace import Call, ModuleRow, WeightRow, root_of
from fleet.replay.trace.digesting import Seen, TensorDigests, cache_digest, walk
from fleet.replay.trace.late import Digest, Late, late, settled
from fleet.replay.trace.modules import Owned, facts_text, has_forward, layers_below

Sink = Callable[[Call], None]
Parts = tuple[Digest | None, Digest | None, Digest | None]
"""Digests of arguments, own tensors and caches."""
Bytes = tuple[bytes | None, ...]


@dataclass
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
        self._waiting: list[Callable[[], None]] = []
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
        """Take them away; calls that never returned land as such."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
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
        for land in waiting:
            land()

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
        step = "prefill" if self.step == 0 and self._wanted == "prefill" else str(self.step)
        return self._wanted in ("all", step)

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
            if self._wants() and any(o.path == path for o in self._open):
                while self._open[-1].path != path:
                    self._land(self._open.pop(), None, ended=False)
                self._end(self._open.pop(), args, kwargs, output)
                self.digests.launch()

        return hook

    def _begin(self, path: str, args: Any, kwargs: Mapping[str, Any]) -> _Open:
        self.fired[path] += 1
        seen, given = self._look(path, args, kwargs)
        opened = _Open(
            path=path,
            begin=self._place,
            parent=self._open[-1].begin if self._open else -1,
            occurrence=self._calls[path],
            given=given,
            dtype=_dtype(seen.first),
            shape=_shape(seen.first),
            unhashed=len(seen.unhashed),
        )
        self._calls[path] += 1
        self._place += 1
        return opened

    def _end(self, opened: _Open, args: Any, kwargs: Mapping[str, Any], output: Any) -> None:
        self._land(opened, self.observe_output(opened.path, opened.given, args, kwargs, output))

    def observe_output(
        self,
        path: str,
        before: Parts,
        args: Any,
        kwargs: Mapping[str, Any],
        output: Any,
    ) -> Digest | None:
        """The out-root: what was returned, and what of arguments, own tensors, caches changed.

        What did not change is left out, so that equal outputs of different inputs are equal.
        """
        returned = walk(output, self.digests)
        after = walk(_given(args, kwargs), self.digests)
        own = self.owned.digest(path)
        cache = cache_digest(_caches(after, returned), self._layers[path], self.digests)
        return late(_out_root, returned.digest(), (after.digest(), own, cache), before)

    def observe_input(self, path: str, args: Any, kwargs: Mapping[str, Any]) -> Parts:
        """What a call of ``path`` with these arguments is about to see."""
        given = self._look(path, args, kwargs)[1]
        self.digests.launch()
        return given

    def _look(self, path: str, args: Any, kwargs: Mapping[str, Any]) -> tuple[Seen, Parts]:
        seen = walk(_given(args, kwargs), self.digests)
        cache = cache_digest(seen.caches, self._layers[path], self.digests)
        return seen, (seen.digest(), self.owned.digest(path), cache)

    def _land(self, opened: _Open, out: Digest | None, ended: bool = True) -> None:
        """In the order the calls ended, whether their digests are there already or not."""
        end = self._place if ended else -1
        self._place += ended
        land = self._landing(opened, out, end)
        if self._waiting or any(isinstance(part, Late) for part in (*opened.given, out)):
            self._waiting.append(land)
        else:
            land()

    def _landing(self, opened: _Open, out: Digest | None, end: int) -> Callable[[], None]:
        sink, arm, batch, samples, step = (
            self.sink, self._arm, self._batch, self._samples, self.step,
        )  # fmt: skip

        def land() -> None:
            args, own, cache = (settled(part) for part in opened.given)
            sink(Call(
                arm=arm,
                batch=batch,
                sample_ids=samples,
                step=step,
                begin=opened.begin,
                end=end,
                parent=opened.parent,
                path=opened.path,
                occurrence=opened.occurrence,
                class_name=type(self.modules[opened.path]).__name__,
                args_sha256=args,
                own_sha256=own,
                cache_sha256=cache,
                in_sha256=root_of((args, own, cache)),
                out_sha256=settled(out),
                dtype=opened.dtype,
                shape=opened.shape,
                unhashed=opened.unhashed,
            ))  # fmt: skip

        return land

    def _abandon(self) -> None:
        while self._open:
            self._land(self._open.pop(), None, ended=False)


def _given(args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Arguments to walk; the order of keywords is nothing that a call is given."""
    return args, dict(sorted(kwargs.items()))


def _caches(*seen: Seen) -> list[Any]:
    """Caches of several walks, each object once."""
    return list({id(cache): cache for one in seen for cache in one.caches}.values())


def in_root(given: Parts) -> Digest | None:
    """The in-root of what a call was given."""
    return late(root_of, given)


def _out_root(returned: bytes | None, now: Bytes, before: Bytes) -> bytes | None:
    changed = [None if a == b else a for a, b in zip(now, before, strict=True)]
    return root_of((returned, *changed))


def _dtype(tensor: torch.Tensor | None) -> str:
    return "" if tensor is None else str(tensor.dtype).removeprefix("torch.")


def _shape(tensor: torch.Tensor | None) -> str:
    return "" if tensor is None else ",".join(str(n) for n in tensor.shape)
