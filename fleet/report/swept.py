"""What a sweep found, as one document: an entry per backend, sorted, and the fastest that PASSes.

Takes verdicts and figures from those who own them. Knows no cluster and no store. Keeps: a backend
that cannot run is no failure; it has its reason and no verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fleet.judge.verdict import Verdict
from fleet.report.measured import Measured

Entry = dict[str, Any]
VERDICTS = {"PASS": 0, "FAIL": 1, "VOID": 2}
CODES = {"FAIL": 1, "VOID": 3, "PASS": 0}


def entry_of(
    contract: str,
    backend: str,
    dtype: str | None,
    reason: str | None,
    verdict: Verdict | None = None,
    figures: Measured | None = None,
    screen: str | None = None,
    campaigns: Mapping[str, str | None] | None = None,
) -> Entry:
    """One backend.

    Args:
        contract: the reference that names the variant.
        backend: its name.
        dtype: what it runs in, None when it runs in none.
        reason: why it cannot run here, None when it can.
        verdict: None when it did not run.
        figures: of its replays.
        screen: what the screening saw, None when there was none.
        campaigns: what ran -> its campaign.
    """
    judged = verdict is not None and reason is None
    return {
        "contract": contract,
        "backend": backend,
        "dtype": dtype,
        "runnable": reason is None,
        "reason": reason,
        **_judged(verdict if judged else None),
        **_figures(figures or Measured()),
        "screen": screen,
        "campaigns": {"screen": None, "certify": None, "trace": None, **(campaigns or {})},
    }


def _judged(verdict: Verdict | None) -> Entry:
    if verdict is None:
        names = ("execution_id", "verdict", "verdict_reason", "grade", "culprit", "fault")
        return dict.fromkeys(names) | {"records": 0, "mismatches": 0}
    return {
        "execution_id": verdict.execution_id,
        "verdict": verdict.verdict,
        "verdict_reason": verdict.reason,
        "grade": verdict.attained_grade,
        "culprit": verdict.culprit,
        "fault": verdict.fault,
        "records": verdict.records,
        "mismatches": verdict.mismatches,
    }


def _figures(figures: Measured) -> Entry:
    body = asdict(figures)
    return {"measured_in": body.pop("source")} | body


def sweep_document(
    base: str, entries: Sequence[Entry], controls: Sequence[Entry], campaign: str | None
) -> dict[str, Any]:
    """``{schema, campaign, base, contracts, controls, fastest}``; contracts as the table has them.

    A sweep is several campaigns; ``campaign`` is that which certified, else that which screened.
    """
    ordered = sorted(entries, key=_place)
    return {
        "schema": 1,
        "campaign": campaign,
        "base": base,
        "contracts": ordered,
        "controls": list(controls),
        "fastest": fastest(ordered),
    }


def _place(entry: Entry) -> tuple[bool, int, float, str]:
    """Verdicts, the faster first; then what could not run, by name."""
    return (
        not entry["runnable"],
        VERDICTS.get(str(entry["verdict"]), 3),
        -(entry["tokens_per_s"] or 0.0),
        entry["backend"],
    )


def fastest(entries: Sequence[Entry]) -> dict[str, Any] | None:
    """The fastest entry that PASSes, and how many times as fast as the next one that does."""
    passed = [e for e in sorted(entries, key=_place) if e["verdict"] == "PASS"]
    if not passed:
        return None
    first, *others = passed
    next_speed = others[0]["tokens_per_s"] if others else None
    speed = first["tokens_per_s"]
    names = ("contract", "backend", "dtype", "tokens_per_s")
    times = speed / next_speed if speed and next_speed else None
    return {name: first[name] for name in names} | {"times_next": times}


def exit_code(document: Mapping[str, Any]) -> int:
    """FAIL over VOID over PASS of the variants that ran; 3 when none did, or a control did not
    behave."""
    codes = [CODES[e["verdict"]] for e in document["contracts"] if e["verdict"] is not None] or [3]
    if not all(control["behaves"] for control in document["controls"]):
        codes.append(3)
    return 1 if 1 in codes else max(codes)
