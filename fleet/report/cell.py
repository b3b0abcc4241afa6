"""One cell of a report: a row of a status with everything that qualifies its verdict.

What each campaign made of it, who shares a root, the call tree of its trace, margins, what to type
next. Of each at most so much as a person can look at, so that a report stays as small, and as fast
to make, however long a contract has been run. Holds no rule.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from typing import Any

from fleet.contract.vary import in_words
from fleet.errors import StoreError
from fleet.evidence.summary import AttemptSummary
from fleet.judge.sets import is_good
from fleet.report.answers import Answers, Asked
from fleet.report.difference import look_again
from fleet.report.history import Moment
from fleet.report.screen import age, utc
from fleet.report.status import StatusRow
from fleet.store.margins import margins_of
from fleet.store.queries import MarginRow

MOST_CAMPAIGNS = 200
"""Of a cell's history, the newest."""

MOST_ATTEMPTS = 400
MOST_CLASSES = 50
MOST_UNITS = 100
MOST_MARGINS = 20_000
"""Records whose margins are read."""

BINS = 16
"""Of the histogram of margins: 0 ulps, 1, 2 to 3, 4 to 7, ...; the last one holds all above."""


def cell_document(
    answers: Answers,
    row: StatusRow,
    members: Sequence[AttemptSummary],
    here: Sequence[AttemptSummary],
    moments: Sequence[Moment],
) -> dict[str, Any]:
    """One cell.

    Args:
        answers: the open store.
        row: of a status.
        members: attempts of the row's set.
        here: all attempts of its contract on its platform.
        moments: what each campaign made of the set, in time.
    """
    good = [s for s in members if row.asked and is_good(s, row.asked.require)]
    named = row.asked is not None and row.verdict is not None and row.verdict.culprit is not None
    found = answers.newest_trace(row.asked.require, here) if row.asked and named else None
    return row.to_json() | {
        "word": shown_word(row),
        "words": shown_words(row),
        "claim": in_words(row.vary),
        "accepted_at": _utc(row.verdict.accepted_at_s if row.verdict else None),
        "expires_at": _utc(row.expires_at_s),
        "history": _history(moments),
        "campaigns": len(moments),
        "classes": _classes(good, row.asked) if row.asked else [],
        "tree": found.tree.to_json() if found and found.tree else None,
        "margins": _margins(answers, good),
        "predecessors": list(answers.predecessors.get(row.platform, ())),
        "commands": _commands(row),
    }


def shown_word(row: StatusRow) -> str:
    """A control that does what it must *behaves*, whatever its verdict."""
    return "behaves" if row.behaves else row.word


def shown_words(row: StatusRow) -> str:
    """Beside the word: grade, units and age, as far as there are any."""
    verdict = row.verdict
    if verdict is None:
        return ""
    words = [verdict.attained_grade] if verdict.attained_grade else []
    if verdict.verdict == "FAIL" and verdict.records:
        words = [f"{verdict.mismatches} of {verdict.records} differ"]
    if row.behaves:
        words.insert(0, f"{verdict.verdict}, as it must")
    if row.units_tested:
        words.append(f"{row.units_tested}/{max(row.units_known, row.units_tested)} units")
    words += [age(row.age_s)] if row.age_s is not None else []
    return ", ".join(words)


def _utc(at_s: float | None) -> str | None:
    return None if at_s is None else utc(at_s)


def _history(moments: Sequence[Moment]) -> list[dict[str, Any]]:
    """The newest campaigns, with no more attempts than can be looked at."""
    left, kept = MOST_ATTEMPTS, []
    for moment in reversed(moments[-MOST_CAMPAIGNS:]):
        told = moment.to_json()
        attempts = told["attempts"]
        shown = attempts[max(0, len(attempts) - left) :]
        left -= len(shown)
        kept.append(told | {"attempts": shown, "num_attempts": len(attempts)})
    return kept[::-1]


def _classes(good: Sequence[AttemptSummary], asked: Asked) -> list[dict[str, Any]]:
    """Root -> who shares it, the most shared first."""
    found: dict[str, list[AttemptSummary]] = {}
    for s in good:
        found.setdefault(s.roots[asked.require.grade], []).append(s)
    order = sorted(found.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    return [_class(root, members) for root, members in order[:MOST_CLASSES]]


def _class(root: str, members: Sequence[AttemptSummary]) -> dict[str, Any]:
    units = Counter(s.unit for s in members)
    times = [s.accepted_at_s for s in members if s.accepted_at_s is not None]
    return {
        "root": root,
        "replays": len(members),
        "units": dict(units.most_common(MOST_UNITS)),
        "num_units": len(units),
        "first": _utc(min(times, default=None)),
        "last": _utc(max(times, default=None)),
    }


def _margins(answers: Answers, good: Sequence[AttemptSummary]) -> dict[str, Any] | None:
    """Each record's smallest distance of the chosen token from another one, in ulps, as counts; of
    one replay, the newest that has its rows."""
    newest = max((s for s in good if not s.pruned), key=_when, default=None)
    if newest is None:
        return None
    head = {"attempt": newest.attempt, "records": 0, "of": newest.rows, "unreadable": None}
    try:
        rows = margins_of(answers.store.con, answers.landing, newest.attempt, MOST_MARGINS)
    except StoreError as error:
        return head | {"unreadable": str(error)}
    return head | _counted(rows)


def _when(s: AttemptSummary) -> tuple[float, str]:
    return s.accepted_at_s or 0.0, s.attempt


def _counted(rows: Sequence[MarginRow]) -> dict[str, Any]:
    counts = [0] * BINS
    for row in rows:
        counts[min(int(row.ulps).bit_length(), BINS - 1)] += 1
    return {
        "records": len(rows),
        "exact_ties": sum(row.exact_tie for row in rows),
        "bins": [
            {"from": 0 if i == 0 else 2 ** (i - 1), "records": n} for i, n in enumerate(counts)
        ],
        "nearest": [
            {"arm": r.arm, "sample": r.sample_id, "ulps": r.ulps, "logits": r.logits}
            for r in rows[:5]
        ],
    }


def _commands(row: StatusRow) -> dict[str, str]:
    """What a reader would type next, by what it is for."""
    vary = ["--vary", ",".join(row.vary)] if row.vary else []
    found = look_again(row.verdict) if row.verdict else {}
    found["certify anew"] = shlex.join(["fleet", "certify", row.contract, *vary])
    attempts = ((row.verdict.first_difference if row.verdict else None) or {}).get("attempts") or ()
    if len(attempts) == 2:
        found["all that differs"] = shlex.join(["fleet", "diff", *attempts])
    return found | {"over time": shlex.join(["fleet", "history", row.contract])}
