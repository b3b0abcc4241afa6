"""The JSON documents of the command line, schema 1. Counts are records; no verdict, no rate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fleet.report.answers import CampaignAnswer, ControlAnswer
from fleet.report.screen import Cells, utc
from fleet.report.status import StatusRow

SCHEMA = 1


def campaign_document(answer: CampaignAnswer) -> dict[str, Any]:
    """``{schema, campaign, contracts, controls}``; contracts exactly as named, in that order, with
    one entry for each claim of theirs."""
    return {
        "schema": SCHEMA,
        "campaign": answer.campaign,
        "contracts": [verdict.to_json() for verdict in answer.contracts],
        "controls": [control_document(control) for control in answer.controls],
    }


def control_document(control: ControlAnswer) -> dict[str, Any]:
    """A control's verdict, and whether it did what it must."""
    return control.verdict.to_json() | {
        "behaves": not control.mismatches,
        "mismatches": list(control.mismatches),
    }


def status_document(rows: Sequence[StatusRow]) -> dict[str, Any]:
    """One entry per contract, claim and platform."""
    return {
        "schema": SCHEMA,
        "campaign": None,
        "contracts": [row.to_json() for row in rows],
        "controls": [],
    }


STATUS_COLUMNS = (
    "contract", "vary", "execution_id", "platform", "platform_label", "state", "verdict", "grade",
    "scope", "traced", "units_tested", "units_known", "n", "record_bound", "process_bound",
    "age_s", "accepted_at", "expires_at", "last_regression", "predecessor", "reason",
)  # fmt: skip
"""Of ``status --csv`` and of the view ``verdicts``; instants in UTC."""


def status_cells(rows: Sequence[StatusRow]) -> Cells:
    """One line per contract, claim and platform."""
    return STATUS_COLUMNS, (_cells(row) for row in rows)


def _cells(row: StatusRow) -> list[Any]:
    v = row.verdict
    bounds = v.bounds if v else {}
    at_s = v.accepted_at_s if v else None
    return [
        row.contract, ",".join(row.vary) or "none", row.execution_id or None, row.platform or None,
        row.platform_label or None, row.word, v.verdict if v else None,
        v.attained_grade if v else None, v.scope if v else None, v.traced if v else None,
        row.units_tested, row.units_known, v.records if v else 0, bounds.get("record"),
        bounds.get("process"), row.age_s, _utc(at_s), _utc(row.expires_at_s),
        row.regressed.since if row.regressed else None,
        row.predecessor.platform if row.predecessor else None,
        row.note or (v.reason if v else None),
    ]  # fmt: skip


def _utc(at_s: float | None) -> str | None:
    return None if at_s is None else utc(at_s)
