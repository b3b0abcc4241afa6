"""``fleet upgrade-check``: certify on both stacks, see what moved, and look into what changed.

One Ray driver runs both, on the same unit unless the stacks are two pools: each stack is an
ordinary campaign with its own controls, and what it lands is ordinary evidence. Then, per contract
that changed, one traced replay of each stack and one that repeats the call where they part. Holds
no rule: the judge says what moved and where it starts.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fleet.contract.stack import LoadedStack, changes, load_stack
from fleet.errors import StackError, UsageError
from fleet.evidence.states import Purpose
from fleet.evidence.trace import Call
from fleet.evidence.upgrades import Compared, Side, Upgrade, log_upgrade, new_upgrade_id
from fleet.judge.present import DAY_S
from fleet.judge.sets import in_order
from fleet.judge.upgrade import BROKE
from fleet.judge.verdict import Verdict
from fleet.replay.task import TraceOrder
from fleet.report.answers import Answers, Asked, ControlsByCampaign, asked_of, known_contracts
from fleet.report.upgrade import Entry, UpgradeAnswer, answer_of, traced_pair
from fleet.schedule.bisect import Bisecting, bisect
from fleet.schedule.certify import (
    Planned,
    Request,
    Say,
    certify,
    plan_request,
    run_request,
)
from fleet.schedule.driver import Limits
from fleet.schedule.history import took
from fleet.schedule.launcher import Launcher
from fleet.schedule.places import Places
from fleet.schedule.plan import MUST, Slot, Work
from fleet.schedule.resolve import Resolved
from fleet.schedule.stacks import require_usable, surroundings
from fleet.schedule.tracing import REPEATS, batch_of, repeating
from fleet.store import queries


@dataclass(frozen=True)
class UpgradeRequest:
    """What is asked. ``contracts``: none for all that the store has evidence of, controls left
    out. ``trace`` what changed; ``bisect`` it; ``reuse`` a valid PASS of a stack."""

    base: str
    new: str
    contracts: tuple[str, ...] = ()
    trace: bool = True
    bisect: bool = False
    reuse: bool = False
    mode: str = "block"
    limits: Limits = field(default_factory=Limits)
    argv: tuple[str, ...] = ()


@dataclass(frozen=True)
class UpgradePlan:
    """Both stacks, and the campaign that each of them runs."""

    base: LoadedStack
    new: LoadedStack
    planned: Planned

    @property
    def stacks(self) -> tuple[LoadedStack, LoadedStack]:
        """Base first."""
        return self.base, self.new


def plan_upgrade(asked: UpgradeRequest, places: Places, say: Say) -> UpgradePlan:
    """Load both stacks, ask their environments, resolve the contracts; starts no replay.

    Raises:
        UsageError: a stack, its environment or a contract cannot be used.
    """
    base, new = (load_stack(name, places.search) for name in (asked.base, asked.new))
    for loaded in (base, new):
        say(f"asking stack {loaded.name}")
        require_usable(loaded, places.cache)
    if asked.bisect and (base.python is None or new.python is None):
        raise StackError(
            str(base.path if base.python is None else new.path), "python",
            "stacks of a Python executable, to build those between", "an image or a pool",
            "leave --bisect out",
        )  # fmt: skip
    names = asked.contracts or _known(places)
    request = Request(names, limits=asked.limits, argv=asked.argv)
    return UpgradePlan(base, new, plan_request(request, places, say))


def plan_document(asked: UpgradeRequest, plan: UpgradePlan, places: Places) -> dict[str, Any]:
    """What would run, with the medians of what these contracts took before, on any stack."""
    slots = plan.planned.slots
    counts = Counter(slot.contract for slot in slots)
    seconds = took(places, list(counts))
    rows = [{"contract": c, "replays": n, "seconds": seconds.get(c)} for c, n in counts.items()]
    known = [n * seconds[c] for c, n in counts.items() if c in seconds]
    more = ["a traced control repeats its culprit's call"]
    if asked.trace:
        more.append("one traced replay a stack, and one that repeats a call, for what changed")
    if asked.bisect:
        more.append("then the stacks between")
    return {
        "schema": 1,
        "campaign": None,
        "stacks": [
            {"stack": s.name, "sha256": s.digest, "place": _place(s), "replays": rows}
            for s in plan.stacks
        ],
        "seconds": len(plan.stacks) * sum(known) if len(known) == len(counts) else None,
        "more": "; ".join(more),
    }


def _place(loaded: LoadedStack) -> str:
    stack = loaded.stack
    return loaded.python or stack.image or f"nodes labelled {stack.labels}"


def _known(places: Places) -> tuple[str, ...]:
    """Every contract that the store has evidence of, as it was last asked for."""
    names: list[str] = []
    if places.store.exists():
        with places.open_store() as store:
            known = known_contracts(store)
        names = [a.name for a in known if a.expect is None and a.name not in MUST]
    if not names:
        fix = "name some: --contract NAME"
        raise UsageError("upgrade-check", "--contract", "contracts to certify", "none known", fix)
    return tuple(dict.fromkeys(names))


def run_upgrade(
    asked: UpgradeRequest, plan: UpgradePlan, places: Places, launcher: Launcher, say: Say
) -> UpgradeAnswer:
    """Certify on both stacks, look into what changed, record it, answer."""
    run = _Run(asked, plan, places, launcher, say)
    sides = [run.certified(loaded) for loaded in plan.stacks]
    found = tuple(Compared(r.name, r.execution_id) for r in plan.planned.named)
    differ = tuple(changes(plan.base.stack, plan.new.stack))
    upgrade = Upgrade(new_upgrade_id(), sides[0], sides[1], differ, found)
    answer = run.answer(upgrade)
    moved = [e for e in answer.entries if e.moved.word in BROKE]
    if asked.trace:
        upgrade = run.traced(upgrade, moved)
    if asked.bisect:
        upgrade = run.bisected(upgrade, moved)
    log_upgrade(places.open_landing(), upgrade)
    return run.answer(upgrade)


@dataclass(frozen=True)
class _Run:
    """One comparison while it runs."""

    asked: UpgradeRequest
    plan: UpgradePlan
    places: Places
    launcher: Launcher
    say: Say

    @property
    def named(self) -> dict[str, Resolved]:
        """The contracts in question, by name."""
        return {resolved.name: resolved for resolved in self.plan.planned.named}

    def certified(self, loaded: LoadedStack) -> Side:
        """A campaign on that stack, or one that is there."""
        self.say(f"stack {loaded.name}")
        there = _passed(loaded, self.plan, self.places) if self.asked.reuse else None
        if there is not None:
            return Side(loaded.name, loaded.digest, there)
        request = self._request(tuple(self.named), loaded)
        places, near = self._on(loaded)
        ran = certify(request, self.plan.planned, places, near, self.say)
        return Side(loaded.name, loaded.digest, ran.campaign)

    def _request(
        self, names: tuple[str, ...], loaded: LoadedStack, purpose: Purpose = "certify"
    ) -> Request:
        limits, argv = self.asked.limits, self.asked.argv
        return Request(names, purpose, limits=limits, argv=argv, stack=loaded)

    def _on(self, loaded: LoadedStack) -> tuple[Places, Launcher]:
        around = surroundings(loaded, self.places.cache)
        return self.places.of_stack(loaded.digest), self.launcher.within(around)

    def answer(self, upgrade: Upgrade) -> UpgradeAnswer:
        """What is known by now."""
        named = self.plan.planned.named
        about = [asked_of(r.name, r.execution_id, r.loaded.contract) for r in named]
        landing = self.places.open_landing()
        with self.places.open_store() as store:
            return answer_of(Answers(store, landing), upgrade, about, self.asked.mode)

    def traced(self, upgrade: Upgrade, moved: Sequence[Entry]) -> Upgrade:
        """One traced replay of each stack, of the first sample that differs; then one of each that
        repeats the call where those part."""
        named = self.named
        works = {e.contract: w for e in moved if (w := _trace_work(named[e.contract], e))}
        attempts = self._on_both(works)
        told = (replace(c, traces=attempts.get(c.contract, ())) for c in upgrade.contracts)
        upgrade = replace(upgrade, contracts=tuple(told))
        targets = {c.contract: self._target(c) for c in upgrade.contracts if c.traces}
        attempts = self._on_both(
            {n: repeating(works[n], t, REPEATS, zoom=True) for n, t in targets.items() if t}
        )
        told = (replace(c, repeats=attempts.get(c.contract, ())) for c in upgrade.contracts)
        return replace(upgrade, contracts=tuple(told))

    def _target(self, compared: Compared) -> Call | None:
        found = traced_pair(self.places.open_landing(), compared)
        return found.target if found else None

    def _on_both(self, works: Mapping[str, Work]) -> dict[str, tuple[str, ...]]:
        """Contract -> the attempts that did this, base first."""
        attempts: dict[str, tuple[str, ...]] = {}
        if not works:
            return attempts
        named = [r for r in self.plan.planned.named if r.name in works]
        slots = [Slot(i, r.name, 0, "named", works[r.name]) for i, r in enumerate(named)]
        for loaded in self.plan.stacks:
            request = self._request(tuple(works), loaded, "trace")
            places, near = self._on(loaded)
            planned = Planned(named, [], slots)
            _, ends = run_request(request, planned, places, near, self.say, lambda _: [])
            for end in ends:
                if end.state == "COMPLETE":
                    name = end.slot.contract
                    attempts[name] = (*attempts.get(name, ()), end.attempt)
        return attempts

    def bisected(self, upgrade: Upgrade, moved: Sequence[Entry]) -> Upgrade:
        """Which package brings each change."""
        named, found = self.named, {}
        for entry in moved:
            resolved, limits = named[entry.contract], self.asked.limits
            task = Bisecting(resolved, entry, *self.plan.stacks, limits, self.asked.argv)
            found[entry.contract] = bisect(task, self.places, self.launcher, self.say)
        told = (replace(c, found=found.get(c.contract, {})) for c in upgrade.contracts)
        return replace(upgrade, contracts=tuple(told))


def _passed(loaded: LoadedStack, plan: UpgradePlan, places: Places) -> str | None:
    """The newest campaign on this very stack whose PASSes of all these contracts are valid."""
    if not places.store.exists():
        return None
    about = plan.planned.asked(plan.planned.named)
    with places.open_store() as store:
        answers = Answers(store, places.open_landing())
        controls = ControlsByCampaign(answers, known_contracts(store))
        landed = queries.summaries(store.con, execution_id=about[0].execution_id)
        there = [s for s in landed if s.stack == loaded.digest and s.purpose == "certify"]
        for name in reversed(list(dict.fromkeys(s.campaign for s in in_order(there)))):
            verdicts = [answers.verdict(name, a, controls.get(name, ())) for a in about]
            if all(_is_valid(v, a) for v, a in zip(verdicts, about, strict=True)):
                return name
    return None


def _is_valid(verdict: Verdict, asked: Asked) -> bool:
    """A PASS of that campaign, not older than the contract allows."""
    at_s = verdict.accepted_at_s
    young = at_s is not None and time.time() - at_s <= asked.require.valid_days * DAY_S
    return verdict.verdict == "PASS" and young


def _trace_work(resolved: Resolved, entry: Entry) -> Work | None:
    """None where there is nothing to trace, or nothing differs in rows."""
    if entry.replays is None or not entry.replays.rows.kinds or not resolved.has_modules:
        return None
    _, arm, sample = entry.replays.rows.kinds[0].samples[0]
    return Work("trace", batch_of(resolved, sample), (arm,), TraceOrder())
