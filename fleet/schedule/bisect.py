"""``--bisect``: which package upgrade brings a change, by replays on stacks between the two.

Each step builds one mixture of the two frozen sets and screens it first: a difference from the base
in the samples that changed settles it at once; only what showed none is certified whole. Every step
is in a chain of its own, so that an interrupted search goes on. Holds no rule: the order and what
steps show are the judge's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleet.contract.canonical import digest_json, to_text
from fleet.contract.stack import LoadedStack
from fleet.evidence.summary import AttemptSummary
from fleet.evidence.upgrades import bisection_id, steps_of
from fleet.judge.bisection import Search, Seen, Stackside, mixture, moves, unfit
from fleet.report.answers import Answers, asked_of
from fleet.report.diff import attempt_diff
from fleet.report.upgrade import Entry
from fleet.schedule.certify import (
    Planned,
    Request,
    Say,
    certify,
    plan_resolved,
    run_request,
)
from fleet.schedule.driver import Limits
from fleet.schedule.launcher import Launcher
from fleet.schedule.mixtures import Refused, build, same_content
from fleet.schedule.places import Places
from fleet.schedule.plan import Slot, Work
from fleet.schedule.resolve import Resolved
from fleet.schedule.stacks import ask, surroundings
from fleet.store import queries

SCREENED = 4
"""Samples that a step is screened by, of those known to differ."""


@dataclass(frozen=True)
class Bisecting:
    """One contract that changed between two stacks."""

    resolved: Resolved
    entry: Entry
    base: LoadedStack
    new: LoadedStack
    limits: Limits
    argv: tuple[str, ...]

    @property
    def samples(self) -> tuple[str, ...]:
        """Some that differ, in dataset order; the first ones where rows do not say."""
        replays = self.entry.replays
        places = (p for k in (replays.rows.kinds if replays else ()) for p in k.samples)
        known = list(dict.fromkeys(sample for _, _, sample in sorted(places)))
        return tuple((known or list(self.resolved.dataset.ids))[:SCREENED])


@dataclass
class _Steps:
    """What every step needs."""

    task: Bisecting
    sides: tuple[Stackside, Stackside]
    places: Places
    launcher: Launcher
    say: Say

    def __post_init__(self) -> None:
        name = bisection_id(self.task.base.digest, self.task.new.digest,
                            self.task.resolved.execution_id)  # fmt: skip
        self.chain, self.known = steps_of(self.places.open_landing(), name)

    def see(self, moved: Sequence[str]) -> Mapping[str, Any]:
        """What the base with these packages as in the new stack shows; of an earlier run, too."""
        base, new = self.sides
        versions = mixture(base.versions, new.versions, moved)
        digest = to_text(digest_json(versions))
        for step in self.known:
            if step["set_sha256"] == digest:
                return step
        self.say(f"{self.task.resolved.name}: base with {', '.join(moved)} as in the new stack")
        found = {"set_sha256": digest, "moved": list(moved)} | self._tried(versions)
        self.chain.append("step", **found)
        self.known.append(found)
        return found

    def _tried(self, versions: Mapping[str, str]) -> dict[str, Any]:
        allowed = unfit(self.sides[0]) | unfit(self.sides[1])
        mixed = build(versions, allowed, self.task.base, self.places.cache)
        if isinstance(mixed, Refused):
            return _step("refused", mixed.words)
        seen, words, attempts = _shown(self.task, mixed, self.places, self.launcher, self.say)
        other = same_content(mixed.stack, (self.task.base.stack, self.task.new.stack))
        words += f"; built with other files: {', '.join(other)}" if other else ""
        return _step(seen, words, mixed.digest, attempts)


def _step(seen: Seen, words: str, stack: str = "", attempts: Sequence[str] = ()) -> dict[str, Any]:
    return {"seen": seen, "words": words, "stack": stack, "attempts": list(attempts)}


def bisect(task: Bisecting, places: Places, launcher: Launcher, say: Say) -> dict[str, Any]:
    """The group of packages that brings the change, after which others, and whether alone.

    ``undivided``: no mixture parted them, though none of them needs the others.

    Raises:
        CampaignStopped: a package could not be had; run again to go on.
    """
    sides = _side(task.base, places), _side(task.new, places)
    steps = _Steps(task, sides, places, launcher, say)
    likely = task.base.stack.packages.keys() | task.new.stack.packages.keys()
    groups = moves(*sides, likely)
    search = Search(list(groups))
    if not groups:
        return {"moves": [], "before": [], "alone": None, "undivided": False, "steps": []}
    tried: list[Mapping[str, Any]] = []
    while (count := search.next()) is not None:
        moved = [name for group in search.groups[:count] for name in group]
        step = steps.see(moved)
        say(f"step {len(tried) + 1}: {step['seen']}: {step['words']}")
        tried.append(step)
        search.saw(count, step["seen"])
    before, found = search.before(), search.found()
    alone: bool | None = True
    if before:
        step = steps.see(found)
        tried.append(step)
        alone = {"changed": True, "base": False}.get(step["seen"])
    undivided = found not in groups
    return {"moves": list(found), "before": before, "alone": alone, "undivided": undivided,
            "steps": tried}  # fmt: skip


def _side(loaded: LoadedStack, places: Places) -> Stackside:
    told = ask(str(loaded.python), str(loaded.path), places.cache)
    return Stackside(loaded.stack.versions(), told.requires)


def _shown(
    task: Bisecting, mixed: LoadedStack, places: Places, launcher: Launcher, say: Say
) -> tuple[Seen, str, list[str]]:
    """Screened, and certified when nothing differed."""
    places, near = places.of_stack(mixed.digest), launcher.within(surroundings(mixed, places.cache))
    work = Work("screen", task.samples)
    slots = [Slot(i, task.resolved.name, i, "named", work) for i in range(2)]
    request = Request((task.resolved.name,), "screen", limits=task.limits, argv=task.argv,
                      stack=mixed)  # fmt: skip
    planned = Planned([task.resolved], [], slots)
    campaign, _ = run_request(request, planned, places, near, say, lambda _: [])
    seen, words, attempts = _screened(task, campaign.id, places)
    if seen != "base":
        return seen, words, attempts
    request = Request((task.resolved.name,), limits=task.limits, argv=task.argv, stack=mixed)
    planned = plan_resolved(request, [task.resolved], places, say)
    verdict = certify(request, planned, places, near, say).contracts[0]
    attempts = [*attempts, *(each["attempt"] for each in verdict.attempts)]
    grade, base = verdict.required_grade, task.entry.base
    if verdict.verdict == "PASS":
        same = verdict.roots.get(grade) == base.roots.get(grade)
        words = f"certified: {'the base' if same else 'another'} root at {grade}"
        return "base" if same else "changed", words, attempts
    return _by_itself(task, verdict.verdict == "FAIL"), verdict.reason, attempts


def _by_itself(task: Bisecting, fails: bool) -> Seen:
    """A mixture that differs from itself shows what the new stack does, if that does too."""
    return "changed" if fails and task.entry.moved.word == "REGRESSED" else "unclear"


def _screened(task: Bisecting, campaign: str, places: Places) -> tuple[Seen, str, list[str]]:
    about = asked_of(task.resolved.name, task.resolved.execution_id, task.resolved.loaded.contract)
    with places.open_store() as store:
        answers = Answers(store, places.open_landing())
        landed = queries.summaries(store.con, campaign=campaign, execution_id=about.execution_id)
        whole = [s for s in landed if s.state == "COMPLETE"]
        attempts = [s.attempt for s in landed]
        if len(whole) < 2 or task.entry.replays is None:
            causes = "; ".join(str(s.cause) for s in landed if s.cause)
            return "unclear", f"screened: {causes or 'fewer than two replays'}", attempts
        if _differs(answers, whole[0], whole[1]):
            return _by_itself(task, True), "screened: it differs from itself", attempts
        if _differs(answers, task.entry.replays.base, whole[0]):
            return "changed", f"screened: {len(task.samples)} samples, other bits", attempts
    return "base", "screened: no difference from the base", attempts


def _differs(answers: Answers, one: AttemptSummary, other: AttemptSummary) -> bool:
    found = attempt_diff(answers, one, other).comparison
    return found is not None and any(kind.broken for kind in found.kinds)
