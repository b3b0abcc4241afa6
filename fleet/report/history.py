"""One contract over time: what each campaign changed, derived again from all evidence up to it.

Every execution id that bore the name is told, each with its own claims and platforms; what is
required is what the contract's file says today, of older ids what was asked of them last. Holds no
rule and remembers nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from fleet.contract.load import has_contract
from fleet.contract.vary import in_words
from fleet.errors import ContractError
from fleet.evidence.platform import Platform
from fleet.evidence.states import Cause
from fleet.evidence.summary import AttemptSummary
from fleet.evidence.upgrades import read_upgrades
from fleet.judge import rules
from fleet.judge.timeline import Step, steps
from fleet.report import screen
from fleet.report.answers import Answers, Asked, ControlsByCampaign, known_contracts
from fleet.report.document import SCHEMA
from fleet.report.filters import Filters
from fleet.report.screen import Cells
from fleet.report.today import Today
from fleet.report.upgrade import UpgradeAnswer, answer_of
from fleet.store import queries

MOST_NAMED = 4
"""Attempts named in a line for a person."""


@dataclass(frozen=True)
class Moment:
    """One campaign's effect on one set: a contract under one id, a claim, a platform."""

    asked: Asked
    platform: str
    platform_label: str
    vary: tuple[str, ...]
    traced: bool
    step: Step
    events: tuple[str, ...]

    @property
    def key(self) -> rules.SetKey:
        """The set."""
        return rules.SetKey(self.asked.execution_id, self.platform, self.vary, self.traced)

    @property
    def state(self) -> str:
        """After the campaign."""
        after = self.step.after or "UNTESTED"
        return "REGRESSED" if "REGRESSED" in self.events else after

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        step = self.step
        return {
            "at": None if step.at_s is None else screen.utc(step.at_s),
            "at_s": step.at_s,
            "campaign": step.campaign,
            "execution_id": self.asked.execution_id,
            "platform": self.platform or None,
            "platform_label": self.platform_label,
            "vary": list(self.vary),
            "traced": self.traced,
            "before": step.before,
            "after": step.after,
            "own": step.own,
            "events": list(self.events),
            "roots": list(step.roots),
            "attempts": [_attempt(s, self.asked.require.grade) for s in step.attempts],
        }


def _attempt(s: AttemptSummary, grade: str) -> dict[str, Any]:
    """``root``: at the required grade."""
    cause = s.cause.to_json() if s.cause else None
    return {
        "attempt": s.attempt, "slot": s.slot, "purpose": s.purpose, "state": s.state,
        "cause": cause, "unit": s.unit, "accepted_at_s": s.accepted_at_s,
        "retracted": s.retracted, "root": s.roots.get(grade),
    }  # fmt: skip


@dataclass(frozen=True)
class History:
    """Moments in time; ``note`` says why there are none, or none of what the file says today.
    ``upgrades``: comparisons of two stacks, judged anew."""

    contract: str
    moments: tuple[Moment, ...]
    note: str = ""
    upgrades: tuple[UpgradeAnswer, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        told = [moment.to_json() for moment in self.moments]
        compared = [upgrade.to_json() | {"at_s": upgrade.upgrade.at_s} for upgrade in self.upgrades]
        head = {"schema": SCHEMA, "contract": self.contract, "note": self.note}
        return head | {"history": told, "upgrades": compared}


def history_of(
    answers: Answers, name: str, search: Sequence[Path], cache: Path, filters: Filters
) -> History:
    """Everything that ever happened to a contract's verdicts, oldest first.

    Args:
        answers: the open store.
        name: of a contract that the store or the config path has.
        search: the config path.
        cache: where demo checkpoints are kept.
        filters: of platforms, times and states after a campaign, and of the contract's ids.

    Raises:
        ContractError: nobody has such a contract.
    """
    known = known_contracts(answers.store)
    ours = [asked for asked in known if asked.name == name]
    if not ours and not has_contract(name, search):
        expected, got = "a contract of the store or the config path", "neither has it"
        raise ContractError("history", name, expected, got, "fleet status lists all")
    rows = queries.contracts(answers.store.con)
    bodies = {(row.name, row.execution_id): row.body for row in rows}
    current, note = Today(bodies, search, cache).about(ours, name)
    today = {asked.execution_id: asked for asked in current}
    controls = ControlsByCampaign(answers, known)
    facts = {p: body["facts"] for p, body in queries.platforms(answers.store.con).items()}
    found: list[Moment] = []
    for asked in ours:
        if filters.contract(bodies[name, asked.execution_id] or {}):
            asked = today.get(asked.execution_id, asked)
            landed = queries.summaries(answers.store.con, execution_id=asked.execution_id)
            found.extend(moments_of(answers, asked, landed, controls, facts))
    found.sort(key=_when)
    told = tuple(m for m in _with_ids(found) if _fits(m, filters, facts))
    about = [today.get(each.execution_id, each) for each in ours]
    return History(name, told, "" if current else note, _upgrades(answers, about, filters))


def _upgrades(
    answers: Answers, asked: Sequence[Asked], filters: Filters
) -> tuple[UpgradeAnswer, ...]:
    """Comparisons of stacks that were about the contract, in time."""
    found = (u for u in read_upgrades(answers.landing) if filters.time(u.at_s))
    told = (answer_of(answers, upgrade, asked) for upgrade in found)
    return tuple(answer for answer in told if answer.entries)


def _when(moment: Moment) -> tuple[float, str, str, tuple[str, ...], bool]:
    at_s = moment.step.at_s
    at_s = float("inf") if at_s is None else at_s
    return at_s, moment.step.campaign, moment.platform, moment.vary, moment.traced


def _fits(moment: Moment, filters: Filters, facts: Mapping[str, Any]) -> bool:
    words = (moment.state, moment.step.after or "UNTESTED")
    return (
        filters.platform(facts.get(moment.platform))
        and filters.time(moment.step.at_s)
        and filters.any_state(words)
    )


def moments_of(
    answers: Answers,
    asked: Asked,
    summaries: Sequence[AttemptSummary],
    controls: ControlsByCampaign,
    facts: Mapping[str, Any],
) -> Iterator[Moment]:
    """Of all sets of one execution id, whose attempts ``summaries`` are; a set's in time.

    ``facts``: platform -> its facts.
    """
    sets = rules.groups(summaries)
    doubt, unretracted = (answers.doubt(asked, s) for s in (summaries, rules.restored(summaries)))
    for key, members in sets.items():
        compared = answers.comparisons(rules.pairs_needed(members, asked.require), asked.dtype)
        others = [] if not key.platform else _homeless(sets, key)
        label = Platform(facts[key.platform]).label() if key.platform in facts else "unknown"
        before = _roots_before(answers, sets, key, asked)
        without = _as_landed(answers, asked, members, others, controls, unretracted)
        told = steps(members, asked.require, compared, controls, others, doubt)
        for number, step in enumerate(told):
            moved = number == 0 and before and step.roots and not set(step.roots) & before
            events = (*step.events, "other root than on its predecessor") if moved else step.events
            events = (*events, *_withdrawn(step, without.get(step.campaign)))
            yield Moment(asked, key.platform, label, key.vary, key.traced, step, events)


def _as_landed(
    answers: Answers,
    asked: Asked,
    members: Sequence[AttemptSummary],
    others: Sequence[AttemptSummary],
    controls: ControlsByCampaign,
    doubt: Cause | None,
) -> dict[str, Step]:
    """Campaign -> its step if nothing had been retracted; none where nothing was."""
    if not rules.any_retracted([*members, *others]):
        return {}
    everything = rules.restored(members)
    compared = answers.comparisons(rules.pairs_needed(everything, asked.require), asked.dtype)
    others = rules.restored(others)
    told = steps(everything, asked.require, compared, controls, others, doubt)
    return {step.campaign: step for step in told}


def _withdrawn(step: Step, without: Step | None) -> Iterator[str]:
    """Every retraction of the campaign's attempts, and what it took back."""
    yield from (each.in_words() for s in step.attempts for each in s.withdrawals)
    if without is not None and without.after != step.after:
        words = ", ".join(without.events) or "unchanged"
        yield f"with what was retracted: {without.after} ({words})"


def _homeless(
    sets: Mapping[rules.SetKey, list[AttemptSummary]], key: rules.SetKey
) -> list[AttemptSummary]:
    return [s for k, own in sets.items() if not k.platform and k.vary == key.vary for s in own]


def _roots_before(
    answers: Answers,
    sets: Mapping[rules.SetKey, list[AttemptSummary]],
    key: rules.SetKey,
    asked: Asked,
) -> set[str]:
    """Roots of the same claim on the platforms before this one."""
    before = answers.predecessors.get(key.platform, ())
    members = [s for platform in before for s in sets.get(key._replace(platform=platform), ())]
    grade = asked.require.grade
    return {s.roots[grade] for s in members if s.state == "COMPLETE" and grade in s.roots}


def _with_ids(moments: Sequence[Moment]) -> Iterator[Moment]:
    """The first moment of each execution id after another one says so."""
    seen: list[str] = []
    for moment in moments:
        own = moment.asked.execution_id
        if own not in seen:
            seen.append(own)
            if len(seen) > 1:
                moment = replace(moment, events=("the contract changed", *moment.events))
        yield moment


def history_cells(history: History) -> Cells:
    """One line per campaign and set; attempts joined by blanks."""
    columns = ("at", "campaign", "contract", "execution_id", "vary", "traced", "platform",
               "platform_label", "before", "after", "own", "events", "roots",
               "attempts")  # fmt: skip
    return columns, (_cells(history.contract, moment) for moment in history.moments)


def _cells(contract: str, moment: Moment) -> list[Any]:
    told, step = moment.to_json(), moment.step
    return [
        told["at"], step.campaign, contract, moment.asked.execution_id,
        ",".join(moment.vary) or "none", moment.traced, told["platform"], moment.platform_label,
        step.before, step.after, step.own, "; ".join(moment.events), " ".join(step.roots),
        " ".join(s.attempt for s in step.attempts),
    ]  # fmt: skip


def print_history(console: Console, history: History) -> None:
    """One line per campaign and set, with the attempts behind it; then what the columns are."""
    if history.note:
        screen.verbatim(console, f"{history.contract}: {history.note}")
    if not history.moments:
        return screen.verbatim(console, f"{history.contract}: nothing of it matches")
    places = dict.fromkeys(moment.platform for moment in history.moments)
    names = {platform: f"P{number}" for number, platform in enumerate(places, 1)}
    table = screen.table(console, history.contract, "time", "on", "state", "what", "attempts")
    for moment in history.moments:
        step = moment.step
        state = Text(moment.state, style=screen.COLOURS.get(moment.state, ""))
        table.add_row(
            screen.minute(step.at_s), names[moment.platform], state, Text(_what(moment)),
            Text(_attempts(step.attempts)),
        )  # fmt: skip
    console.print(table)
    labels = {moment.platform: moment.platform_label for moment in history.moments}
    for platform, name in names.items():
        digest = platform.removeprefix("sha256:")[:12] or "-"
        screen.verbatim(console, f"{name}: {labels[platform]} [{digest}]")
    for upgrade in history.upgrades:
        screen.verbatim(console, _compared(upgrade))


def _compared(upgrade: UpgradeAnswer) -> str:
    """One comparison of stacks, as it is judged now."""
    about, words = upgrade.upgrade, upgrade.entries[0].moved.in_words()
    at = screen.utc(about.at_s).replace("T", " ")[:16]
    return f"{at} upgrade {about.base.stack} -> {about.new.stack}: {words} ({about.id})"


def _what(moment: Moment) -> str:
    claim = f"{in_words(moment.vary)}: " if moment.vary else ""
    traced = "traced: " if moment.traced else ""
    told = "; ".join(moment.events) or moment.step.own
    return f"{claim}{traced}{told} ({moment.step.campaign})"


def _attempts(attempts: Sequence[AttemptSummary]) -> str:
    named = " ".join(s.attempt[:8] for s in attempts[:MOST_NAMED])
    more = len(attempts) - MOST_NAMED
    return f"{named} +{more}" if more > 0 else named
