"""How a fault is put into one process: an attribute is replaced by a wrapper of itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fleet.replay.engines.protocol import Generation, Prepared
from fleet.replay.engines.synthetic import SyntheticEngine
from fleet.replay.probe import AtEntry
from fleet.replay.task import ReplayTask

Fault = Callable[[ReplayTask, AtEntry], AtEntry | None]


def wrap(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Put ``make(original)`` in the place of an attribute."""
    setattr(owner, name, make(getattr(owner, name)))


def is_current(prepared: Prepared, *wanted: str) -> bool:
    """One of some samples, in the arm ``current``."""
    return prepared.sample_id in wanted and not prepared.prompt_text.startswith("Choose")


def generated(change: Callable[[Prepared, Generation], Generation]) -> Fault:
    """A fault in what the engine produces for one row."""

    def fault(task: ReplayTask, entry: AtEntry) -> None:
        def make(original: Any) -> Any:
            def generate_one(self: Any, prepared: Prepared) -> Generation:
                return change(prepared, original(self, prepared))

            return generate_one

        wrap(SyntheticEngine, "_generate_one", make)

    return fault
