"""Everything that a report shows, as one JSON document: the page, Markdown and ``--json`` read it.

One cell for each contract, claim and platform with evidence, as ``status`` derives it, with what
qualifies it: attempts over time, root classes, margins, facts of the platform. Holds no rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import fleet
from fleet.contract.vary import in_words
from fleet.evidence.platform import Platform
from fleet.evidence.summary import AttemptSummary
from fleet.judge import RULE_VERSION
from fleet.judge.present import DAY_S
from fleet.report.answers import Answers, Asked, known_contracts
from fleet.report.status import StatusRow
from fleet.store import queries

SCHEMA = 1
MOST_ATTEMPTS = 400
"""Of a cell, newest; the page stays small however long a contract has been run."""

MOST_MARGINS = 5000
BINS = 16
"""Of the histogram of margins: 0 ulps, 1, 2 to 3, 4 to 7, ...; the last one holds all above."""


def report_document(answers: Answers, rows: Sequence[StatusRow], now_s: float) -> dict[str, Any]:
    """The document of a report over some rows of a status.

    Args:
        answers: the open store that the rows are of.
        rows: as ``status`` gives them.
        now_s: the time that ages were counted to.
    """
    known = {(a.name, a.execution_id): a for a in known_contracts(answers.store)}
    facts = queries.platforms(answers.store.con)
    shown = [row for row in rows if row.verdict is not None]
    margins = {
        row.execution_id: _margins(answers, row.execution_id)
        for row in shown
        if row.verdict is not None and row.verdict.verdict != "VOID"
    }
    return {
        "schema": SCHEMA,
        "made_at_s": now_s,
        "made_at": _time(now_s),
        "fleet": fleet.__version__,
        "rule_version": RULE_VERSION,
        "platforms": _platforms(facts, {row.platform for row in shown}),
        "cells": [_cell(answers, row, known, margins) for row in shown],
        "untested": [
            {"contract": row.contract, "note": row.note} for row in rows if row.verdict is None
        ],
    }


def _time(at_s: float | None) -> str | None:
    return None if at_s is None else f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M} UTC"


def _cell(
    answers: Answers,
    row: StatusRow,
    known: Mapping[tuple[str, str], Asked],
    margins: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    verdict = row.verdict
    assert verdict is not None
    asked = known.get((row.contract, row.execution_id))
    mine = [
        s
        for s in queries.summaries(answers.store.con, execution_id=row.execution_id)
        if s.vary == verdict.vary and s.platform in ("", row.platform) and s.purpose == "certify"
    ]
    grade = verdict.required_grade
    at_s = verdict.accepted_at_s
    valid_s = asked.require.valid_days * DAY_S if asked else None
    expires_s = at_s + valid_s if at_s is not None and valid_s is not None else None
    return row.to_json() | {
        "claim": in_words(verdict.vary),
        "accepted_at": _time(at_s),
        "expires_at": _time(expires_s) if verdict.verdict == "PASS" else None,
        "over_time": [_attempt(s, grade) for s in _newest(mine)],
        "classes": _classes(mine, grade),
        "margins": margins.get(row.execution_id),
        "commands": _commands(row),
    }


def _newest(mine: Iterable[AttemptSummary]) -> list[AttemptSummary]:
    told = [s for s in mine if s.accepted_at_s is not None]
    return sorted(told, key=lambda s: (s.accepted_at_s or 0.0, s.attempt))[-MOST_ATTEMPTS:]


def _attempt(s: AttemptSummary, grade: str) -> dict[str, Any]:
    return {
        "attempt": s.attempt,
        "campaign": s.campaign,
        "unit": s.unit,
        "at_s": s.accepted_at_s,
        "at": _time(s.accepted_at_s),
        "state": s.state,
        "cause": str(s.cause) if s.cause else None,
        "root": s.roots.get(grade),
        "traced": s.traced,
    }


def _classes(mine: Iterable[AttemptSummary], grade: str) -> list[dict[str, Any]]:
    """Root -> who shares it, the most shared first."""
    found: dict[str, list[AttemptSummary]] = {}
    for s in mine:
        if s.state == "COMPLETE" and grade in s.roots and s.accepted_at_s is not None:
            found.setdefault(s.roots[grade], []).append(s)
    order = sorted(found.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    return [
        {
            "root": root,
            "replays": len(members),
            "units": sorted({s.unit for s in members}),
            "first": _time(min(s.accepted_at_s or 0.0 for s in members)),
            "last": _time(max(s.accepted_at_s or 0.0 for s in members)),
        }
        for root, members in order
    ]


def _margins(answers: Answers, execution_id: str) -> dict[str, Any]:
    """Each record's smallest distance of the chosen token from another one, in ulps, as counts."""
    rows = queries.smallest_margins(answers.store.con, execution_id, MOST_MARGINS)
    counts = [0] * BINS
    for row in rows:
        counts[min(int(row.ulps).bit_length(), BINS - 1)] += 1
    return {
        "records": len(rows),
        "nearest_only": len(rows) == MOST_MARGINS,
        "exact_ties": sum(row.exact_tie for row in rows),
        "bins": [
            {"from": 0 if i == 0 else 2 ** (i - 1), "records": n} for i, n in enumerate(counts)
        ],
        "nearest": [
            {"arm": r.arm, "sample": r.sample_id, "ulps": r.ulps, "logits": r.logits}
            for r in rows[:5]
        ],
    }


def _commands(row: StatusRow) -> list[str]:
    """What a reader would type next."""
    verdict = row.verdict
    assert verdict is not None
    vary = f" --vary {','.join(verdict.vary)}" if verdict.vary else ""
    found = [f"fleet certify {row.contract}{vary}"]
    first = verdict.first_difference or {}
    if verdict.verdict == "FAIL" and first.get("sample_id") and first.get("arm"):
        where = f"--sample {first['sample_id']} --arm {first['arm']}"
        found += [f"fleet replay {row.contract} {where}", f"fleet trace {row.contract} {where}"]
    return found


def _platforms(facts: Mapping[str, Any], wanted: set[str]) -> list[dict[str, Any]]:
    """Each with its facts, flat, and which of them are not the same on all."""
    flat = {digest: _flat(facts[digest]["facts"]) for digest in sorted(wanted) if digest in facts}
    if "" in wanted:  # attempts that ended before they could say where they ran
        flat[""] = {}
    names = sorted({name for own in flat.values() for name in own})
    differ = [n for n in names if len({repr(own.get(n)) for own in flat.values()}) > 1]
    labels = {d: Platform(facts[d]["facts"]).label() if d else "no platform stated" for d in flat}
    alike = {each for each in labels.values() if list(labels.values()).count(each) > 1}
    return [
        {
            "digest": digest,
            "label": f"{labels[digest]} ({digest.removeprefix('sha256:')[:8]})"
            if labels[digest] in alike
            else labels[digest],
            "facts": own,
            "differs_in": differ,
        }
        for digest, own in flat.items()
    ]


def _flat(facts: Mapping[str, Any], head: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in facts.items():
        key = f"{head}{name}"
        if isinstance(value, Mapping):
            found |= _flat(value, f"{key}.")
        else:
            found[key] = str(value)
    return found
