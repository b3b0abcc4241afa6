"""Say a campaign's answer to those who watch: metrics, and a webhook for what regressed.

Whatever goes wrong here is said on standard error and changes no verdict and no exit code. Holds no
rule: what regressed is derived by ``report.regressed``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence

from fleet.errors import FleetError
from fleet.evidence.decisions import quarantined
from fleet.report import webhook
from fleet.report.answers import Answers, Asked, CampaignAnswer
from fleet.report.regressed import Regression, regressions
from fleet.schedule.metrics import Meter


def announce(
    answers: Answers,
    answer: CampaignAnswer,
    named: Sequence[Asked],
    meter: Meter,
    environ: Mapping[str, str],
) -> None:
    """Once at the end of a campaign.

    Args:
        answers: over the store that the answer was derived from.
        answer: the campaign's.
        named: what it was asked about, one for each of its contracts, in that order.
        meter: takes the numbers.
        environ: may hold the webhook's URL.
    """
    found, out = _derived(answers, answer, named)
    meter.answered(answer)
    for each in found:
        meter.regressed(each.contract, each.platform)
    if out is not None:
        meter.quarantined(out)
    meter.campaign_ended(time.time())
    webhook.tell(found, environ)


def _derived(
    answers: Answers, answer: CampaignAnswer, named: Sequence[Asked]
) -> tuple[list[Regression], int | None]:
    """What regressed, and how many units are out; nothing where that cannot be told."""
    try:
        return regressions(answers, answer, named), len(quarantined(answers.landing))
    except (FleetError, OSError) as error:
        print(f"fleet: cannot tell what regressed: {error}", file=sys.stderr)
        return [], None
