"""Everything that a report shows, as one JSON document: the page, Markdown and ``--json`` read it.

Rows of a status, each with what qualifies it, laid out as ``fleet matrix`` lays them out. Reads
summaries once for each contract, and of the records themselves only those of one replay a cell.
Holds no rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import fleet
from fleet.contract.vary import in_words
from fleet.evidence.platform import Platform
from fleet.evidence.summary import AttemptSummary
from fleet.judge import RULE_VERSION, rules
from fleet.judge.apart import flattened, told
from fleet.report.answers import Answers, ControlsByCampaign, known_contracts
from fleet.report.cell import cell_document
from fleet.report.history import Moment, moments_of
from fleet.report.matrix import Matrix, matrix_of
from fleet.report.screen import utc
from fleet.report.status import StatusRow
from fleet.store import queries
from fleet.store.ahead import Ahead

SCHEMA = 2


def report_document(
    answers: Answers, rows: Sequence[StatusRow], now_s: float, everywhere: bool = True
) -> dict[str, Any]:
    """The document of a report over some rows of a status.

    Args:
        answers: the open store that the rows are of.
        rows: as ``status`` gives them.
        now_s: the time that ages were counted to.
        everywhere: with the platforms that units show now and that no row is about.
    """
    facts = {name: body["facts"] for name, body in queries.platforms(answers.store.con).items()}
    shown = [row for row in rows if row.verdict is not None or row.platform]
    matrix = matrix_of(answers, shown, everywhere)
    cells = {id(row): cell for row, cell in _cells(answers, shown, facts)}
    index = {id(row): number for number, row in enumerate(shown)}
    return {
        "schema": SCHEMA,
        "made_at_s": now_s,
        "made_at": utc(now_s),
        "fleet": fleet.__version__,
        "rule_version": RULE_VERSION,
        "platforms": _platforms(matrix, facts),
        "predecessors": _predecessors(answers, matrix, facts),
        "matrix": _lines(matrix, index),
        "cells": [cells[id(row)] for row in shown],
        "untested": [
            {"contract": row.contract, "claim": in_words(row.vary), "note": row.note}
            for row in rows
            if row.verdict is None and not row.platform
        ],
    }


def _lines(matrix: Matrix, index: Mapping[int, int]) -> list[dict[str, Any]]:
    """``cells``: for each platform the numbers of its cells, the one to be shown first."""
    return [
        {
            "contract": line.contract,
            "claim": in_words(line.vary),
            "cells": [[index[id(row)] for row in cell.rows] for cell in line.cells],
        }
        for line in matrix.lines
    ]


def _cells(
    answers: Answers, rows: Sequence[StatusRow], facts: Mapping[str, Any]
) -> Iterator[tuple[StatusRow, dict[str, Any]]]:
    """Each row with its document; one contract after the other, so that none is read twice."""
    controls = ControlsByCampaign(answers, known_contracts(answers.store))
    by_contract: dict[tuple[str, str], list[StatusRow]] = {}
    for row in rows:
        by_contract.setdefault((row.contract, row.execution_id), []).append(row)
    ahead = Ahead(answers.store.con, (execution_id for _, execution_id in by_contract))
    for (_, execution_id), own in by_contract.items():
        landed = ahead.summaries(execution_id)
        sets = rules.groups(landed)
        moments = _moments(answers, own, landed, controls, facts)
        for row in own:
            key = _key(row)
            here = [s for s in landed if s.platform == row.platform]
            members = sets.get(key, ())
            yield row, cell_document(answers, row, members, here, moments.get(key, ()))


def _key(row: StatusRow) -> rules.SetKey:
    traced = row.verdict is not None and row.verdict.traced
    return rules.SetKey(row.execution_id, row.platform, row.vary, traced)


def _moments(
    answers: Answers,
    rows: Sequence[StatusRow],
    landed: Sequence[AttemptSummary],
    controls: ControlsByCampaign,
    facts: Mapping[str, Any],
) -> dict[rules.SetKey, list[Moment]]:
    """What each campaign made of each set of one contract."""
    asked = next((row.asked for row in rows if row.asked), None)
    found: dict[rules.SetKey, list[Moment]] = {}
    for moment in moments_of(answers, asked, landed, controls, facts) if asked else ():
        found.setdefault(moment.key, []).append(moment)
    return found


def _platforms(matrix: Matrix, facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The columns, each with its facts, flat; labels that two share have their digest."""
    labels = list(matrix.platforms.values())
    return [
        _platform(digest, label, facts, labels.count(label) > 1)
        for digest, label in matrix.platforms.items()
    ]


def _predecessors(
    answers: Answers, matrix: Matrix, facts: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Platforms that some column came after and that are no column: to be compared with."""
    before = {p: None for column in matrix.platforms for p in answers.predecessors.get(column, ())}
    wanted = [p for p in before if p in facts and p not in matrix.platforms]
    return [_platform(p, Platform(facts[p]).label(), facts, True) for p in wanted]


def _platform(digest: str, label: str, facts: Mapping[str, Any], twin: bool) -> dict[str, Any]:
    own = flattened(facts.get(digest, {}))
    return {
        "digest": digest,
        "label": f"{label} ({digest.removeprefix('sha256:')[:8]})" if twin else label,
        "facts": {name: told(value) for name, value in sorted(own.items())},
    }
