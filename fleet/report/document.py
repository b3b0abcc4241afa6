"""The JSON documents of the command line, schema 1. Counts are records; no verdict, no rate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fleet.report.answers import CampaignAnswer, ControlAnswer
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
