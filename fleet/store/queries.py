"""Read the store: summaries, platforms, units, contracts, campaigns, controls.

Everything that a verdict needs of an attempt is in its summary, one row each, so that a status
over any number of records reads attempts only. Knows no verdict.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fleet.contract.canonical import from_text, to_text
from fleet.evidence.ledger import Heads
from fleet.evidence.summary import AttemptSummary, Withdrawal
from fleet.store.open import TRUSTED, Connection


@dataclass(frozen=True)
class ContractRow:
    """One name of one execution id; ``body`` is what the id stands for, None when not landed."""

    name: str
    execution_id: str
    body: dict[str, Any] | None


@dataclass(frozen=True)
class CampaignRow:
    """One ledger chain. ``fault`` says why it does not check; ``about``: the execution ids that it
    names, None when its opening is lost."""

    campaign: str
    opened_at_s: float | None
    closed_at_s: float | None
    argv: tuple[str, ...]
    fault: str | None
    about: frozenset[str] | None


@dataclass(frozen=True)
class ControlRow:
    """A contract that was a control of a campaign."""

    campaign: str
    contract: str


def summaries(
    con: Connection,
    *,
    contract: str | None = None,
    execution_id: str | None = None,
    campaign: str | None = None,
) -> list[AttemptSummary]:
    """Attempts by campaign, slot and id; each argument narrows. ``execution_id`` is text."""
    wanted = {
        "contract": contract,
        "execution_id": None if execution_id is None else from_text(execution_id),
        "campaign": campaign,
    }
    given = {column: value for column, value in wanted.items() if value is not None}
    where = " AND ".join(f"{column} = ?" for column in given) or "true"
    found = con.execute(
        f"SELECT summary FROM attempts WHERE {where} ORDER BY campaign, slot, attempt",
        list(given.values()),
    ).fetchall()
    withdrawn = _withdrawn(con)
    told = (AttemptSummary.from_json(json.loads(text)) for (text,) in found)
    return [_with(s, withdrawn) for s in told]


def summaries_by_contract(
    con: Connection, execution_ids: Sequence[str]
) -> dict[str, list[AttemptSummary]]:
    """Execution id as text -> its :func:`summaries`, of several at once."""
    rows = con.execute(
        "SELECT execution_id, summary FROM attempts "
        "WHERE execution_id IN (SELECT unnest(?::BLOB[])) ORDER BY campaign, slot, attempt",
        [[from_text(each) for each in execution_ids]],
    ).fetchall()
    withdrawn = _withdrawn(con)
    found: dict[str, list[AttemptSummary]] = {each: [] for each in execution_ids}
    for execution_id, text in rows:
        told = AttemptSummary.from_json(json.loads(text))
        found[to_text(execution_id)].append(_with(told, withdrawn))
    return found


def attempts_of_contracts(con: Connection) -> dict[str, int]:
    """Execution id as text -> how many attempts it has."""
    rows = con.execute("SELECT execution_id, count(*) FROM attempts GROUP BY ALL").fetchall()
    return {to_text(execution_id): count for execution_id, count in rows}


def summary(con: Connection, attempt: str) -> AttemptSummary | None:
    """One attempt, None when the store does not have it."""
    row = con.execute("SELECT summary FROM attempts WHERE attempt = ?", [attempt]).fetchone()
    return _with(AttemptSummary.from_json(json.loads(row[0])), _withdrawn(con)) if row else None


def _with(summary: AttemptSummary, withdrawn: dict[str, tuple[Withdrawal, ...]]) -> AttemptSummary:
    found = withdrawn.get(summary.attempt)
    return summary if found is None else replace(summary, withdrawals=found)


def _withdrawn(con: Connection) -> dict[str, tuple[Withdrawal, ...]]:
    """Attempt -> every retraction of it, and whether it counts for whoever opened the store."""
    rows = con.execute(
        "SELECT attempt, body FROM retractions ORDER BY at_s, attempt, body"
    ).fetchall()
    if not rows:
        return {}
    (given,) = con.execute(f"SELECT getvariable('{TRUSTED}')").fetchall()[0]
    trusted: dict[str, str] = json.loads(given) if given else {}
    found: dict[str, tuple[Withdrawal, ...]] = {}
    for attempt, body in rows:
        told = json.loads(body)
        fault = told["fault"]
        if fault is None and told["by"] not in trusted:
            fault = "its key is not among the trusted ones"
        name = "" if fault else trusted[told["by"]]
        each = Withdrawal(attempt, told["reason"], told["by"], name, told["at"], fault)
        found[attempt] = (*found.get(attempt, ()), each)
    return found


@dataclass(frozen=True)
class MarginRow:
    """The smallest top-1 minus top-2 of one record, over its steps: in ulps and in logits."""

    arm: str
    sample_id: str
    ulps: int
    logits: float
    exact_tie: bool


def smallest_margins(con: Connection, execution_id: str, most: int) -> list[MarginRow]:
    """Records of complete certified replays that stand nearest to another token, nearest first."""
    found = con.execute(
        "SELECT m.arm, m.sample_id, min(m.smallest_ulps) AS ulps, min(m.smallest_margin) AS logits,"
        " bool_or(m.exact_tie) FROM margins m JOIN attempts t USING (attempt) "
        "WHERE purpose = 'certify' AND state = 'COMPLETE' AND execution_id = ?"
        " GROUP BY m.arm, m.sample_id ORDER BY ulps, logits, m.arm, m.sample_id LIMIT ?",
        [from_text(execution_id), most],
    ).fetchall()
    return [MarginRow(*row) for row in found]


def platforms(con: Connection) -> dict[str, dict[str, Any]]:
    """Class key as text -> ``{"format", "facts"}``."""
    found = con.execute("SELECT digest, facts FROM platforms ORDER BY digest").fetchall()
    return {to_text(digest): json.loads(facts) for digest, facts in found}


def units(con: Connection) -> dict[str, dict[str, Any]]:
    """Unit id -> what the process saw of it."""
    found = con.execute("SELECT id, facts FROM units ORDER BY id").fetchall()
    return {unit: json.loads(facts) for unit, facts in found}


_SHOWN = """
WITH told AS (
    SELECT unit, platform, accepted_at_s, attempt,
           coalesce(json_extract_string(summary, '$.stack'), '') = '' AS own
    FROM attempts
    WHERE unit <> '' AND platform IS NOT NULL AND accepted_at_s IS NOT NULL),
shown AS (
    SELECT * FROM told
    WHERE own OR unit NOT IN (SELECT unit FROM told WHERE own))
"""
"""Replays that were sent to a stack do not say what their unit is: one that is being tried out is
not there yet. Where a unit ran no others they are all that is known of it."""


def newest_platforms(con: Connection) -> dict[str, tuple[str, float]]:
    """Unit -> the class key it showed last, as text, and when that was accepted."""
    found = con.execute(
        _SHOWN + "SELECT unit, arg_max(platform, accepted_at_s), max(accepted_at_s) FROM shown "
        "GROUP BY unit ORDER BY unit"
    ).fetchall()
    return {unit: (to_text(platform), at_s) for unit, platform, at_s in found}


def shown_platforms(con: Connection) -> list[tuple[str, str, float]]:
    """(unit, class key as text, when accepted) wherever a unit showed another one than before."""
    found = con.execute(
        _SHOWN + "SELECT unit, platform, accepted_at_s FROM (SELECT unit, platform, accepted_at_s, "
        "lag(platform) OVER (PARTITION BY unit ORDER BY accepted_at_s, attempt) AS before "
        "FROM shown) "
        "WHERE before IS DISTINCT FROM platform ORDER BY unit, accepted_at_s"
    ).fetchall()
    return [(unit, to_text(platform), at_s) for unit, platform, at_s in found]


def units_of_platforms(con: Connection) -> dict[str, int]:
    """Class key as text -> how many units ever showed that platform."""
    found = con.execute(
        "SELECT platform, count(DISTINCT unit) FROM attempts WHERE platform IS NOT NULL "
        "AND unit <> '' GROUP BY platform"
    ).fetchall()
    return {to_text(platform): count for platform, count in found}


def contracts(con: Connection) -> list[ContractRow]:
    """Every name that was given to an execution id, by name."""
    found = con.execute(
        "SELECT name, execution_id, body FROM contracts ORDER BY name, execution_id"
    ).fetchall()
    return [ContractRow(n, to_text(e), json.loads(b) if b else None) for n, e, b in found]


def campaigns(con: Connection) -> list[CampaignRow]:
    """Campaigns in the order they were opened; those without an opening last."""
    found = con.execute(
        "SELECT id, opened_at_s, closed_at_s, argv, fault, about FROM campaigns "
        "ORDER BY opened_at_s NULLS LAST, id"
    ).fetchall()
    return [
        CampaignRow(
            name,
            opened,
            closed,
            tuple(json.loads(argv)) if argv else (),
            fault,
            frozenset(json.loads(about)) if about else None,
        )
        for name, opened, closed, argv, fault, about in found
    ]


def heads(con: Connection) -> Heads:
    """How far each chain of the landing went when it was last seen."""
    found = con.execute("SELECT chain, length, head FROM heads").fetchall()
    return {name: (length, head) for name, length, head in found}


def altered(con: Connection) -> list[tuple[str, str]]:
    """(attempt, what of it is not as it was written)."""
    return con.execute(
        "SELECT attempt, cause_text FROM attempts WHERE state = 'VOID' AND "
        "json_extract_string(summary, '$.cause.details.in_landing') = 'true' ORDER BY attempt"
    ).fetchall()


def controls(con: Connection, campaign: str | None = None) -> list[ControlRow]:
    """Controls of one campaign, or of all."""
    found = con.execute(
        "SELECT campaign, contract FROM controls WHERE campaign = coalesce(?, campaign) "
        "ORDER BY campaign, contract",
        [campaign],
    ).fetchall()
    return [ControlRow(*row) for row in found]
