"""Summaries of many contracts, read several at a time: a query costs as much as many rows.

Holds no more attempts at once than ``AT_ONCE``, but all of one contract. Knows no verdict.
"""

from __future__ import annotations

from collections.abc import Iterable

from fleet.evidence.summary import AttemptSummary
from fleet.store import queries
from fleet.store.open import Connection

AT_ONCE = 2000


class Ahead:
    """Asked for contracts in the order that was announced, it asks the store seldom."""

    def __init__(self, con: Connection, execution_ids: Iterable[str]) -> None:
        self._con = con
        self._together: dict[str, list[str]] = {}
        self._held: dict[str, list[AttemptSummary]] = {}
        counts, held, size = queries.attempts_of_contracts(con), list[str](), 0
        for each in dict.fromkeys(execution_ids):
            size += counts.get(each, 0)
            if held and size > AT_ONCE:
                held, size = [], counts.get(each, 0)
            held.append(each)
            self._together[each] = held

    def summaries(self, execution_id: str) -> list[AttemptSummary]:
        """As :func:`fleet.store.queries.summaries` of this execution id gives them."""
        if execution_id not in self._held:
            together = self._together.get(execution_id, [execution_id])
            self._held = queries.summaries_by_contract(self._con, together)
        return self._held[execution_id]
