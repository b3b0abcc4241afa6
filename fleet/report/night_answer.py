"""What a night found: where its contracts stand, how each unit's controls behaved, what is left.

A night is many campaigns, so its verdicts are those of ``status``, over everything known of what it
ran; a unit whose controls failed has its PASSes voided there. Holds no rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from fleet.judge import rules
from fleet.report.answers import Answers, Asked, CampaignAnswer, ControlAnswer
from fleet.report.document import control_document
from fleet.report.status import StatusRow, status_rows
from fleet.report.terminal import print_control, print_status
from fleet.store import queries


@dataclass(frozen=True)
class NightAnswer:
    """``campaigns``: unit -> its campaign; ``controls``: the same, each with its campaign."""

    night: str
    rows: tuple[StatusRow, ...]
    campaigns: Mapping[str, str]
    controls: tuple[tuple[str, ControlAnswer], ...]
    left_out: tuple[Mapping[str, Any], ...]

    def exit_code(self) -> int:
        """FAIL over VOID over PASS; 3 where nothing ran."""
        verdicts = [row.verdict for row in self.rows if row.verdict is not None]
        behaved = {row.contract for row in self.rows if row.behaves}
        codes = [rules.exit_code(verdicts, behaved)] if verdicts else [3]
        if any(control.mismatches for _, control in self.controls):
            codes.append(3)
        return 1 if 1 in codes else max(codes)

    def as_campaign(self) -> CampaignAnswer:
        """For those who watch: one verdict a row, the night as the campaign."""
        behaved = frozenset(row.contract for row in self.rows if row.behaves)
        verdicts = tuple(row.verdict for row in self.rows if row.verdict is not None)
        controls = tuple(control for _, control in self.controls)
        return CampaignAnswer(self.night, verdicts, controls, behaved)

    def asked(self, known: Sequence[Asked]) -> list[Asked]:
        """What each of those verdicts is about."""
        by_key = {(a.name, a.execution_id): a for a in known}
        return [
            by_key[row.contract, row.execution_id].about(row.verdict.vary)
            for row in self.rows
            if row.verdict is not None
        ]

    def to_json(self) -> dict[str, Any]:
        """The document of the verb; ``units`` says which campaign was whose."""
        return {
            "schema": 1,
            "campaign": self.night,
            "contracts": [row.to_json() for row in self.rows],
            "controls": [
                control_document(control) | {"unit": unit, "campaign": self.campaigns[unit]}
                for unit, control in self.controls
            ],
            "units": dict(self.campaigns),
            "left_out": [dict(left) for left in self.left_out],
        }


def night_answer(
    answers: Answers,
    night: str,
    campaigns: Mapping[str, str],
    names: Sequence[str],
    controls: Sequence[Asked],
    left_out: Sequence[Mapping[str, Any]],
    search: Sequence[Path],
    cache: Path,
    now_s: float,
) -> NightAnswer:
    """Of a night that was ingested.

    Args:
        answers: the open store.
        night: its id.
        campaigns: unit -> its campaign.
        names: the contracts that were named.
        controls: those that every unit's campaign carried.
        left_out: what did not run, and why.
        search: the config path.
        cache: where demo checkpoints are kept.
        now_s: the time that ages are counted to.
    """
    ran = [s for c in campaigns.values() for s in queries.summaries(answers.store.con, campaign=c)]
    touched = {(s.execution_id, s.platform, s.vary) for s in ran}
    rows = [
        row
        for row in status_rows(answers, names, search, cache, now_s)
        if row.verdict is not None
        and (row.execution_id, row.platform, row.verdict.vary) in touched
    ] if ran else []  # fmt: skip
    carried = {s.contract for s in ran}
    found = [
        (unit, answers.control(campaign, asked))
        for unit, campaign in campaigns.items()
        for asked in controls
        if asked.name in carried
    ]
    return NightAnswer(night, tuple(rows), dict(campaigns), tuple(found), tuple(left_out))


def print_answer(console: Console, answer: NightAnswer) -> None:
    """For a person."""
    console.print(f"night {answer.night}: {len(answer.campaigns)} units")
    print_status(console, answer.rows)
    for unit, control in answer.controls:
        print_control(console, control, f" on {unit}")
    for left in answer.left_out:
        console.print(f"left out: {left['contract']}: {left['why']}", markup=False)
