"""From a departure to what is accused: a module, code between modules, a state, or nobody.

The end of a call accuses that call, since all inside it agreed; its beginning accuses the code of
its caller since the observation before, or a cache, a buffer, the model's input. Where something
went in that no digest covers, only a race accuses: it was shown with that input frozen. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from fleet.evidence.trace import Call
from fleet.judge.tracing.calls import key_of
from fleet.judge.tracing.culprit import Culprit
from fleet.judge.tracing.describe import Describer
from fleet.judge.tracing.history import History
from fleet.judge.tracing.proof import At, Proof, name_of
from fleet.judge.tracing.structure import structure
from fleet.judge.tracing.timeline import Departure

Accused = tuple[Culprit | None, Call | None]
"""The culprit, and the call to freeze and repeat when repeating would tell more."""

MAX_UNSEEN = 5


class Accuser:
    """Accuses by one set of traces and repeats."""

    def __init__(self, history: History, proof: Proof, describer: Describer) -> None:
        self._history, self._proof, self._describer = history, proof, describer

    def accuse(self, d: Departure) -> Accused:
        """What this departure shows."""
        if d.what in ("structure", "class"):
            return structure(d, self._history, self._describer), None
        if d.phase == "out":
            return self._ended(d)
        if d.call.parent < 0 and self._history.follows_untraced(d.call):
            words = (
                f"step {d.call.step} differs from its beginning, and no step before it is traced"
            )
            return self._nobody(words)
        if d.what == "own":
            return self._own(d)
        if d.what == "cache":
            return self._cache(d), None
        return (self._input(d), None) if d.call.parent < 0 else self._gap(d)

    def _nobody(self, why: str, target: Call | None = None) -> Accused:
        """Not localised, and why."""
        self._proof.trouble.append(why)
        return None, target

    def _ended(self, d: Departure) -> Accused:
        """A call ended differently, and everything observed inside it agreed."""
        replay = self._history.pair(d)[0]
        children = self._history.children(replay, d.call)
        silent = self._history.silent(replay, d.call)
        at = ("out", d.call.path)
        if not children and not silent:
            return self._code(d, d.call, at, None, ())
        after = _leaf(children[-1].path, d.call.path) if children else "its beginning"
        return self._code(d, d.call, at, {"after": after, "before": "its end"}, silent)

    def _gap(self, d: Departure) -> Accused:
        """A call began with other arguments although all before it agreed: code in its caller."""
        replay = self._history.pair(d)[0]
        owner = self._history.caller(replay, d.call)
        if owner is None:
            return self._nobody(f"the caller of {name_of(d.call.path)} was not observed")
        before = [c for c in self._history.children(replay, owner) if c.begin < d.call.begin]
        after = _leaf(before[-1].path, owner.path) if before else "its beginning"
        gap = {"after": after, "before": _leaf(d.call.path, owner.path)}
        silent = self._history.silent(replay, owner)
        return self._code(d, owner, ("in", d.call.path), gap, silent)

    def _code(
        self,
        d: Departure,
        owner: Call,
        at: At,
        gap: dict[str, str] | None,
        silent: Sequence[str],
    ) -> Accused:
        """Code of ``owner``, all of it or that of a gap, gave other results for equal inputs."""
        pair = self._history.pair(d)
        if owner.in_sha256 is None:
            words = "other outputs, but nothing hashable went in: UNKNOWN"
            return self._nobody(f"{name_of(owner.path)}: {words}")
        found = self._proof.race(owner, at)
        if found is None:
            changed = self._proof.changed_weight([owner.path, *silent], pair)
            if changed is not None:
                words = f"{changed} changed while a replay ran"
                path = self._history.traces[pair[0]].weights[changed].path
                made = self._describer.culprit(
                    "weights", path, words, d, call=owner, tensor=changed
                )
                return made, None
            hidden = _hidden(owner)
            if hidden:
                return self._nobody(f"{name_of(owner.path)}: other outputs, but {hidden}", owner)
            found = self._proof.other(owner, pair)
        kind, words = found.kind, found.words
        if gap is not None:
            place = f"code in {name_of(owner.path)}, between {gap['after']} and {gap['before']}"
            kind, words = "gap", f"{place}: {words}{_unseen(silent, owner.path)}"
        made = self._describer.culprit(
            kind, owner.path, words, d, call=owner, gap=gap, **found.proof
        )
        return made, owner

    def _own(self, d: Departure) -> Accused:
        """A buffer or plain tensor differs although all observations before it agreed."""
        name = f"a buffer or plain tensor of {name_of(d.call.path)}"
        if all(self._history.moved(replay, d.call) for replay in self._history.pair(d)):
            return self._nobody(f"{name} differs, and replays write to it between its calls")
        words = f"{name} changed between its calls in one replay and not in another"
        return self._describer.culprit("weights", d.call.path, words, d), None

    def _cache(self, d: Departure) -> Culprit:
        """A cache differs although all observations before it agreed."""
        if d.call.parent >= 0:
            words = f"the cache that {name_of(d.call.path)} reads changed during step {d.call.step}"
            return self._describer.culprit("cache", d.call.path, words, d)
        reader = self._first_reader(d)
        if reader is None:
            words = f"the cache differs before step {d.call.step}; which layer's is not known"
            return self._describer.culprit("cache", None, words, d)
        words = f"the cache that {name_of(reader.path)} reads differs before step {d.call.step}"
        return self._describer.culprit("cache", reader.path, words, d)

    def _first_reader(self, d: Departure) -> Call | None:
        """The first innermost reader whose own part of the cache differs, if others' do not."""
        mine, theirs = self._history.pair(d)
        place = key_of(d.call)[:3]
        readers = [
            c
            for c in self._history.traces[mine].calls
            if key_of(c)[:3] == place and c.cache_sha256 and c.path and not self._reads_below(c)
        ]
        readers.sort(key=lambda c: c.begin)
        unlike = [
            c
            for c in readers
            if (twin := self._history.twin(theirs, c)) and twin.cache_sha256 != c.cache_sha256
        ]
        known = bool(unlike) and (len(unlike) < len(readers) or len(readers) == 1)
        return unlike[0] if known else None

    def _reads_below(self, call: Call) -> bool:
        calls = self._history.traces[0].calls
        return any(c.cache_sha256 and c.path.startswith(f"{call.path}.") for c in calls)

    def _input(self, d: Departure) -> Culprit:
        """The model was called with other arguments."""
        call, other = d.call, d.other.call if d.other else d.call
        rows = (call.shape.split(",")[0], other.shape.split(",")[0])
        if call.sample_ids != other.sample_ids or rows[0] != rows[1]:
            words = "the batches are not the same samples"
            return self._describer.culprit("batch_shape", None, words, d)
        if call.step <= 0:
            words = "the model's input differs: no module is accused"
        else:
            words = f"the input of step {call.step} differs although all logits before it agree"
        return self._describer.culprit("input", None, words, d)


def _hidden(call: Call) -> str:
    """Why equal in-roots of this call do not mean equal inputs; empty when they do."""
    if call.unhashed:
        return "something went in that is not hashed"
    if not call.dtype and call.cache_sha256 is None:
        return "no tensor went in"
    return ""


def _unseen(silent: Sequence[str], path: str) -> str:
    if not silent:
        return ""
    more = f" and {len(silent) - MAX_UNSEEN} more" if len(silent) > MAX_UNSEEN else ""
    named = ", ".join(_leaf(p, path) for p in silent[:MAX_UNSEEN])
    return f"; modules in it that no hook saw in this call: {named}{more}"


def _leaf(path: str, parent: str) -> str:
    """A path as its caller would say it."""
    prefix = f"{parent}." if parent else ""
    return path.removeprefix(prefix) or "the model"
