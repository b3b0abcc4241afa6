"""What a localisation says: the culprit, its kind, and everything that qualifies it. Data only."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from fleet.evidence.trace import Call
from fleet.judge.tracing.timeline import Departure
from fleet.judge.tracing.tree import CallTree

Kind = Literal[
    "race", "kernel_choice", "undecided", "weights", "cache", "input", "structure", "gap",
    "batch_shape", "heterogeneity",
]  # fmt: skip
Source = Literal["failing", "later", "stacks"]


@dataclass(frozen=True)
class Culprit:
    """One culprit. ``path`` is a module's, the parent's for a gap, None when no module is named:
    the model's own input, replays of unlike length, a cache whose layer is not known.

    ``source``: seen in the failing replays themselves, in later ones, or in replays on two software
    stacks. ``gap``: the observations around code that is no module. ``digests``: of the two sides,
    input and output. ``unique`` of ``repeats`` outputs of one frozen input (0 of 0 when not
    repeated); ``bound``: 95% bound on the rate of a race when every repeat agreed. ``classes``:
    replay numbers by what they showed. ``zoom``: the first operation inside it that was not the
    same in all runs of one process or, where each process agrees with itself, in those of several.
    ``ancestors`` are context, not suspects.
    """

    path: str | None
    kind: Kind
    source: Source
    words: str
    survives_to_logits: bool
    arm: str = ""
    batch: int = 0
    step: int = 0
    occurrence: int = 0
    sample_ids: tuple[str, ...] = ()
    class_name: str = ""
    backend: str | None = None
    mode: str | None = None
    dtype: str = ""
    shape: str = ""
    gap: dict[str, str] | None = None
    tensor: str | None = None
    digests: dict[str, list[str]] = field(default_factory=dict)
    unique: int = 0
    repeats: int = 0
    bound: float | None = None
    zoom: dict[str, Any] | None = None
    classes: tuple[tuple[int, ...], ...] = ()
    ancestors: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """JSON-able form; the class is under ``class``."""
        body = asdict(self)
        body["class"] = body.pop("class_name")
        body["sample_ids"] = list(self.sample_ids)
        body["classes"] = [list(c) for c in self.classes]
        body["ancestors"] = list(self.ancestors)
        return body


@dataclass(frozen=True)
class Localisation:
    """What some traces of one contract say together.

    ``target``: the call to freeze and repeat, when repeating would tell more. ``not_localised``:
    what could not be told, in words. ``also``: other calls with the same input and another output.
    ``logits_differ``: raw logits do, although no traced call does. ``tree``: of the step in which
    they part, opened at the culprit.
    """

    attempts: tuple[str, ...]
    counts: dict[str, int]
    coverage: tuple[dict[str, object], ...]
    departures: tuple[Departure, ...]
    culprit: Culprit | None
    target: Call | None
    also: tuple[dict[str, Any], ...]
    not_localised: tuple[str, ...]
    hooks: tuple[str, ...]
    logits_differ: bool = False
    tree: CallTree | None = None

    @property
    def differs(self) -> bool:
        """Did any two replays part?"""
        return self.culprit is not None or bool(self.departures) or self.logits_differ
