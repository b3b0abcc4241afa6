"""A decided verdict, written out: the word with its reason, counts, bounds, power and warnings.

Decides nothing. Keeps law 9 (two bounds, only for a PASS) and law 10 (what is not localised is
called so, and no cause is invented).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fleet.contract.vary import in_words
from fleet.evidence.summary import AttemptSummary
from fleet.judge import account
from fleet.judge.bounds import process_bound, record_bound
from fleet.judge.findings import Compared, Findings
from fleet.judge.power import power_of
from fleet.judge.sets import is_good, occasion
from fleet.judge.stages import BY_NAME, layer_words, localise
from fleet.judge.verdict import Verdict, Word

MAX_KEYS = 8


@dataclass(frozen=True)
class Outcome:
    """The word, the campaign it rests on, and the cause of a VOID."""

    word: Word
    campaign: str | None = None
    code: str | None = None
    text: str = ""


def decided(
    found: Findings, outcome: Outcome, contract: str, siblings: Sequence[AttemptSummary]
) -> Verdict:
    """The whole :class:`Verdict`."""
    word = outcome.word
    layer, layers = localise(found.stages) if word == "FAIL" else (None, ())
    void = word == "VOID"
    first = found.attempts[0]
    power = _power(found, word)
    return Verdict(
        contract=contract,
        execution_id=first.execution_id,
        platform=first.platform,
        verdict=word,
        state=word,
        attained_grade=None if void else found.attained,
        required_grade=found.require.grade,
        scope=_scope(found, word),
        vary=first.vary,
        traced=first.traced,
        layer=layer,
        layers=layers,
        code=outcome.code,
        reason=_reason(found, outcome, power, layer_words(layer, layers)),
        arms=account.arms_table(found, word),
        records=0 if void else account.records(found),
        mismatches=account.mismatches(found) if word == "FAIL" else 0,
        bounds=_bounds(found, word),
        power=power,
        envelope=_envelope(found),
        attempts=account.attempts(
            [*found.attempts, *siblings], found.require, found.campaign, _against(found)
        ),
        roots=account.roots(found),
        first_difference=account.first_difference(found) if word == "FAIL" else None,
        differing_samples=account.differing_samples(found) if word == "FAIL" else (),
        first_broken_grade=None if void else next(iter(found.broken), None),
        stages=found.stages if word == "FAIL" else {},
        units=account.units(found),
        warnings=_warnings(found, word),
        campaign=outcome.campaign or found.campaign,
        accepted_at_s=_accepted_at_s(found, outcome),
    )


def _envelope(found: Findings) -> dict[str, Any]:
    """That of a good replay; of varied replays with every batch size that any of them ran."""
    if not found.good:
        return {}
    sizes = {n for s in found.good for n in s.envelope.get("decode_batch_sizes", ())}
    varied = "batch" in found.good[0].vary
    return found.good[0].envelope | ({"decode_batch_sizes": sorted(sizes)} if varied else {})


def _against(found: Findings) -> set[str]:
    """Attempts of any campaign whose rows count."""
    return {attempt for c in found.counting for attempt in c.comparison.attempts}


def _power(found: Findings, word: Word) -> dict[str, Any] | None:
    mine = [s for s in found.attempts if found.campaign in (None, occasion(s, found.require))]
    started = sum(1 for s in mine if s.purpose == "certify")
    used = [s for s in mine if is_good(s, found.require)]
    return power_of(used, started, with_rates=word != "VOID")


def _scope(found: Findings, word: Word) -> str:
    """Measured: one unit, or several that all agree. A per-unit PASS claims the unit only."""
    num_units = len({s.unit for s in found.good})
    if num_units == 0:
        return found.require.scope
    per_unit = word == "PASS" and found.classes > 1
    return "same-unit" if num_units == 1 or per_unit else "same-class"


def _bounds(found: Findings, word: Word) -> dict[str, Any]:
    """Both bounds are about equal replays, so only a PASS has them."""
    if word != "PASS":
        return {"record": None, "process": None, "words": "no bound without a PASS"}
    power = found.good[0].power
    assert power is not None
    replays = _equal_replays(found)
    process = process_bound(replays)
    words = "bounded" if process is not None else "not bounded (fewer than 6 replays)"
    return {
        "record": record_bound(power.distinct_inputs),
        "process": process,
        "n_eff": power.distinct_inputs,
        "replays": replays,
        "words": f"per process: {words}",
    }


def _equal_replays(found: Findings) -> int:
    root = found.good[0].roots[found.require.grade]
    return sum(1 for s in found.good if s.roots[found.require.grade] == root)


def _accepted_at_s(found: Findings, outcome: Outcome) -> float | None:
    campaign = outcome.campaign or found.campaign
    of = [s for s in found.good if campaign in (None, occasion(s, found.require))]
    times = [s.accepted_at_s for s in of]
    return max((t for t in times if t is not None), default=None)


def _reason(found: Findings, outcome: Outcome, power: dict[str, Any] | None, layer: str) -> str:
    if outcome.word == "VOID":
        return f"VOID({outcome.code}): {outcome.text}"
    if outcome.word == "FAIL":
        return f"FAIL({layer}): {_fail_words(found)}"
    low = power is not None and power["low"]
    used = power["attempts_used"] if power else 0
    claim = f"{account.records(found)} records of {used} fresh replays agree at the grade"
    why = f" ({'; '.join(power['reasons'])})" if power and low else ""
    bits = "" if found.attained in ("logits", "modules") else f" ({found.attained}-equal)"
    vary = found.attempts[0].vary
    kind = f" under {in_words(vary)}" if vary else ", exact repeat"
    head = "PASS, low power" if low else "PASS"
    return f"{head}{why}: {claim} {found.attained}{bits}{kind}"


def _fail_words(found: Findings) -> str:
    parts = []
    if found.first_stage is not None:
        parts.append(BY_NAME[found.first_stage].words)
    count = account.mismatches(found)
    if count:
        parts.append(f"{count} of {account.records(found)} records differ")
    first = account.first_difference(found)
    if first is not None and first.get("sample_id") is not None:
        parts.append(f"first: sample {first['sample_id']}, arm {first['arm']}, {first['words']}")
    if found.settings_may_explain:
        parts.append("settings differ too, a candidate cause")
    if not found.counted_kinds and found.differing_roots:
        parts.append(f"roots differ at {', '.join(found.differing_roots)}")
    parts.extend(_where(found))
    return "; ".join(parts)


def _where(found: Findings) -> list[str]:
    words = []
    for unit in account.units(found):
        if unit["classes"] > 1:
            words.append(f"{unit['classes']} classes on unit {unit['unit']}")
    if found.classes > 1 and not words:
        words.append(_classes_words(found))
    words.extend(_outside(c) for c in found.counting if not c.both_good)
    return words


def _classes_words(found: Findings) -> str:
    return f"{found.classes} classes over {len({s.unit for s in found.good})} units"


def _outside(c: Compared) -> str:
    """Rows of an attempt that could not help a PASS, and that differ."""
    cause = f": {c.b.cause.code}" if c.b.cause else ""
    state = c.b.state if c.b.purpose == "certify" else f"{c.b.purpose} {c.b.state}"
    return f"rows of attempt {c.b.attempt} ({state}{cause}) differ from attempt {c.a.attempt}"


def _warnings(found: Findings, word: Word) -> tuple[str, ...]:
    warnings = [w for s in found.attempts for w in s.warnings]
    above = [g for g in found.differing_roots if g not in found.grades]
    if above and word == "PASS":
        warnings.append(f"{above[0]} differ above the required grade: {found.attained}-equal only")
    if found.unwatched and word == "PASS":
        warnings.append(f"the traces do not carry the grade modules: {found.unwatched}")
    if found.settings_differ:
        warnings.append(_settings_words(found))
    if found.classes > 1 and word == "PASS":
        warnings.append(f"{_classes_words(found)}: each unit agrees with itself only")
    warnings.extend(
        f"attempt {c.b.attempt} on another unit differs from attempt {c.a.attempt}"
        for c in found.compared
        if not c.both_good and c not in found.counting and any(c.kinds(found.grades))
    )
    return tuple(dict.fromkeys(warnings))


def _settings_words(found: Findings) -> str:
    """Names the keys that differ, when the summaries hold them."""
    tables = [s.effective for s in found.good if s.effective]
    keys = sorted({key for table in tables for key in table})
    missing = object()
    odd = [k for k in keys if any(t.get(k, missing) != tables[0].get(k, missing) for t in tables)]
    named = f": {', '.join(odd[:MAX_KEYS])}" if odd else ""
    return f"undeclared effective settings differ between replays{named}"
