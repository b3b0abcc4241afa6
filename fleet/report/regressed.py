"""Which FAILs of a campaign's answer are regressions, and since when.

A regression is what ``fleet status`` shows as REGRESSED: the same execution id had PASSed before. A
contract that is a control is none, whatever it does. Holds no verdict rule.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fleet.judge.verdict import Verdict
from fleet.report.answers import Answers, Asked, CampaignAnswer, ControlsByCampaign, known_contracts
from fleet.report.status import rows_of
from fleet.store import queries


@dataclass(frozen=True)
class Regression:
    """One contract on one platform; ``since`` is when the campaign with which it became a FAIL had
    landed its evidence, in UTC, and None where that time is not known."""

    contract: str
    vary: tuple[str, ...]
    execution_id: str
    platform: str
    platform_label: str
    verdict: str
    reason: str
    campaign: str
    since: str | None

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        return asdict(self) | {"vary": list(self.vary)}


def regressions(
    answers: Answers, answer: CampaignAnswer, named: Sequence[Asked]
) -> list[Regression]:
    """One for each FAIL of the answer that is a REGRESSED today.

    Args:
        answers: over the store that the answer was derived from.
        answer: a campaign's.
        named: what it was asked about, one for each of its contracts, in that order.
    """
    failed = [
        (verdict, asked)
        for verdict, asked in zip(answer.contracts, named, strict=True)
        if verdict.verdict == "FAIL" and asked.expect is None
    ]
    return [found for v, asked in failed for found in _of(answers, answer.campaign, v, asked)]


def _of(answers: Answers, campaign: str, verdict: Verdict, asked: Asked) -> Iterator[Regression]:
    """On each platform that the verdict is about: on all of them where it names none."""
    controls = ControlsByCampaign(answers, known_contracts(answers.store))
    facts = queries.platforms(answers.store.con)
    for row in rows_of(answers, asked, controls, facts, time.time()):
        if row.state != "REGRESSED" or row.verdict is None or row.verdict.vary != verdict.vary:
            continue
        if verdict.platform in ("", row.platform):
            since = row.regressed.since if row.regressed else None
            yield Regression(
                asked.name, verdict.vary, asked.execution_id, row.platform, row.platform_label,
                row.state, row.verdict.reason, campaign, since,
            )  # fmt: skip
