"""From a FAIL to its cause: which traced replays a campaign runs after its first ones.

Two rounds at most per contract. Traced replays of one sample show where they part; then, where
repeating the call tells more, further fresh replays freeze that call and repeat it, until one has
proven a race or each has had its turn. Holds no rule: the judge says where, and whether a repeat is
worth it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from fleet.errors import UsageError
from fleet.evidence.landing import Landing
from fleet.evidence.states import ran_to_its_end
from fleet.evidence.trace import Call, Trace, read_trace
from fleet.judge.tracing.localise import localise
from fleet.judge.verdict import Verdict
from fleet.replay.task import Target, TraceOrder
from fleet.schedule.driver import AttemptEnd
from fleet.schedule.plan import Role, Slot, Work
from fleet.schedule.resolve import Resolved

REPEATS = 200
"""Repeats of a frozen call in one process: 0 of 200 bounds a race at 1.5% a call."""


@dataclass
class TracePlan:
    """What is traced of one contract, and what came of it.

    Args:
        resolved: the contract.
        work: which samples and arms, and how.
        replays: traced replays; as many repeat at most.
    """

    resolved: Resolved
    work: Work
    replays: int
    role: Role = "named"
    repeats: int = REPEATS
    zoom: bool = False
    asked: int = 0
    traced: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)

    def first_slots(self, index: int) -> list[Slot]:
        """The traced replays."""
        name = self.resolved.name
        return [Slot(index + i, name, i, self.role, self.work) for i in range(self.replays)]

    def repeat_slot(self, index: int, target: Call) -> Slot:
        """One more replay, which freezes and repeats a call. One that does not end is not retried
        here: the driver has tried it again already."""
        work = repeating(self.work, target, self.repeats, self.zoom)
        self.asked += 1
        return Slot(index, self.resolved.name, self.asked - 1, self.role, work)


@dataclass
class Tracing:
    """Asked by the driver for further slots. ``failing`` gives the FAILs to look into, once.

    Args:
        landing: where the traces are.
        plans: contracts that are traced whatever happens, by name.
        failing: called when the first slots have run: plans for contracts that turned out to FAIL.
    """

    landing: Landing
    plans: dict[str, TracePlan]
    failing: Callable[[], Sequence[TracePlan]] | None = None
    _asked: bool = False

    def __call__(self, ends: Sequence[AttemptEnd]) -> list[Slot]:
        """The next slots; none when every plan is through."""
        self._sort(ends)
        slots: list[Slot] = []
        for plan in self.plans.values():
            slots += self._next_of(plan, _next_index(ends) + len(slots))
        if self.failing is not None and not self._asked:
            self._asked = True
            for plan in self.failing():
                self.plans[plan.resolved.name] = plan
                slots += plan.first_slots(_next_index(ends) + len(slots))
        return slots

    def _sort(self, ends: Sequence[AttemptEnd]) -> None:
        """Which attempts traced, and which repeated; only those that ran to their end count."""
        for plan in self.plans.values():
            mine = [
                e
                for e in ends
                if e.slot.contract == plan.resolved.name and ran_to_its_end(e.state, e.cause)
            ]
            works = [(e.attempt, e.slot.work) for e in mine if e.slot.work]
            orders = [(attempt, work.trace) for attempt, work in works if work.purpose == "trace"]
            plan.traced = [a for a, order in orders if order and not order.targets]
            plan.repeated = [a for a, order in orders if order and order.targets]

    def _next_of(self, plan: TracePlan, index: int) -> list[Slot]:
        if len(plan.traced) < 2 or plan.asked >= plan.replays or not plan.repeats:
            return []
        found = localise(self._read(plan.traced), self._read(plan.repeated))
        if found.target is None or (found.culprit is not None and found.culprit.unique > 1):
            return []
        return [plan.repeat_slot(index, found.target)]

    def _read(self, attempts: Sequence[str]) -> list[Trace]:
        return [t for a in attempts if (t := read_trace(self.landing, a)) is not None]


def _next_index(ends: Sequence[AttemptEnd]) -> int:
    return max((end.slot.index for end in ends), default=-1) + 1


def repeating(work: Work, target: Call, repeats: int, zoom: bool) -> Work:
    """The same traced work, with one of its calls frozen and repeated."""
    assert work.trace is not None
    aim = Target(target.arm, target.batch, target.step, target.path, target.occurrence)
    return replace(work, trace=replace(work.trace, targets=(aim,), repeats=repeats, zoom=zoom))


def check_step(text: str) -> str:
    """``all``, ``prefill`` or a step number.

    Raises:
        UsageError: anything else.
    """
    if text in ("all", "prefill") or text.isdecimal():
        return text
    raise UsageError(
        "command line", "--step", "all, prefill, or a step number from 0", repr(text), "name one"
    )


def batch_of(resolved: Resolved, sample: str) -> tuple[str, ...]:
    """The samples that share a batch with this one, by the contract's batch plan."""
    size = resolved.loaded.contract.decoding.batch_size
    ids = resolved.dataset.ids
    first = ids.index(sample) // size * size
    return tuple(ids[first : first + size])


def plan_for(verdict: Verdict, resolved: Resolved) -> TracePlan:
    """How to look into a FAIL: its first differing sample, in that arm alone."""
    first = verdict.first_difference or {}
    sample, arm = first.get("sample_id"), first.get("arm")
    if verdict.culprit is not None:  # its own trace says where, also of what healed
        sample, arm = next(iter(verdict.culprit["sample_ids"]), sample), verdict.culprit["arm"]
    if sample not in resolved.dataset.ids:
        sample = resolved.dataset.ids[0]
    arms = sorted(resolved.loaded.contract.arms)
    chosen = arm if arm in arms else default_arm(resolved)
    work = Work("trace", batch_of(resolved, str(sample)), (str(chosen),), TraceOrder())
    return TracePlan(resolved, work, resolved.loaded.contract.require.replays)


def first_sample(resolved: Resolved) -> Work:
    """The first batch of one arm, every step."""
    samples = batch_of(resolved, resolved.dataset.ids[0])
    return Work("trace", samples, (default_arm(resolved),), TraceOrder())


def default_arm(resolved: Resolved) -> str:
    """``current`` where there is one, else the first by name."""
    arms = sorted(resolved.loaded.contract.arms)
    return "current" if "current" in arms else arms[0]
