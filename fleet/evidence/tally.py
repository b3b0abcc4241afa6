"""One pass over an attempt's rows: roots, column digests, counts and power.

The worker closes its manifest with it and the store re-derives the same from landed bytes, so the
two can be held against each other. Knows no manifest, no ledger and no verdict.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleet.contract.canonical import sha256, to_text
from fleet.errors import EvidenceError
from fleet.evidence.digests import ids_bytes, token_sequence_digest
from fleet.evidence.records import row_digests
from fleet.evidence.roots import ArmRoots, attempt_roots
from fleet.evidence.rows import Identity, rows
from fleet.evidence.summary import STAGE_COLUMNS, ArmSummary, Power

Row = dict[str, Any]


@dataclass(frozen=True)
class Tally:
    """What all rows of one attempt say; digests are ``sha256:<hex>`` text."""

    arms: dict[str, ArmSummary]
    arm_roots: dict[str, dict[str, str]]
    roots: dict[str, str]
    power: Power


def tally_rows(
    parts: Sequence[Path], arms: Sequence[str], found: Sequence[Identity], in_order: bool
) -> Tally:
    """Check every row against itself and tally all of them.

    Args:
        parts: Parquet files of one attempt.
        arms: names of the declared arms.
        found: the identities of all rows (a first pass), each sample once per arm.
        in_order: the files already hold each arm in dataset order.

    Raises:
        EvidenceError: on a NULL, or a row whose counts, ids and digests disagree.
    """
    tallies = _tallies(found, arms)
    power = _PowerTally()
    for row in rows(parts, in_order):
        _check_row(row)
        _count(tallies[row["arm"]], row)
        power.add(row)
    by_arm = {arm: t.roots.digests() for arm, t in tallies.items()}
    summaries = {arm: _arm_summary(t, by_arm[arm]) for arm, t in tallies.items()}
    return Tally(
        arms=summaries,
        arm_roots={arm: summary.roots for arm, summary in summaries.items()},
        roots={grade: to_text(root) for grade, root in attempt_roots(by_arm).items()},
        power=power.power(tallies.values()),
    )


@dataclass
class _ArmTally:
    """Everything that one pass over an arm's rows collects."""

    roots: ArmRoots
    columns: dict[str, Any]
    rows: int = 0
    correct: int = 0
    unparsed: int = 0
    truncated: int = 0


@dataclass
class _PowerTally:
    """The same over all arms, for power."""

    inputs: Counter[bytes] = field(default_factory=Counter)
    outputs: Counter[bytes] = field(default_factory=Counter)
    decode_steps: int = 0
    ended_at_step_1: int = 0
    nonfinite: int = 0
    exact_ties: int = 0
    smallest_margin: float | None = None

    def add(self, row: Row) -> None:
        self.inputs[row["input_sha256"]] += 1
        self.outputs[ids_bytes(row["generated_token_ids"])] += 1
        self.decode_steps += row["generated_token_count"]
        self.ended_at_step_1 += row["generated_token_count"] == 1 and row["stop"] == "eos"
        self.nonfinite += row["nonfinite"]
        self.exact_ties += sum(1 for ulps in row["margin_ulps"] if ulps == 0)
        finite = [m for m in row["margin_logits"] if m == m]
        if finite:
            smallest = min(finite)
            known = self.smallest_margin
            self.smallest_margin = smallest if known is None else min(known, smallest)

    def power(self, arms: Iterable[_ArmTally]) -> Power:
        arms = list(arms)
        total = sum(arm.rows for arm in arms)
        return Power(
            records=total,
            distinct_inputs=len(self.inputs),
            distinct_outputs=len(self.outputs),
            duplicates=total - len(self.inputs),
            decode_steps=self.decode_steps,
            ended_at_step_1=self.ended_at_step_1,
            unparsed=sum(arm.unparsed for arm in arms),
            truncated=sum(arm.truncated for arm in arms),
            nonfinite=self.nonfinite,
            exact_ties=self.exact_ties,
            smallest_margin=self.smallest_margin,
        )


def _tallies(found: Sequence[Identity], arms: Sequence[str]) -> dict[str, _ArmTally]:
    total = Counter(arm for _, arm, *_ in found)
    correct = Counter(arm for _, arm, _, _, is_correct in found if is_correct)
    return {
        arm: _ArmTally(
            ArmRoots(arm, total[arm], correct[arm]),
            {name: hashlib.sha256() for name in STAGE_COLUMNS},
        )
        for arm in arms
    }


def _check_row(row: Row) -> None:
    """One row says one thing: counts, ids and digests of the row agree with each other."""
    where = f"{row['arm']}/{row['sample_id']}"
    steps = row["generated_token_count"]
    counted = (len(row["generated_token_ids"]), len(row["step_logits_sha256"]))
    if counted != (steps, steps):
        raise EvidenceError(
            "missing-evidence", f"{where}: {steps} steps, (ids, logits digests) {counted}"
        )
    if steps == 0:
        raise EvidenceError("missing-evidence", f"{where}: no decode step")
    sequence = token_sequence_digest(row["prompt_ids"], row["generated_token_ids"])
    derived = row_digests(row) | {
        "prompt_ids_sha256": sha256(ids_bytes(row["prompt_ids"])),
        "prompt_sha256": sha256(row["prompt_text"].encode("utf-8")),
        "full_sequence_sha256": sequence,
    }
    for name, digest in derived.items():
        if row[name] != digest:
            raise EvidenceError("evidence-altered", f"{where}: {name} does not match the row")


def _count(tally: _ArmTally, row: Row) -> None:
    tally.roots.add(row)
    for name in STAGE_COLUMNS:
        tally.columns[name].update(row[name])
    tally.rows += 1
    tally.correct += row["is_correct"]
    tally.unparsed += row["unparsed"]
    tally.truncated += row["stop"] == "length"


def _arm_summary(tally: _ArmTally, roots: dict[str, bytes]) -> ArmSummary:
    return ArmSummary(
        rows=tally.rows,
        correct=tally.correct,
        unparsed=tally.unparsed,
        truncated=tally.truncated,
        roots={grade: to_text(root) for grade, root in roots.items()},
        columns={name: to_text(h.digest()) for name, h in tally.columns.items()},
    )
