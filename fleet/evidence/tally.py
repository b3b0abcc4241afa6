"""One pass over an attempt's rows: roots, column digests, counts and power.

The worker closes its manifest with it and the store re-derives the same from landed bytes, so the
two can be held against each other. Knows no manifest, no ledger and no verdict.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleet.contract.canonical import sha256, to_text
from fleet.errors import EvidenceError
from fleet.evidence.digests import ids_bytes, token_sequence_digest
from fleet.evidence.distinct import Distinct
from fleet.evidence.images import DIGEST_COLUMNS, TEXT_COLUMN, image_digests
from fleet.evidence.modules import Batch
from fleet.evidence.records import graded_fields, length_prefixed, row_digests
from fleet.evidence.roots import ROOTED, TRACED, ArmRoots, attempt_roots
from fleet.evidence.rows import arm_counts, derivable_rows
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
    parts: Sequence[Path],
    arms: Sequence[str],
    in_order: bool,
    modules: Mapping[Batch, bytes] | None = None,
) -> Tally:
    """Check every row against itself and tally all of them.

    Args:
        parts: Parquet files of one attempt, with each sample once per arm.
        arms: names of the declared arms.
        in_order: the files already hold each arm in dataset order.
        modules: digest of every batch's calls, where the attempt was traced throughout.

    Raises:
        EvidenceError: on a NULL, a row whose counts, ids and digests disagree, or a batch without
            a traced call.
    """
    tallies = _tallies(arm_counts(parts), arms, ROOTED if modules is None else TRACED)
    power = _PowerTally()
    for row in derivable_rows(parts, in_order):
        graded = graded_fields(row)
        _check_row(row, graded)
        if modules is not None:
            graded["modules"] = _calls_of(row, modules)
        _count(tallies[row["arm"]], row, graded)
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
    images: int = 0


@dataclass
class _PowerTally:
    """The same over all arms, for power."""

    inputs: Distinct = field(default_factory=Distinct)
    outputs: Distinct = field(default_factory=Distinct)
    decode_steps: int = 0
    ended_at_step_1: int = 0
    nonfinite: int = 0
    exact_ties: int = 0
    smallest_margin: float = math.inf

    def add(self, row: Row) -> None:
        self.inputs.add(row["prompt_ids_sha256"] + row.get("image_processed_sha256", b""))
        self.outputs.add(ids_bytes(row["generated_token_ids"]))
        self.decode_steps += row["generated_token_count"]
        self.ended_at_step_1 += row["generated_token_count"] == 1 and row["stop"] == "eos"
        self.nonfinite += row["nonfinite"]
        self.exact_ties += row["margin_ulps"].count(0)
        for margin in row["margin_logits"]:
            if margin < self.smallest_margin:  # never true of a NaN
                self.smallest_margin = margin

    def power(self, arms: Iterable[_ArmTally]) -> Power:
        arms = list(arms)
        total = sum(arm.rows for arm in arms)
        inputs = self.inputs.count()
        return Power(
            records=total,
            distinct_inputs=inputs,
            distinct_outputs=self.outputs.count(),
            duplicates=total - inputs,
            decode_steps=self.decode_steps,
            ended_at_step_1=self.ended_at_step_1,
            unparsed=sum(arm.unparsed for arm in arms),
            truncated=sum(arm.truncated for arm in arms),
            nonfinite=self.nonfinite,
            exact_ties=self.exact_ties,
            smallest_margin=None if self.smallest_margin == math.inf else self.smallest_margin,
        )


def _calls_of(row: Row, modules: Mapping[Batch, bytes]) -> bytes:
    """A row's own field at the grade *modules*."""
    digest = modules.get((row["arm"], row["batch_ordinal"]))
    if digest is None:
        raise EvidenceError("missing-evidence", f"{_where(row)}: no traced call")
    return length_prefixed([digest])


def _tallies(
    counts: Mapping[str, tuple[int, int]], arms: Sequence[str], grades: tuple[str, ...]
) -> dict[str, _ArmTally]:
    return {
        arm: _ArmTally(
            ArmRoots(arm, *counts.get(arm, (0, 0)), grades),
            {name: hashlib.sha256() for name in (*STAGE_COLUMNS, *DIGEST_COLUMNS)},
        )
        for arm in arms
    }


def _check_row(row: Row, graded: dict[str, bytes]) -> None:
    """One row says one thing: counts, ids and digests of the row agree with each other."""
    steps = row["generated_token_count"]
    counted = (len(row["generated_token_ids"]) // 8, len(row["step_logits_sha256"]) // 32)
    if counted != (steps, steps):
        raise EvidenceError(
            "missing-evidence", f"{_where(row)}: {steps} steps, (ids, logits digests) {counted}"
        )
    if steps == 0:
        raise EvidenceError("missing-evidence", f"{_where(row)}: no decode step")
    sequence = token_sequence_digest(row["prompt_ids"], row["generated_token_ids"])
    derived = row_digests(row, graded) | {
        "prompt_ids_sha256": sha256(ids_bytes(row["prompt_ids"])),
        "prompt_sha256": sha256(row["prompt_text"].encode("utf-8")),
        "full_sequence_sha256": sequence,
    }
    if TEXT_COLUMN in row:
        derived |= _image_digests(row)
    for name, digest in derived.items():
        if row[name] != digest:
            raise EvidenceError("evidence-altered", f"{_where(row)}: {name} does not match the row")


def _image_digests(row: Row) -> dict[str, bytes]:
    try:
        return image_digests(row[TEXT_COLUMN])
    except ValueError as error:
        raise EvidenceError("evidence-altered", f"{_where(row)}: {TEXT_COLUMN}: {error}") from error


def _where(row: Row) -> str:
    return f"{row['arm']}/{row['sample_id']}"


def _count(tally: _ArmTally, row: Row, graded: dict[str, bytes]) -> None:
    tally.roots.add(row, graded)
    for name in (*STAGE_COLUMNS, *(DIGEST_COLUMNS if TEXT_COLUMN in row else ())):
        tally.columns[name].update(row[name])
    tally.images += TEXT_COLUMN in row
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
        columns={
            name: to_text(h.digest())
            for name, h in tally.columns.items()
            if tally.images or name not in DIGEST_COLUMNS
        },
    )
