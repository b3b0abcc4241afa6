"""Where replays part: the first observation that differs, and what ran just before it.

Everything observed in a step has one order in time. The end of a call accuses that call, since all
inside it agreed; its beginning accuses the code of its caller since the observation before, or a
cache, a buffer, the model's input. Law 10: what is not localised is called so. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fleet.evidence.trace import Call, Trace
from fleet.judge.tracing.calls import Aligned, ancestors, coverage
from fleet.judge.tracing.culprit import Culprit, Kind, Localisation, Source
from fleet.judge.tracing.proof import Proof, name_of
from fleet.judge.tracing.timeline import Departure, departures, groups_of, timeline

MAX_ALSO = 20


def localise(
    traces: Sequence[Trace], repeated: Sequence[Trace] = (), source: Source = "later"
) -> Localisation:
    """The culprit of several traces.

    Args:
        traces: two or more, of one contract on one platform, of the same samples.
        repeated: traces of replays that repeated the target of an earlier localisation.
        source: whether ``traces`` are the failing replays themselves or later ones.

    Raises:
        ValueError: fewer than two traces.
    """
    if len(traces) < 2:
        raise ValueError("a difference takes two traces")
    return _Case(traces, repeated, source).solve()


class _Case:
    """One localisation in the making."""

    def __init__(self, traces: Sequence[Trace], repeated: Sequence[Trace], source: Source) -> None:
        self.traces, self.source = traces, source
        self.aligned = Aligned(traces)
        self.departures = tuple(
            d
            for group in groups_of(traces)
            for d in departures([timeline(t, group) for t in traces], group)
        )
        self.proof = Proof(traces, repeated)

    def solve(self) -> Localisation:
        culprit, target = self._weights_at_load(), None
        if culprit is None and self.departures:
            departure = self._first_that_matters()
            culprit, target = self._place(departure)
        return Localisation(
            attempts=tuple(t.attempt for t in self.traces),
            counts=self.aligned.counts(),
            coverage=tuple(coverage(t) for t in self.traces),
            departures=self.departures,
            culprit=culprit,
            target=target,
            also=self._also(culprit),
            not_localised=tuple(dict.fromkeys([*self.proof.trouble, *self._silences()])),
            hooks=tuple(t.hooks for t in self.traces),
        )

    def _weights_at_load(self) -> Culprit | None:
        """Weights that differ before the first call explain everything after it."""
        names = dict.fromkeys(name for t in self.traces for name in t.weights)
        for name in names:
            rows = [t.weights.get(name) for t in self.traces]
            shown = [row.load_sha256 if row else None for row in rows]
            if len(set(shown)) > 1:
                row = next(r for r in rows if r is not None)
                words = f"{name} differs between replays when loading ends"
                return self._culprit(
                    "weights", row.path, words, None, tensor=name, survives=self._logits_differ(),
                    classes=_classes_of(shown),
                )  # fmt: skip
        return None

    def _first_that_matters(self) -> Departure:
        """The first departure that reaches the logits, or the first of all when none does."""
        return next((d for d in self.departures if self._survives(d)), self.departures[0])

    def _place(self, d: Departure) -> tuple[Culprit | None, Call | None]:
        call = d.call
        if d.what in ("structure", "class"):
            return self._structure(d), None
        if d.phase == "out":
            return self._module(d)
        if d.what == "cache":
            return self._cache(d), None
        if d.what == "own":
            words = f"a buffer or plain tensor of {name_of(call.path)} differs before the call"
            return self._culprit("weights", call.path, words, d), None
        if call.parent < 0:
            return self._model_input(d), None
        return self._gap(d)

    def _module(self, d: Departure) -> tuple[Culprit | None, Call | None]:
        """A call ended differently: everything observed inside it agreed."""
        call = d.call
        if call.in_sha256 is None:
            self.proof.trouble.append(
                f"{name_of(call.path)}: other outputs, but nothing hashable went in: UNKNOWN"
            )
            return None, None
        changed = self.proof.changed_weight([call.path])
        if changed is not None:
            words = f"{changed} changed while the replay ran"
            return self._culprit("weights", call.path, words, d, tensor=changed), None
        children = self._children(d)
        if children:
            gap = {"after": _leaf(children[-1].path, call.path), "before": "its end"}
            return self._functional(d, call, gap), call
        kind, proof, words = self.proof.kind(call)
        return self._culprit(kind, call.path, words, d, **proof), call

    def _gap(self, d: Departure) -> tuple[Culprit | None, Call | None]:
        """A call began with other arguments although all before it agreed: code in its caller."""
        parent = self._caller(d)
        if parent is None:
            self.proof.trouble.append(f"the caller of {name_of(d.call.path)} was not observed")
            return None, None
        if parent.in_sha256 is None:
            self.proof.trouble.append(f"{name_of(parent.path)}: nothing hashable went in: UNKNOWN")
            return None, None
        before = [c for c in self._children(d) if c.begin < d.call.begin]
        after = _leaf(before[-1].path, parent.path) if before else "its beginning"
        gap = {"after": after, "before": _leaf(d.call.path, parent.path)}
        return self._functional(d, parent, gap), parent

    def _functional(self, d: Departure, owner: Call, gap: dict[str, str]) -> Culprit:
        silent = self._silent_below(owner.path)
        changed = self.proof.changed_weight([owner.path, *silent])
        if changed is not None:
            words = f"{changed} changed while the replay ran"
            return self._culprit("weights", owner.path, words, d, call=owner, tensor=changed)
        _, proof, told = self.proof.kind(owner)
        words = f"code in {name_of(owner.path)}, between {gap['after']} and {gap['before']}: {told}"
        if silent:
            unseen = ", ".join(_leaf(p, owner.path) for p in silent)
            words += f"; modules in it that no hook saw: {unseen}"
        return self._culprit("gap", owner.path, words, d, call=owner, gap=gap, **proof)

    def _silent_below(self, path: str) -> list[str]:
        prefix = f"{path}." if path else ""
        modules = self.traces[0].modules.values()
        return [
            m.path
            for m in modules
            if m.expected and m.path.startswith(prefix) and m.path != path
            and any(not t.modules[m.path].fired for t in self.traces if m.path in t.modules)
        ]  # fmt: skip

    def _cache(self, d: Departure) -> Culprit:
        """The cache moved between two observations; the first layer that reads it is named."""
        call = d.call
        owner = call.path
        if call.parent < 0:
            key = (call.arm, call.batch, call.step)
            readers = [
                row[0].path
                for k in self.aligned.keys
                if k[:3] == key and (row := self.aligned.row(k)) and row[0].parent >= 0
                and len({c.cache_sha256 for c in row}) > 1
            ]  # fmt: skip
            owner = max(readers, key=lambda p: p.count("."), default="") if readers else ""
            first = [p for p in readers if p.count(".") == owner.count(".")]
            owner = first[0] if first else owner
        words = f"the cache that {name_of(owner)} reads differs before step {call.step}"
        return self._culprit("cache", owner, words, d)

    def _model_input(self, d: Departure) -> Culprit:
        call, other = d.call, d.other.call if d.other else d.call
        if (
            call.sample_ids != other.sample_ids
            or call.shape.split(",")[:1] != other.shape.split(",")[:1]
        ):
            words = "the batches are not the same samples"
            return self._culprit("batch_shape", None, words, d)
        if call.step == 0:
            words = "the model's input differs: no module is accused"
        else:
            words = f"the input of step {call.step} differs although all logits before it agree"
        return self._culprit("input", None, words, d)

    def _structure(self, d: Departure) -> Culprit:
        if d.what == "class":
            assert d.seen is not None and d.other is not None
            words = f"{d.seen.call.class_name} in one replay, {d.other.call.class_name} in another"
            return self._culprit("heterogeneity", d.call.path, words, d)
        mine = d.seen.call if d.seen else None
        theirs = d.other.call if d.other else None
        odd = self._extra(d)
        who = "replays " + ", ".join(str(r) for r in d.departed)
        if odd is None:
            words = f"{who} end here, the others go on" if theirs is None else f"{who} go on"
            return self._culprit("structure", (mine or theirs).path or None, words, d)  # type: ignore[union-attr]
        call, missing = odd
        how = (
            "is not seen (skipped, or called past its hooks)" if missing else "is called once more"
        )
        words = f"{name_of(call.path)}, call {call.occurrence + 1}, {how} in {who}"
        return self._culprit("structure", call.path, words, d, call=call)

    def _extra(self, d: Departure) -> tuple[Call, bool] | None:
        """The call that one side has and the other lacks; True when the departed side lacks it."""
        keep, gone = d.classes[0][0], d.classes[1][0]
        for observation, lacking, missing in ((d.seen, gone, True), (d.other, keep, False)):
            if observation is None or observation.phase != "in":
                continue
            call = observation.call
            same = [
                c
                for c in self.traces[lacking].calls
                if (c.arm, c.batch, c.step, c.path, c.occurrence)
                == (call.arm, call.batch, call.step, call.path, call.occurrence)
            ]
            if not same:
                return call, missing
        if d.seen is not None and d.seen.phase == "in":
            return d.seen.call, True
        if d.other is not None and d.other.phase == "in":
            return d.other.call, False
        return None

    def _children(self, d: Departure) -> list[Call]:
        """Calls made directly by the caller in question that had begun by then, in order."""
        call = d.call
        owner = call.begin if d.phase == "out" else call.parent
        found = [
            c
            for c in self.traces[d.classes[0][0]].calls
            if (c.arm, c.batch, c.step, c.parent) == (call.arm, call.batch, call.step, owner)
        ]
        return sorted(found, key=lambda c: c.begin)

    def _caller(self, d: Departure) -> Call | None:
        call = d.call
        return next(
            (
                c
                for c in self.traces[d.classes[0][0]].calls
                if (c.arm, c.batch, c.step, c.begin)
                == (call.arm, call.batch, call.step, call.parent)
            ),
            None,
        )

    def _survives(self, d: Departure) -> bool:
        """Does the difference reach the logits? Not when a call around it ends the same."""
        if d.what != "structure" and any(self._ends_same(a) for a in self._around(d)):
            return False
        return self._logits_differ(d)

    def _around(self, d: Departure) -> list[Call]:
        return ancestors(d.call, self.traces[d.classes[0][0]].calls)

    def _ends_same(self, call: Call) -> bool:
        key = (call.arm, call.batch, call.step, call.path, call.occurrence)
        return self.aligned.word(key).endswith("->SAME")

    def _logits_differ(self, d: Departure | None = None) -> bool:
        """Do raw logits differ from this step on, in any sample of the batch (or anywhere)?"""
        keys = dict.fromkeys(key for t in self.traces for key in t.logits)
        for arm, sample in keys:
            if d is not None and (arm != d.call.arm or sample not in d.call.sample_ids):
                continue
            first = 0 if d is None else d.call.step
            shown = {t.logits.get((arm, sample), ())[first:] for t in self.traces}
            if len(shown) > 1:
                return True
        return False

    def _culprit(
        self,
        kind: Kind,
        path: str | None,
        words: str,
        d: Departure | None,
        *,
        call: Call | None = None,
        survives: bool | None = None,
        classes: tuple[tuple[int, ...], ...] = (),
        **more: Any,
    ) -> Culprit:
        about = call or (d.call if d else None)
        facts = self._facts(path)
        place: dict[str, Any] = {}
        if about is not None:
            place = {
                "arm": about.arm,
                "batch": about.batch,
                "step": about.step,
                "occurrence": about.occurrence,
                "sample_ids": about.sample_ids,
                "dtype": about.dtype,
                "shape": about.shape,
            }
        if d is not None:
            place["digests"] = _digests(d)
            place["ancestors"] = tuple(name_of(c.path) for c in self._around(d))
            survives = self._survives(d) if survives is None else survives
        return Culprit(
            path=path,
            kind=kind,
            source=self.source,
            words=words,
            survives_to_logits=bool(survives),
            class_name=self._class(path),
            backend=_text(facts, "backend"),
            mode=_text(facts, "linear_mode"),
            classes=d.classes if d else classes,
            **place | more,
        )

    def _facts(self, path: str | None) -> Mapping[str, Any]:
        row = None if path is None else self.traces[0].modules.get(path)
        facts: Mapping[str, Any] = json.loads(row.facts_at_end) if row else {}
        return facts

    def _class(self, path: str | None) -> str:
        row = None if path is None else self.traces[0].modules.get(path)
        return row.class_name if row else ""

    def _also(self, culprit: Culprit | None) -> tuple[dict[str, Any], ...]:
        found: dict[tuple[str, str], int] = {}
        for call in self.aligned.candidates():
            if culprit is None or call.path != culprit.path:
                key = (call.path, call.class_name)
                found[key] = found.get(key, 0) + 1
        return tuple(
            {"path": path, "class": name, "calls": count} for (path, name), count in found.items()
        )[:MAX_ALSO]

    def _silences(self) -> list[str]:
        """What the traces cannot tell, whatever they found."""
        told = []
        unknown = sum(1 for t in self.traces for c in t.calls if c.in_sha256 is None)
        if unknown:
            told.append(f"{unknown} calls had nothing hashable going in")
        return told


def _digests(d: Departure) -> dict[str, list[str]]:
    sides = [o.call for o in (d.seen, d.other) if o is not None]
    return {
        "in": [c.in_sha256.hex() if c.in_sha256 else "" for c in sides],
        "out": [c.out_sha256.hex() if c.out_sha256 else "" for c in sides],
    }


def _classes_of(shown: Sequence[object]) -> tuple[tuple[int, ...], ...]:
    found: dict[object, list[int]] = {}
    for replay, value in enumerate(shown):
        found.setdefault(value, []).append(replay)
    return tuple(tuple(c) for c in sorted(found.values(), key=lambda c: (-len(c), c[0])))


def _leaf(path: str, parent: str) -> str:
    """A path as its caller would say it."""
    prefix = f"{parent}." if parent else ""
    return path.removeprefix(prefix) or "the model"


def _text(facts: Mapping[str, Any], name: str) -> str | None:
    value = facts.get(name)
    return None if value is None else str(value)
