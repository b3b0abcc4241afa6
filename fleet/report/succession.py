"""What a FAIL was before, and what it means for the platform that came after it.

REGRESSED: the same execution id had PASSed before, here or on a predecessor. A platform without a
full test of its own shows the FAIL of its predecessor, through any number of untested ones. Holds
no verdict rule.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fleet.contract.model import Require
from fleet.evidence.summary import AttemptSummary
from fleet.judge import rules
from fleet.judge.sets import occasion
from fleet.report.answers import Answers, Asked, ControlsByCampaign
from fleet.report.screen import utc

Sets = Mapping[rules.SetKey, Sequence[AttemptSummary]]
FAILING = ("FAIL", "REGRESSED")


@dataclass(frozen=True)
class Regressed:
    """The campaign with which a PASS became a FAIL, and when that had landed its evidence."""

    campaign: str
    at_s: float | None
    passed_on: str

    @property
    def since(self) -> str | None:
        """In UTC."""
        return None if self.at_s is None else utc(self.at_s)

    def to_json(self) -> dict[str, Any]:
        """JSON-able form; ``passed_on`` is the platform that held the PASS."""
        return asdict(self) | {"since": self.since}


@dataclass(frozen=True)
class Predecessor:
    """A platform that a row's units showed before, and the state of the same claim there."""

    platform: str
    platform_label: str
    state: str

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        return asdict(self)


def regressed(
    answers: Answers,
    asked: Asked,
    key: rules.SetKey,
    sets: Sets,
    controls: ControlsByCampaign,
) -> Regressed | None:
    """Since when a FAIL is a REGRESSED; None when it never passed."""
    members = sets[key]
    compared = answers.comparisons(rules.pairs_needed(members, asked.require), asked.dtype)
    failing = rules.first_failing(members, asked.require, compared)
    if failing is None:
        return None
    at_s = _landed_s(members, asked.require, failing)
    if rules.had_pass(members, asked.require, compared, controls_failed_in=controls):
        return Regressed(failing, at_s, key.platform)
    for platform in answers.predecessors.get(key.platform, ()):
        before = sets.get(key._replace(platform=platform), ())
        if at_s is not None and _passed(answers, asked, before, at_s, controls):
            return Regressed(failing, at_s, platform)
    return None


def _passed(
    answers: Answers,
    asked: Asked,
    members: Sequence[AttemptSummary],
    until_s: float,
    controls: ControlsByCampaign,
) -> bool:
    """Was a set a PASS at any time before ``until_s``?"""
    if not members:
        return False
    compared = answers.comparisons(rules.pairs_needed(members, asked.require), asked.dtype)
    names = rules.campaigns_of(members, asked.require)
    failing = rules.first_failing(members, asked.require, compared)
    names = names if failing is None else names[: names.index(failing)]
    told = [
        n
        for n in names
        if (at_s := _landed_s(members, asked.require, n)) is not None and at_s < until_s
    ]
    return rules.ever_passed(members, asked.require, told, controls_failed_in=controls)


def _landed_s(members: Sequence[AttemptSummary], require: Require, campaign: str) -> float | None:
    times = [s.accepted_at_s for s in members if occasion(s, require) == campaign]
    return max((at_s for at_s in times if at_s is not None), default=None)


def with_predecessors(answers: Answers, tested: Mapping[str, str]) -> dict[str, str]:
    """Platform that a unit shows now, without a full test -> the one before it that fails.

    Args:
        answers: over the store.
        tested: platform -> state of one claim, of those that have a full test.
    """
    found = {}
    for platform in sorted(answers.present - set(tested)):
        failing = _failing_before(answers.predecessors, platform, tested, {platform})
        if failing is not None:
            found[platform] = failing
    return found


def _failing_before(
    predecessors: Mapping[str, tuple[str, ...]],
    platform: str,
    tested: Mapping[str, str],
    seen: Collection[str],
) -> str | None:
    for before in predecessors.get(platform, ()):
        if tested.get(before) in FAILING:
            return before
        if before not in tested and before not in seen:
            further = _failing_before(predecessors, before, tested, {*seen, before})
            if further is not None:
                return further
    return None
