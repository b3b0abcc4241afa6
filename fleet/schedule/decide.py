"""Decide about units by all that the store holds, and record it in the landing.

Holds no rule: the judge says what is due. Called at the end of a campaign; calling it again changes
nothing, since what is recorded is no longer due.
"""

from __future__ import annotations

from collections.abc import Collection

from fleet.evidence import decisions
from fleet.evidence.decisions import Decision
from fleet.evidence.landing import Landing
from fleet.judge.quarantine import due
from fleet.report.units import tested_by
from fleet.store import queries
from fleet.store.open import Store


def decide(
    landing: Landing, store: Store, now_s: float, only: Collection[str] | None = None
) -> list[Decision]:
    """Record the quarantines and releases that are due, and return them.

    Args:
        landing: where they are recorded.
        store: brought up to that landing.
        now_s: the time; evidence accepted later is left out.
        only: execution ids to look at; all when None.
    """
    known = decisions.read(landing)
    found: list[Decision] = []
    for asked in tested_by(store):
        if only is None or asked.execution_id in only:
            summaries = queries.summaries(store.con, execution_id=asked.execution_id)
            found += due(summaries, asked.require, asked.name, known, now_s)
    decisions.record(landing, found)
    return found
