"""A culprit with everything that qualifies it, from a departure and what was concluded. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fleet.evidence.trace import Call
from fleet.judge.tracing.culprit import Culprit, Kind, Source
from fleet.judge.tracing.history import History
from fleet.judge.tracing.proof import name_of
from fleet.judge.tracing.timeline import Departure


class Describer:
    """Makes culprits of one localisation."""

    def __init__(self, history: History, source: Source) -> None:
        self._history, self._source = history, source

    def at_load(
        self, kind: Kind, path: str, words: str, classes: tuple[tuple[int, ...], ...], **more: Any
    ) -> Culprit:
        """Something that differs before the first call."""
        survives = self._history.logits_differ([c[0] for c in classes])
        return self._culprit(kind, path, words, survives, classes=classes, **more)

    def culprit(
        self,
        kind: Kind,
        path: str | None,
        words: str,
        d: Departure,
        *,
        call: Call | None = None,
        **more: Any,
    ) -> Culprit:
        """Something that a departure shows. ``call``: the call in question, if another one."""
        about = call or d.call
        place = {
            "arm": about.arm,
            "batch": about.batch,
            "step": about.step,
            "occurrence": about.occurrence,
            "sample_ids": about.sample_ids,
            "dtype": about.dtype,
            "shape": about.shape,
            "digests": _digests(d),
            "ancestors": tuple(name_of(c.path) for c in self._history.around(d)),
            "classes": d.classes,
        }
        return self._culprit(kind, path, words, self._history.survives(d), **place | more)

    def _culprit(
        self, kind: Kind, path: str | None, words: str, survives: bool, **more: Any
    ) -> Culprit:
        row = None if path is None else self._history.traces[0].modules.get(path)
        facts: Mapping[str, Any] = json.loads(row.facts_at_end) if row else {}
        return Culprit(
            path=path,
            kind=kind,
            source=self._source,
            words=words,
            survives_to_logits=survives,
            class_name=row.class_name if row else "",
            backend=_text(facts, "backend"),
            mode=_text(facts, "linear_mode"),
            **more,
        )


def _digests(d: Departure) -> dict[str, list[str]]:
    sides = [o.call for o in (d.seen, d.other) if o is not None]
    return {
        "in": [c.in_sha256.hex() if c.in_sha256 else "" for c in sides],
        "out": [c.out_sha256.hex() if c.out_sha256 else "" for c in sides],
    }


def _text(facts: Mapping[str, Any], name: str) -> str | None:
    value = facts.get(name)
    return None if value is None else str(value)
