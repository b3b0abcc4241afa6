"""A verdict derived anew from a landing alone, as it stood at some heads of its chains.

A store is built for it and thrown away, so nothing that anybody kept is believed. Holds no rule.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fleet.evidence.landing import Landing
from fleet.evidence.ledger import Heads
from fleet.evidence.view import view
from fleet.report.answers import Answers, Asked, ControlsByCampaign, known_contracts
from fleet.report.status import StatusRow, rows_of
from fleet.store import queries
from fleet.store.open import open_reader
from fleet.store.rebuild import rebuild


@contextmanager
def derived(
    landing: Landing, execution_ids: Iterable[str], heads: Heads, trusted: Mapping[str, str]
) -> Iterator[Answers]:
    """Answers over what the landing said of these execution ids at these heads.

    Raises:
        EvidenceError: the landing does not hold any more what it held then.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        then = view(landing, execution_ids, heads, folder / "landing")
        rebuild(folder / "fleet.duckdb", then)
        with open_reader(folder / "fleet.duckdb", trusted) as store:
            yield Answers(store, then)


def rows_about(answers: Answers, asked: Asked) -> list[StatusRow]:
    """Where a contract stands by these answers, on each platform and of each claim."""
    controls = ControlsByCampaign(answers, known_contracts(answers.store))
    facts = queries.platforms(answers.store.con)
    return rows_of(answers, asked, controls, facts, time.time())
