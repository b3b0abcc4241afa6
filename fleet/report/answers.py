"""Ask the judge about what the store holds: the one place where summaries meet verdicts.

Fetches summaries, lets the judge name the pairs it needs, compares those row by row, and judges.
Holds no rule of its own and keeps no verdict: each call derives it from evidence (law 2).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fleet.contract.model import Contract, Expect, Require
from fleet.evidence.landing import Landing
from fleet.evidence.platform import Platform
from fleet.evidence.summary import AttemptSummary
from fleet.judge import rules
from fleet.judge.compare import PairComparison, compare_rows
from fleet.judge.verdict import Verdict
from fleet.store import pairs, queries
from fleet.store.open import Store

Pair = tuple[str, str]


@dataclass(frozen=True)
class ControlAnswer:
    """A control's verdict, and where it did not behave as its contract expects."""

    verdict: Verdict
    mismatches: tuple[str, ...]


@dataclass(frozen=True)
class CampaignAnswer:
    """``contracts`` are those named, in that order; ``controls`` those the campaign added."""

    campaign: str
    contracts: tuple[Verdict, ...]
    controls: tuple[ControlAnswer, ...]
    behaved: frozenset[str]

    def exit_code(self) -> int:
        """0 PASS, 1 FAIL, 3 VOID; a named control that behaves counts as PASS."""
        code = rules.exit_code(self.contracts, self.behaved)
        return 3 if code == 0 and any(control.mismatches for control in self.controls) else code


@dataclass(frozen=True)
class Asked:
    """One contract as it is asked about."""

    name: str
    execution_id: str
    require: Require
    expect: Expect | None
    dtype: str


@dataclass
class Answers:
    """Verdicts over one open store and its landing."""

    store: Store
    landing: Landing
    _compared: dict[Pair, PairComparison] = field(default_factory=dict)

    def campaign(
        self, campaign: str, named: Sequence[Asked], controls: Sequence[Asked]
    ) -> CampaignAnswer:
        """What a campaign's own evidence says, over everything known of its contracts."""
        control_answers = [self._control(campaign, asked) for asked in controls]
        own = [asked for asked in named if asked.expect is not None]
        behaved_own = [self._control(campaign, asked) for asked in own]
        failed = [
            a.verdict.contract for a in (*control_answers, *behaved_own) if a.mismatches
        ]
        verdicts = tuple(
            self.verdict(campaign, asked, () if asked.expect is not None else failed)
            for asked in named
        )
        behaved = frozenset(a.verdict.contract for a in behaved_own if not a.mismatches)
        return CampaignAnswer(campaign, verdicts, tuple(control_answers), behaved)

    def verdict(
        self, campaign: str, asked: Asked, controls_failed: Sequence[str] = ()
    ) -> Verdict:
        """One contract's verdict for one campaign."""
        summaries = queries.summaries(self.store.con, execution_id=asked.execution_id)
        needed = rules.pairs_needed_for_campaign(summaries, asked.require, campaign)
        return rules.judge_campaign(
            summaries,
            asked.require,
            self.comparisons(needed, asked.dtype),
            campaign,
            contract_name=asked.name,
            controls_failed=controls_failed,
            platforms=self._platform_facts(),
        )

    def comparisons(self, needed: Iterable[Pair], dtype: str) -> dict[Pair, PairComparison]:
        """Row by row, each pair once: evidence is append-only, so a comparison stays true."""
        found: dict[Pair, PairComparison] = {}
        for pair in needed:
            if pair not in self._compared:
                self._compared[pair] = self._compare(pair, dtype)
            found[pair] = self._compared[pair]
        return found

    def _compare(self, pair: Pair, dtype: str) -> PairComparison:
        a, b = pair
        con = self.store.con
        return compare_rows(
            pairs.pair_counts(con, a, b),
            pairs.differing_rows(con, self.landing, a, b),
            pairs.only_in(con, a, b),
            pairs.only_in(con, b, a),
            attempts=pair,
            dtype=dtype,
        )

    def _control(self, campaign: str, asked: Asked) -> ControlAnswer:
        verdict = self.verdict(campaign, asked)
        mismatches = rules.check_expectation(verdict, asked.expect) if asked.expect else []
        return ControlAnswer(verdict, tuple(mismatches))

    def _platform_facts(self) -> dict[str, Mapping[str, Any]]:
        return {key: body["facts"] for key, body in queries.platforms(self.store.con).items()}


@dataclass(frozen=True)
class StatusRow:
    """One contract on one platform. ``verdict`` is None when nothing was ever tested."""

    contract: str
    execution_id: str
    platform: str
    platform_label: str
    state: str
    verdict: Verdict | None
    age_s: float | None
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """The verdict's document, with the row's own keys."""
        body = self.verdict.to_json() if self.verdict else {"contract": self.contract}
        return body | {
            "execution_id": self.execution_id,
            "platform": self.platform,
            "platform_label": self.platform_label,
            "state": self.state,
            "age_s": self.age_s,
            "note": self.note,
        }


class _ControlsByCampaign(Mapping[str, Sequence[str]]):
    """Which controls of a campaign did not behave; asked only for campaigns that matter."""

    def __init__(self, answers: Answers, known: Mapping[str, Asked]) -> None:
        self._answers, self._known = answers, known
        self._by_campaign: dict[str, list[str]] = {}
        for row in queries.controls(answers.store.con):
            self._by_campaign.setdefault(row.campaign, []).append(row.contract)
        self._failed: dict[str, tuple[str, ...]] = {}

    def __getitem__(self, campaign: str) -> Sequence[str]:
        if campaign not in self._failed:
            names = self._by_campaign[campaign]
            self._failed[campaign] = tuple(n for n in names if self._misbehaved(campaign, n))
        return self._failed[campaign]

    def _misbehaved(self, campaign: str, name: str) -> bool:
        asked = self._known.get(name)
        return asked is None or bool(self._answers._control(campaign, asked).mismatches)

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_campaign)

    def __len__(self) -> int:
        return len(self._by_campaign)


def known_contracts(store: Store) -> list[Asked]:
    """Every contract the store has evidence of, from what the landing keeps of it."""
    found = []
    for row in queries.contracts(store.con):
        if row.body is not None:
            contract = Contract.model_validate_json(json.dumps(row.body["contract"]))
            found.append(asked_of(row.name, row.execution_id, contract))
    return found


def asked_of(name: str, execution_id: str, contract: Contract) -> Asked:
    """What the judge needs to know of a contract."""
    return Asked(name, execution_id, contract.require, contract.expect, contract.model.dtype)


def status_rows(
    answers: Answers, names: Sequence[str], now_s: float, platform: str | None = None
) -> list[StatusRow]:
    """Where each contract stands, per platform, over all evidence.

    Args:
        answers: the open store.
        names: contracts to show; empty for all.
        now_s: the time that ages are counted to.
        platform: only this platform digest.
    """
    known = known_contracts(answers.store)
    by_name = {asked.name: asked for asked in known}
    controls = _ControlsByCampaign(answers, by_name)
    facts = queries.platforms(answers.store.con)
    rows = []
    for asked in known:
        if names and asked.name not in names:
            continue
        summaries = queries.summaries(answers.store.con, execution_id=asked.execution_id)
        for key, members in sorted(rules.groups(summaries).items()):
            if platform is None or key.platform == platform:
                rows.append(_status_row(answers, asked, key, members, controls, facts, now_s))
    return rows


def _status_row(
    answers: Answers,
    asked: Asked,
    key: rules.SetKey,
    members: list[AttemptSummary],
    controls: Mapping[str, Sequence[str]],
    facts: Mapping[str, Any],
    now_s: float,
) -> StatusRow:
    compared = answers.comparisons(rules.pairs_needed(members, asked.require), asked.dtype)
    verdict = rules.judge(
        members,
        asked.require,
        compared,
        campaign=None,
        contract_name=asked.name,
        controls_failed_in=controls,
    )
    previous = verdict.verdict == "FAIL" and rules.had_pass(
        members, asked.require, compared, contract_name=asked.name, controls_failed_in=controls
    )
    at = verdict.accepted_at_s
    state = rules.status_of(verdict, at, asked.require.valid_days, now_s, previous)
    label = Platform(facts[key.platform]["facts"]).label() if key.platform in facts else "unknown"
    age = None if at is None else now_s - at
    return StatusRow(
        asked.name, key.execution_id, key.platform, label, state, replace(verdict, state=state), age
    )
