"""As many replays as a declared bound takes, one after the other, and no more once two differ.

The number is known before the first one runs, so stopping there is no peeking: only a difference,
which no further replay can take back, ends it sooner. Knows no verdict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fleet.evidence.landing import Landing
from fleet.evidence.manifest import Manifest
from fleet.judge.bounds import fewest_replays
from fleet.schedule.driver import AttemptEnd, Follow
from fleet.schedule.plan import Slot
from fleet.schedule.resolve import Resolved


@dataclass
class UntilBound:
    """Asked by the driver for further slots.

    Args:
        landing: where the manifests are.
        contracts: those that declare a bound, by name; others are left alone.
        then: asked when no further replay is due.
    """

    landing: Landing
    contracts: Mapping[str, Resolved]
    then: Follow
    _roots: dict[str, str] = field(default_factory=dict)

    def __call__(self, ends: Sequence[AttemptEnd]) -> Sequence[Slot]:
        """One more slot of the first claim that needs one, else whatever comes after."""
        for resolved, slots in self._claims(ends):
            if self._wants(resolved, slots):
                index = max(e.slot.index for e in ends) + 1
                last = max(slots, key=lambda e: e.slot.replay).slot
                return [replace(last, index=index, replay=last.replay + 1)]
        return self.then(ends)

    def _claims(
        self, ends: Sequence[AttemptEnd]
    ) -> Iterator[tuple[Resolved, Sequence[AttemptEnd]]]:
        """The replays of each set: of one contract, and varied alike."""
        for resolved in self.contracts.values():
            mine = [e for e in ends if _certifies(e) and e.slot.contract == resolved.name]
            for vary in dict.fromkeys(e.slot.vary for e in mine):
                yield resolved, [e for e in mine if e.slot.vary == vary]

    def _wants(self, resolved: Resolved, ends: Sequence[AttemptEnd]) -> bool:
        """No: a slot is lost for good, so the campaign has no PASS left; two differ; or enough."""
        by_slot = {e.slot.index: e for e in ends}  # the last end of each, after its retries
        complete = [e.attempt for e in by_slot.values() if e.state == "COMPLETE"]
        if len(complete) < len(by_slot):
            return False
        require = resolved.loaded.contract.require
        different = {self._root(attempt, require.grade) for attempt in complete}
        return len(different) == 1 and len(complete) < fewest_replays(require)

    def _root(self, attempt: str, grade: str) -> str:
        """Equal roots settle a grade and those below it."""
        if attempt not in self._roots:
            manifest = Manifest.from_bytes(self.landing.manifest(attempt).read_bytes())
            self._roots[attempt] = manifest.roots.get(grade, "")
        return self._roots[attempt]


def _certifies(end: AttemptEnd) -> bool:
    return end.slot.work is None or end.slot.work.purpose == "certify"
