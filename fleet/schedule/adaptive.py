"""As many replays as a declared bound takes, one after the other, and no more once two differ.

The number is known before the first one runs, so stopping there is no peeking: only a difference,
which no further replay can take back, ends it sooner. Knows no verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
        sets: dict[tuple[str, tuple[str, ...]], list[AttemptEnd]] = {}
        for end in ends:
            if _certifies(end):
                sets.setdefault((end.slot.contract, end.slot.vary), []).append(end)
        for (name, _), of_set in sets.items():
            if name in self.contracts and self._wants(self.contracts[name], of_set):
                last = max((e.slot for e in of_set), key=lambda slot: slot.replay)
                index = max(e.slot.index for e in ends) + 1
                return [replace(last, index=index, replay=last.replay + 1)]
        return self.then(ends)

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
