"""Questions about several traces at once: who called whom, what was seen before, what lasted.

Knows no kind of fault and accuses nobody. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from fleet.evidence.trace import Call, Trace
from fleet.judge.tracing.calls import Aligned, ancestors, key_of, place_of
from fleet.judge.tracing.proof import Pair
from fleet.judge.tracing.timeline import Departure, departures, groups_of, timeline


class History:
    """Traces of one contract, and where they part."""

    def __init__(self, traces: Sequence[Trace]) -> None:
        self.traces = traces
        self.aligned = Aligned(traces)
        self.departures = tuple(
            d
            for group in groups_of(traces)
            for d in departures([timeline(t, group) for t in traces], group)
        )

    @staticmethod
    def pair(d: Departure) -> Pair:
        """The first replay that stayed and the first that departed."""
        return d.classes[0][0], d.classes[1][0]

    def twin(self, replay: int, call: Call) -> Call | None:
        """The same call in another replay."""
        return self.aligned.by_key[replay].get(key_of(call))

    def caller(self, replay: int, call: Call) -> Call | None:
        """Who called it; None for the model itself."""
        return self.aligned.begun[replay].get((call.arm, call.batch, call.step, call.parent))

    def children(self, replay: int, owner: Call) -> list[Call]:
        """Calls that ``owner`` made itself, in the order they began."""
        inside = (owner.arm, owner.batch, owner.step, owner.begin)
        found = [
            c for c in self.traces[replay].calls if (c.arm, c.batch, c.step, c.parent) == inside
        ]
        return sorted(found, key=place_of)

    def around(self, d: Departure) -> list[Call]:
        """The calls around a departure, innermost first."""
        replay = d.classes[0][0] if d.seen else d.classes[1][0]
        return ancestors(d.call, self.aligned.begun[replay])

    def silent(self, replay: int, owner: Call) -> list[str]:
        """Modules below ``owner`` that could have been called in this call, and were not seen."""
        prefix = f"{owner.path}." if owner.path else ""
        seen = {
            c.path
            for c in self.traces[replay].calls
            if (c.arm, c.batch, c.step) == (owner.arm, owner.batch, owner.step)
            and c.begin > owner.begin
            and (owner.end < 0 or c.begin < owner.end)
        }
        modules = self.traces[replay].modules.values()
        below = [m.path for m in modules if m.expected and m.path.startswith(prefix)]
        return [path for path in below if path not in seen and path != owner.path]

    def moved(self, replay: int, call: Call) -> bool:
        """Is what the module owns other than when it was last seen in this replay?"""
        groups = {g: i for i, g in enumerate(groups_of(self.traces))}

        def when(c: Call) -> tuple[int, int, int]:
            return groups[c.arm, c.batch], c.step, c.begin

        now = self.twin(replay, call)
        if now is None:
            return False
        calls = self.traces[replay].calls
        earlier = [c for c in calls if c.path == call.path and when(c) < when(now)]
        if earlier:
            return max(earlier, key=when).own_sha256 != now.own_sha256
        row = self.traces[replay].modules.get(call.path)
        return row is None or row.own_sha256 != now.own_sha256

    def follows_untraced(self, call: Call) -> bool:
        """Is it of a step whose predecessor was not traced?"""
        before = (call.arm, call.batch, call.step - 1)
        steps = {(c.arm, c.batch, c.step) for t in self.traces for c in t.calls}
        return call.step > 0 and before not in steps

    def survives(self, d: Departure) -> bool:
        """Do raw logits differ, from that step on, between those who stayed and a departed one?"""
        replays = (d.classes[0][0], *d.lasting)
        return self.logits_differ(replays, d.call)

    def logits_differ(self, replays: Sequence[int], since: Call | None = None) -> bool:
        """Do raw logits differ between these replays, in a sample of that batch or anywhere?"""
        found = [self.traces[r].logits for r in replays]
        for arm, sample in dict.fromkeys(key for logits in found for key in logits):
            if since is not None and (arm != since.arm or sample not in since.sample_ids):
                continue
            first = 0 if since is None else max(since.step, 0)
            if len({logits.get((arm, sample), ())[first:] for logits in found}) > 1:
                return True
        return False
