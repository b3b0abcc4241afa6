"""What a verdict is called outside: lines, state over time, exit code, a control's test.

Reads verdicts and the time it is handed; knows no evidence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from fleet.contract.model import Expect
from fleet.judge.verdict import Verdict

CLOCK_SKEW_S = 300.0
"""How far the clocks of two machines may be apart."""

DAY_S = 86400.0
CURRENT = "current"
BITWISE = ("logits", "modules")


def verdict_lines(verdict: Verdict) -> list[str]:
    """``CURRENT_METHOD_TOKENS: PASS`` and its like.

    TOKENS always, because token hashes are always there. BITWISE speaks of logits or modules: shown
    when they are required, or when they hold although less was asked. A lower required grade has
    its own lines. CURRENT_METHOD is the arm of that name, ALL_ARMS every arm.
    """
    lines = []
    for label, grade in _grades(verdict):
        equal = " (tokens-equal)" if _tokens_only(verdict, grade) else ""
        if CURRENT in verdict.arms:
            lines.append(f"CURRENT_METHOD_{label}: {_word(verdict, (CURRENT,), grade)}{equal}")
        lines.append(f"ALL_ARMS_{label}: {_word(verdict, verdict.arms, grade)}{equal}")
    return lines


def _grades(verdict: Verdict) -> list[tuple[str, str]]:
    required = verdict.required_grade
    grades = [] if required in ("tokens", *BITWISE) else [(required.upper(), required)]
    grades.append(("TOKENS", "tokens"))
    if required in BITWISE:
        grades.append(("BITWISE", required))
    elif verdict.attained_grade in BITWISE:
        grades.append(("BITWISE", verdict.attained_grade))
    return grades


def _tokens_only(verdict: Verdict, grade: str) -> bool:
    passed = verdict.verdict == "PASS" and verdict.attained_grade == "tokens"
    return passed and grade == "tokens"


def _word(verdict: Verdict, arms: Iterable[str], grade: str) -> str:
    if verdict.verdict == "VOID":
        return "VOID"
    cells = [verdict.arms[arm].get(grade) for arm in arms]
    words = [cell["verdict"] if cell else "VOID" for cell in cells] or ["VOID"]
    return next((word for word in ("FAIL", "VOID") if word in words), "PASS")


def status_of(
    verdict: Verdict | None,
    accepted_at_s: float | None,
    valid_days: int,
    now_s: float,
    previous: bool,
) -> str:
    """PASS, FAIL, VOID, STALE, REGRESSED or UNTESTED.

    Args:
        verdict: None, or one without a certification attempt, is UNTESTED.
        accepted_at_s: when the newest evidence behind a PASS was accepted (the ledger's time).
        valid_days: how long a PASS holds.
        now_s: the time asked about, in the same clock.
        previous: this execution id had a PASS on this platform before.
    """
    if verdict is None:
        return "UNTESTED"
    if verdict.verdict == "FAIL":
        return "REGRESSED" if previous else "FAIL"
    if not any(attempt["purpose"] == "certify" for attempt in verdict.attempts):
        return "UNTESTED"
    if verdict.verdict != "PASS":
        return verdict.verdict
    if accepted_at_s is None:
        return "STALE"
    # Evidence from the future proves a wrong clock, so its age cannot be told.
    fits = -CLOCK_SKEW_S <= now_s - accepted_at_s <= valid_days * DAY_S
    return "PASS" if fits else "STALE"


def exit_code(verdicts: Iterable[Verdict], behaved: Collection[str] = ()) -> int:
    """0 PASS, 1 FAIL, 3 anything that is neither; FAIL > VOID > PASS; nothing at all is 3.

    Args:
        verdicts: those asked for.
        behaved: contracts that are controls and did as expected: each counts as PASS.
    """
    codes = [0 if v.contract in behaved else _code(v) for v in verdicts] or [3]
    return 1 if 1 in codes else max(codes)


def _code(verdict: Verdict) -> int:
    if verdict.verdict == "FAIL":
        return 1
    return 0 if (verdict.verdict, verdict.state) == ("PASS", "PASS") else 3


def check_expectation(verdict: Verdict, expect: Expect) -> list[str]:
    """Where a control did not do what its contract expects; keys left out are not asked."""
    shown: dict[str, object] = {
        "verdict": verdict.verdict,
        "layer": verdict.layer,
        "first_broken_grade": verdict.first_broken_grade,
        "culprit": verdict.culprit["path"] if verdict.culprit else None,
        "fault": verdict.fault,
    }
    return [
        f"{key}: expected {wanted!r}, got {shown[key]!r}"
        for key, wanted in expect.model_dump().items()
        if wanted is not None and shown[key] != wanted
    ]
