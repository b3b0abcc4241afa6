"""What a comparison of two stacks answers for each contract, derived anew from its evidence.

The judge is asked about both campaigns, their replays are compared row by row, and the traces of
both stacks are read. Everything that the stacks have otherwise is listed as a candidate: nothing is
named as the cause but what a bisection showed. Holds no rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from fleet.contract.stack import Change
from fleet.errors import EvidenceError
from fleet.evidence.landing import Landing
from fleet.evidence.platform import Platform
from fleet.evidence.summary import AttemptSummary
from fleet.evidence.trace import read_trace
from fleet.evidence.upgrades import Compared, Upgrade
from fleet.judge.apart import flattened
from fleet.judge.compare import PairComparison
from fleet.judge.tracing.culprit import Localisation
from fleet.judge.tracing.localise import localise
from fleet.judge.upgrade import BROKE, Moved, Start, exit_code, moved, start
from fleet.judge.verdict import Verdict
from fleet.report.answers import Answers, Asked, ControlsByCampaign, known_contracts
from fleet.report.diff import Changes, changes
from fleet.store import queries

SCHEMA = 1
WEIGHTS = ("checkpoint", "post_init_weights")


@dataclass(frozen=True)
class Replays:
    """One replay of each stack, held against each other."""

    base: AttemptSummary
    new: AttemptSummary
    rows: PairComparison

    @property
    def settings(self) -> Changes:
        """Settings in force that differ."""
        return changes(self.base.effective, self.new.effective)

    @property
    def weights(self) -> dict[str, tuple[str | None, str | None]]:
        """Weight digests of both."""
        return {n: (self.base.stages.get(n), self.new.stages.get(n)) for n in WEIGHTS}

    def differing(self, grade: str) -> dict[str, tuple[int, int]]:
        """Arm -> (records whose own field of the grade differs, records)."""
        counts = {arm: grades.get(grade, (0, 0)) for arm, grades in self.rows.counts.items()}
        return {arm: (total - exact, total) for arm, (exact, total) in counts.items()}

    def samples(self, grade: str) -> list[tuple[str, str]]:
        """(arm, sample) of those, the first ones in dataset order."""
        kinds = (kind for kind in self.rows.kinds if grade in kind.broken)
        found = sorted(place for kind in kinds for place in kind.samples)
        return [(arm, sample) for _, arm, sample in found]

    def metric(self) -> dict[str, dict[str, list[int]]]:
        """Arm -> side -> (correct, records)."""
        sides = {"base": self.base.arms, "new": self.new.arms}
        return {
            arm: {s: [arms[arm].correct, arms[arm].rows] for s, arms in sides.items()}
            for arm in sorted(self.base.arms.keys() & self.new.arms.keys())
        }


@dataclass(frozen=True)
class Entry:
    """One contract: the answer and what is behind it. ``facts``: of the platforms, but packages,
    that differ."""

    contract: str
    execution_id: str
    moved: Moved
    base: Verdict
    new: Verdict
    labels: tuple[str, str]
    facts: Changes = field(default_factory=dict)
    replays: Replays | None = None
    start: Start | None = None
    trace: Localisation | None = None
    bisection: Mapping[str, Any] = field(default_factory=dict)

    @property
    def same_unit(self) -> bool | None:
        """Did one unit run both replays? None where there are not two."""
        return None if self.replays is None else self.replays.base.unit == self.replays.new.unit

    def to_json(self) -> dict[str, Any]:
        """JSON-able form; ``verdict`` and ``attained_grade`` are what a job's file tells."""
        body: dict[str, Any] = {
            "contract": self.contract,
            "execution_id": self.execution_id,
            "verdict": self.moved.word,
            "attained_grade": self.moved.grade,
            "reason": self.moved.reason,
            "base": _side(self.base, self.labels[0]),
            "new": _side(self.new, self.labels[1]),
            "same_unit": self.same_unit,
            "facts": {key: list(values) for key, values in self.facts.items()},
            "start": asdict(self.start) if self.start else None,
            "culprit": None,
            "not_localised": [],
            "bisection": dict(self.bisection) or None,
        }
        if self.trace is not None:
            culprit = self.trace.culprit
            body["culprit"] = culprit.to_json() if culprit else None
            body["not_localised"] = list(self.trace.not_localised)
        return body | (_rows(self.replays) if self.replays else {})


def _side(verdict: Verdict, label: str) -> dict[str, Any]:
    return {
        "verdict": verdict.verdict,
        "reason": verdict.reason,
        "platform": verdict.platform,
        "platform_label": label,
        "campaign": verdict.campaign,
        "roots": verdict.roots,
        "attempts": [each["attempt"] for each in verdict.attempts],
    }


def _rows(replays: Replays) -> dict[str, Any]:
    grades = {"tokens": "tokens", "answers": "prediction"}
    return {
        "attempts": [replays.base.attempt, replays.new.attempt],
        "differing": {word: replays.differing(grade) for word, grade in grades.items()},
        "samples": {word: replays.samples(grade) for word, grade in grades.items()},
        "metric": replays.metric(),
        "differences": [kind.to_json() for kind in replays.rows.kinds],
        "settings": {key: list(values) for key, values in replays.settings.items()},
    }


@dataclass(frozen=True)
class UpgradeAnswer:
    """What ``fleet upgrade-check`` answers; ``candidates``: all that the stacks have otherwise."""

    upgrade: Upgrade
    entries: tuple[Entry, ...]
    mode: str = "block"

    @property
    def candidates(self) -> list[Change]:
        """In the order of their weight."""
        return [Change(*each) for each in self.upgrade.changes]

    def exit_code(self) -> int:
        """0 kept or fixed, 1 changed, regressed or failing still, 3 not covered; 0 where the mode
        blocks nothing."""
        return exit_code(e.moved.word for e in self.entries) if self.mode == "block" else 0

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        sides = {"base": self.upgrade.base, "new": self.upgrade.new}
        return {
            "schema": SCHEMA,
            "campaign": self.upgrade.id,
            "mode": self.mode,
            "stacks": {word: asdict(side) for word, side in sides.items()},
            "candidates": [each._asdict() for each in self.candidates],
            "contracts": [entry.to_json() for entry in self.entries],
            "controls": [],
        }


def answer_of(
    answers: Answers, upgrade: Upgrade, asked: Sequence[Asked], mode: str = "block"
) -> UpgradeAnswer:
    """Every contract's answer.

    Args:
        answers: the open store.
        upgrade: what was compared.
        asked: its contracts, as they are asked about.
        mode: info, warn or block.
    """
    controls = ControlsByCampaign(answers, known_contracts(answers.store))
    by_id = {each.execution_id: each for each in asked}
    return UpgradeAnswer(upgrade, tuple(_entries(answers, upgrade, by_id, controls)), mode)


def _entries(
    answers: Answers, upgrade: Upgrade, asked: Mapping[str, Asked], controls: ControlsByCampaign
) -> Iterator[Entry]:
    for each in upgrade.contracts:
        if each.execution_id in asked:
            yield _entry(answers, upgrade, each, asked[each.execution_id], controls)


def _entry(
    answers: Answers,
    upgrade: Upgrade,
    compared: Compared,
    asked: Asked,
    controls: ControlsByCampaign,
) -> Entry:
    campaigns = (upgrade.base.campaign, upgrade.new.campaign)
    base, new = (answers.verdict(c, asked, controls.get(c, ())) for c in campaigns)
    found = moved(base, new)
    facts = queries.platforms(answers.store.con)
    places = [facts[v.platform]["facts"] if v.platform in facts else {} for v in (base, new)]
    one, other = (Platform(each).label() if each else "unknown" for each in places)
    differ = changes(_but_packages(places[0]), _but_packages(places[1]))
    steady = found.word in (*BROKE, "KEPT")  # a base that differs from itself compares with nothing
    replays = compared_replays(answers, asked, *campaigns) if steady else None
    trace = traced_pair(answers.landing, compared)
    began = None
    if replays is not None and found.word in BROKE:
        culprit = trace.culprit if trace else None
        began = start(replays.rows, replays.weights, bool(replays.settings), culprit)
    return Entry(
        asked.name, asked.execution_id, found, base, new, (one, other), differ, replays, began,
        trace, compared.found,
    )  # fmt: skip


def _but_packages(facts: Mapping[str, Any]) -> dict[str, Any]:
    return flattened({name: value for name, value in facts.items() if name != "packages"})


def compared_replays(answers: Answers, asked: Asked, base: str, new: str) -> Replays | None:
    """A whole replay of each campaign: two that differ, where any do. None where one has none."""
    landed = queries.summaries(answers.store.con, execution_id=asked.execution_id)
    whole = [
        s for s in landed
        if s.purpose == "certify" and s.state == "COMPLETE" and s.is_reference and s.rows
        and not s.pruned and not s.retracted
    ]  # fmt: skip
    ours = [s for s in whole if s.campaign == base][:1]
    pairs = [(a, b) for a in ours for b in whole if b.campaign == new]
    found = answers.comparisons([(a.attempt, b.attempt) for a, b in pairs], asked.dtype)
    told = [Replays(a, b, found[a.attempt, b.attempt]) for a, b in pairs]
    return next((each for each in told if each.rows.kinds), told[0] if told else None)


def traced_pair(landing: Landing, compared: Compared) -> Localisation | None:
    """Where a traced replay of each stack parts; None without two that can be read."""
    try:
        traces, repeated = (
            [t for a in attempts if (t := read_trace(landing, a)) is not None]
            for attempts in (compared.traces, compared.repeats)
        )
    except EvidenceError:
        return None
    return localise(traces, repeated, "stacks") if len(traces) == 2 else None
