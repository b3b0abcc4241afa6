"""Where each contract stands on each platform, over all evidence (``fleet status``).

Derived at every call. A contract whose file changed since its evidence was made is UNTESTED: the
evidence belongs to another execution id. What is required of the evidence is what the file says
today: a stricter requirement is no other execution id. Holds no verdict rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fleet.contract.load import has_contract, list_contracts, load_contract
from fleet.contract.model import GRADES
from fleet.contract.variant import variant_of
from fleet.contract.vary import claim, in_words
from fleet.errors import ContractError
from fleet.evidence import decisions
from fleet.evidence.decisions import Decision
from fleet.evidence.platform import Platform
from fleet.evidence.states import Cause
from fleet.evidence.summary import AttemptSummary
from fleet.judge import rules
from fleet.judge.apart import Apart, apart
from fleet.judge.charge import UNCHARGED, Charge, charge_of, replays_of
from fleet.judge.present import DAY_S
from fleet.judge.sets import in_order
from fleet.judge.verdict import Verdict
from fleet.report.answers import Answers, Asked, ControlsByCampaign, known_contracts
from fleet.report.succession import Predecessor, Regressed, regressed, with_predecessors
from fleet.report.today import Today
from fleet.store import queries
from fleet.store.ahead import Ahead

TELLING = ("REGRESSED", "FAIL", "PASS", "STALE", "VOID", "UNTESTED")
"""Of a claim that stands in two ways, traced and untraced: the first of these."""


Doubts = tuple[Cause | None, Cause | None]
"""What was altered of a contract: as retractions have it, and if there were none."""


@dataclass(frozen=True)
class StatusRow:
    """One contract on one platform. ``verdict`` is None when nothing was ever tested; ``claim`` is
    what would be varied then.

    ``behaves``: the contract is a control and did what it must. ``units_known``: how many units
    ever showed this platform, of which the verdict is about some. ``charge``: to whom a mismatch is
    charged, None where there is none. ``apart``: what sets this platform apart from others on which
    the same contract gives other bits. ``expires_at_s``: when a PASS becomes STALE. ``regressed``:
    with which campaign a PASS became this FAIL. ``predecessor``: a platform whose FAIL stands for
    this one, which has no full test of its own yet. ``asked``: as what it is judged, None where the
    contract was never tested. ``untested``: units of a fleet that no evidence speaks of.
    """

    contract: str
    execution_id: str
    platform: str
    platform_label: str
    state: str
    verdict: Verdict | None
    age_s: float | None
    note: str = ""
    behaves: bool = False
    units_known: int = 0
    charge: Charge | None = None
    apart: Apart | None = None
    decisions: tuple[Decision, ...] = ()
    expires_at_s: float | None = None
    regressed: Regressed | None = None
    predecessor: Predecessor | None = None
    claim: tuple[str, ...] = ()
    asked: Asked | None = None
    untested: tuple[str, ...] = ()

    @property
    def word(self) -> str:
        """The state, or that a platform without a full test of its own succeeds one that fails."""
        return "FAIL on predecessor" if self.predecessor else self.state

    @property
    def vary(self) -> tuple[str, ...]:
        """The claim that the row is about."""
        return self.verdict.vary if self.verdict else self.claim

    @property
    def units_tested(self) -> int:
        """Units with evidence that counts."""
        return len(self.verdict.units) if self.verdict else 0

    def to_json(self) -> dict[str, Any]:
        """The verdict's document, with the row's own keys."""
        body = self.verdict.to_json() if self.verdict else {"contract": self.contract}
        return body | {
            "execution_id": self.execution_id or None,
            "platform": self.platform or None,
            "platform_label": self.platform_label or None,
            "state": self.state,
            "age_s": self.age_s,
            "expires_at_s": self.expires_at_s,
            "last_regression": self.regressed.to_json() if self.regressed else None,
            "predecessor": self.predecessor.to_json() if self.predecessor else None,
            "note": self.note,
            "behaves": self.behaves,
            "units_tested": self.units_tested,
            "units_known": self.units_known,
            "units_untested": list(self.untested),
            "charge": self._charge(),
            "platforms_apart": self.apart.to_json() if self.apart else None,
        }

    def _charge(self) -> dict[str, Any] | None:
        """The charge, with the decisions in force about the row's units beside it."""
        if self.charge is None:
            return None
        return self.charge.to_json() | {"decisions": [d.to_json() for d in self.decisions]}


def status_rows(
    answers: Answers, names: Sequence[str], search: Sequence[Path], cache: Path, now_s: float
) -> list[StatusRow]:
    """One row per contract, claim and platform.

    Args:
        answers: the open store.
        names: contracts to show; empty for all that the store or the config path knows.
        search: the config path, to see what changed and what was never tested.
        cache: where demo checkpoints are kept.
        now_s: the time that ages are counted to.

    Raises:
        ContractError: a named contract is neither in the store nor in the config path.
    """
    known = known_contracts(answers.store)
    controls = ControlsByCampaign(answers, known)
    bodies = {
        (row.name, row.execution_id): row.body for row in queries.contracts(answers.store.con)
    }
    facts = queries.platforms(answers.store.con)
    by_name: dict[str, list[Asked]] = {}
    for asked in known:
        by_name.setdefault(asked.name, []).append(asked)
    everything = sorted(by_name.keys() | set(list_contracts(search)))
    today = Today(bodies, search, cache)
    told_today = {
        name: today.about(by_name.get(name, []), name)
        for name in dict.fromkeys(names or everything)
    }
    ahead = Ahead(answers.store.con, (a.execution_id for c, _ in told_today.values() for a in c))
    rows: list[StatusRow] = []
    for name, (current, note) in told_today.items():
        if not current:
            rows.append(_untested(name, note, name in by_name, search))
        for asked in current:
            landed = ahead.summaries(asked.execution_id)
            told = rows_of(answers, asked, controls, facts, now_s, landed)
            rows.extend([*told, *_untested_claim(asked, told)])
    units = queries.units_of_platforms(answers.store.con)
    decided = decisions.standing(answers.landing)
    return [
        replace(
            row,
            units_known=units.get(row.platform, 0),
            decisions=tuple(d for u in _units_of(row) for d in decided.get(u, ())),
        )
        for row in rows
    ]


def _units_of(row: StatusRow) -> list[str]:
    return [unit["unit"] for unit in row.verdict.units] if row.verdict else []


def _untested_claim(asked: Asked, told: Sequence[StatusRow]) -> list[StatusRow]:
    """What the contract says its replays vary, where only other claims were ever tested."""
    vary = claim(asked.require.vary)
    if any(row.verdict is not None and row.vary == vary for row in told):
        return []
    note = f"{in_words(vary)}: never tested: fleet certify {asked.name}"
    return [
        StatusRow(asked.name, asked.execution_id, "", "", "UNTESTED", None, None, note, claim=vary,
                  asked=asked)
    ]  # fmt: skip


def exit_code(rows: Sequence[StatusRow]) -> int:
    """FAIL over VOID over PASS; a control that behaves counts as PASS, UNTESTED as 3."""
    codes = [_code(row) for row in rows] or [3]
    return 1 if 1 in codes else max(codes)


def _code(row: StatusRow) -> int:
    if row.verdict is None:
        return 3
    return rules.exit_code([row.verdict], {row.contract} if row.behaves else ())


def _untested(name: str, note: str, had_evidence: bool, search: Sequence[Path]) -> StatusRow:
    if not had_evidence and not has_contract(name, search):
        raise ContractError(
            "status",
            name,
            "a contract of the store or the config path",
            "neither has it",
            "fleet status (without a name) lists all",
        )
    if not had_evidence and variant_of(name) is not None:
        load_contract(name, search)  # a backend that the contract cannot have is no contract
    return StatusRow(name, "", "", "", "UNTESTED", None, None, f"{note}: fleet certify {name}")


def rows_of(
    answers: Answers,
    asked: Asked,
    controls: ControlsByCampaign,
    facts: Mapping[str, Any],
    now_s: float,
    landed: Sequence[AttemptSummary] | None = None,
) -> list[StatusRow]:
    """Where one contract stands on each platform that it has evidence of. ``landed``: its attempts,
    where they were read already."""
    summaries = landed
    if summaries is None:
        summaries = queries.summaries(answers.store.con, execution_id=asked.execution_id)
    if asked.expect is not None and asked.expect.culprit is not None:
        return [_traced_control(answers, asked, summaries, facts, now_s)]
    groups = rules.groups(summaries)
    doubts = answers.doubt(asked, summaries), answers.doubt(asked, rules.restored(summaries))
    rows = []
    for key, members in sorted(groups.items()):
        homeless = _homeless(groups, key.vary) if key.platform else []
        if key.platform or sum(other.vary == key.vary for other in groups) == 1:
            told = _row(answers, asked, key, members, homeless, doubts, controls, facts, now_s)
            rows.append(told)
    rows = [_with_traces(answers, row, asked, summaries) for row in rows]
    rows = [_with_retractions(row, summaries) for row in rows]
    rows = [replace(row, apart=_apart(row, asked, groups, facts)) for row in rows]
    rows = [_since(answers, row, asked, groups, controls) for row in rows]
    untraced = [r for r in rows if not (r.verdict and r.verdict.traced)]
    kept = [r for r in rows if r in untraced or _adds(r, untraced)] or rows
    return kept if asked.expect is not None else _with_successors(answers, kept, asked, facts)


def _since(
    answers: Answers,
    row: StatusRow,
    asked: Asked,
    groups: Mapping[rules.SetKey, Sequence[AttemptSummary]],
    controls: ControlsByCampaign,
) -> StatusRow:
    """A FAIL of what had been a PASS, here or on a predecessor, with when it became one."""
    if row.verdict is None or row.verdict.verdict != "FAIL":
        return row
    key = rules.SetKey(asked.execution_id, row.platform, row.verdict.vary, row.verdict.traced)
    since = regressed(answers, asked, key, groups, controls)
    if since is None:
        return row
    told = replace(row.verdict, state="REGRESSED")
    return replace(row, state="REGRESSED", verdict=told, regressed=since)


def _with_successors(
    answers: Answers, rows: Sequence[StatusRow], asked: Asked, facts: Mapping[str, Any]
) -> list[StatusRow]:
    """With the platforms that have no full test of a claim and succeed one on which it fails."""
    found = list(rows)
    for vary in dict.fromkeys(row.vary for row in rows):
        mine = [row for row in rows if row.vary == vary and row.verdict is not None]
        tested = {r.platform: r.state for r in mine if r.verdict and r.verdict.verdict != "VOID"}
        tested |= {r.platform: r.state for r in mine if _fails(r)}
        for platform, failing in with_predecessors(answers, tested).items():
            before = Predecessor(failing, _label(facts, failing), tested[failing])
            untested = [row for row in mine if row.platform == platform]
            for row in untested:
                found[found.index(row)] = replace(row, predecessor=before)
            if not untested:
                found.append(_succeeding(asked, vary, platform, before, facts))
    return found


def _succeeding(
    asked: Asked,
    vary: tuple[str, ...],
    platform: str,
    before: Predecessor,
    facts: Mapping[str, Any],
) -> StatusRow:
    note = f"FAIL on predecessor ({before.platform_label}); never tested here"
    return StatusRow(
        asked.name, asked.execution_id, platform, _label(facts, platform), "UNTESTED", None, None,
        f"{note}: fleet certify {asked.name}", predecessor=before, claim=vary, asked=asked,
    )  # fmt: skip


def _apart(
    row: StatusRow,
    asked: Asked,
    groups: Mapping[rules.SetKey, Sequence[AttemptSummary]],
    facts: Mapping[str, Any],
) -> Apart | None:
    """Among the platforms of the row's own claim and trace mode; of one whose facts are not those
    of its digest nobody can say what sets it apart."""
    if row.verdict is None or row.platform not in facts:
        return None
    own = (row.verdict.vary, row.verdict.traced)
    here = {
        k.platform: m
        for k, m in groups.items()
        if k.platform in facts and (k.vary, k.traced) == own
    }
    replays = {platform: replays_of(m, asked.require) for platform, m in here.items()}
    return apart(replays, row.platform, {name: facts[name]["facts"] for name in here})


def _adds(row: StatusRow, untraced: Sequence[StatusRow]) -> bool:
    """Traced replays that agree add nothing but a grade that no untraced ones reach. Those that
    differ stay a difference, told once."""
    here = [r for r in untraced if _place(r) == _place(row)]
    if _fails(row):
        return not any(_fails(r) for r in here)
    return row.state == "PASS" and all(_height(row) > _height(r) for r in here)


def _homeless(
    sets: Mapping[rules.SetKey, list[AttemptSummary]], vary: tuple[str, ...]
) -> list[AttemptSummary]:
    """Attempts of the same claim that died before they could state their platform."""
    return [s for k, found in sets.items() if not k.platform and k.vary == vary for s in found]


def _fails(row: StatusRow) -> bool:
    return row.verdict is not None and row.verdict.verdict == "FAIL"


def _height(row: StatusRow) -> int:
    grade = row.verdict.attained_grade if row.verdict else None
    return GRADES.index(grade) if grade else -1


def _place(row: StatusRow) -> tuple[str, tuple[str, ...]]:
    """Where and of what a row speaks, whether or not it was traced."""
    return row.platform, row.verdict.vary if row.verdict else ()


def _with_traces(
    answers: Answers, row: StatusRow, asked: Asked, summaries: Sequence[AttemptSummary]
) -> StatusRow:
    """A FAIL with what the newest trace on its platform found, or with what exact repeats there say
    of what was varied; a PASS with what was watched."""
    if row.verdict is None:
        return row
    here = [s for s in summaries if s.platform == row.platform]
    told = answers.with_counterfactual(row.verdict, asked, here)
    told = told if told.vary else answers.with_newest_trace(told, asked.require, here)
    return replace(row, verdict=rules.with_execution(told, here))


def _traced_control(
    answers: Answers,
    asked: Asked,
    summaries: Sequence[AttemptSummary],
    facts: Mapping[str, Any],
    now_s: float,
) -> StatusRow:
    """A control of the tracer, as its newest campaign showed it."""
    newest = in_order(summaries)[-1]
    control = answers.control(newest.campaign, asked)
    times = [s.accepted_at_s for s in summaries if s.campaign == newest.campaign]
    at = max((t for t in times if t is not None), default=None)
    verdict = control.verdict
    state: str = verdict.verdict
    if at is not None and now_s - at > asked.require.valid_days * DAY_S:
        state = "STALE"
    return StatusRow(
        asked.name, asked.execution_id, verdict.platform, _label(facts, verdict.platform), state,
        replace(verdict, state=state), None if at is None else now_s - at,
        behaves=not control.mismatches and state != "STALE", expires_at_s=_expires(at, asked),
        asked=asked,
    )  # fmt: skip


def _expires_at_s(verdict: Verdict, asked: Asked) -> float | None:
    return _expires(verdict.accepted_at_s, asked) if verdict.verdict == "PASS" else None


def _expires(at_s: float | None, asked: Asked) -> float | None:
    return None if at_s is None else at_s + asked.require.valid_days * DAY_S


def _label(facts: Mapping[str, Any], platform: str) -> str:
    return Platform(facts[platform]["facts"]).label() if platform in facts else "unknown"


def _with_retractions(row: StatusRow, summaries: Sequence[AttemptSummary]) -> StatusRow:
    if row.verdict is None:
        return row
    return replace(row, verdict=rules.with_retractions(row.verdict, summaries))


def _judged(
    answers: Answers,
    asked: Asked,
    members: list[AttemptSummary],
    homeless: list[AttemptSummary],
    doubt: Cause | None,
    controls: ControlsByCampaign,
) -> Verdict:
    """The judge's word on one set, over all campaigns."""
    compared = answers.comparisons(rules.pairs_needed(members, asked.require), asked.dtype)
    return rules.judge(
        members, asked.require, compared, campaign=None, contract_name=asked.name,
        controls_failed_in=controls, siblings=homeless, doubt=doubt,
    )  # fmt: skip


def _row(
    answers: Answers,
    asked: Asked,
    key: rules.SetKey,
    members: list[AttemptSummary],
    homeless: list[AttemptSummary],
    doubts: Doubts,
    controls: ControlsByCampaign,
    facts: Mapping[str, Any],
    now_s: float,
) -> StatusRow:
    name = asked.name
    doubt, doubt_without = doubts
    verdict = _judged(answers, asked, members, homeless, doubt, controls)
    if rules.any_retracted([*members, *homeless]):
        everything, others = rules.restored(members), rules.restored(homeless)
        without = _judged(answers, asked, everything, others, doubt_without, controls)
        verdict = rules.with_withdrawn(verdict, without)
    failed = verdict.verdict == "FAIL"
    at = verdict.accepted_at_s
    state = rules.status_of(verdict, at, asked.require.valid_days, now_s, previous=False)
    label = _label(facts, key.platform)
    verdict = replace(verdict, state=state)
    behaves = asked.expect is not None and not rules.check_expectation(verdict, asked.expect)
    behaves = behaves and state != "STALE"
    age_s = None if at is None else now_s - at
    charge = charge_of(members, asked.require) or (UNCHARGED if failed else None)
    return StatusRow(
        name, key.execution_id, key.platform, label, state, verdict, age_s, behaves=behaves,
        charge=charge, expires_at_s=_expires_at_s(verdict, asked), asked=asked,
    )  # fmt: skip
