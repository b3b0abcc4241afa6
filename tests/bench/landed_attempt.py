"""The process of an attempt that lands honest rows without running anything.

    python -m tests.bench.landed_attempt CHANNEL

It answers as a replay does: its identity first, then, for the task and the token that it reads from
standard input, the digest of the manifest. Every digest of a row is that of the content beside it,
every row has an input and an output of its own, and two attempts at one task have equal rows.
Columns are made instead of records, so that a million rows take a minute.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fleet.contract.canonical import sha256, to_text
from fleet.evidence.digests import ids_bytes, token_sequence_digest
from fleet.evidence.landing import file_sha256, write_once
from fleet.evidence.manifest import Manifest, Part
from fleet.evidence.platform import PLATFORM_FORMAT
from fleet.evidence.records import SCHEMA, graded_fields, row_digests
from fleet.evidence.roots import ArmRoots, attempt_roots
from fleet.replay import freshness
from fleet.replay.gpu.watch import HostWatch, since_boot_s
from fleet.replay.probe import AtEntry, at_entry, read_platform, read_unit
from fleet.replay.task import ReplayTask

ROWS_PER_PART = 8192
PROMPT = "A question of some forty characters, or so?"
PROMPT_IDS, MASK = tuple(range(10, 22)), (1,) * 12
STEPS = 2

_SAME: dict[str, Any] = {
    "prompt_text": PROMPT,
    "prompt_sha256": sha256(PROMPT.encode()),
    "prompt_ids": PROMPT_IDS,
    "prompt_ids_sha256": sha256(ids_bytes(PROMPT_IDS)),
    "attention_mask_sha256": sha256(ids_bytes(MASK)),
    "settings_sha256": sha256(b"settings"),
    "rng_sha256": sha256(b"rng"),
    "generated_token_count": STEPS,
    "step_logits_sha256": [sha256(b"logits")] * STEPS,
    "raw_answer": "A",
    "parsed_answer": "A",
    "unparsed": False,
    "is_correct": True,
    "top_ids": [[0, 1]] * STEPS,
    "top_bits": [[2, 1]] * STEPS,
    "margin_logits": [0.5] * STEPS,
    "margin_ulps": [64] * STEPS,
    "nonfinite": 0,
    "stop": "length",
    "seconds": 0.01,
    "finished_at_s": 1.0,
}


def land_rows(task: ReplayTask) -> tuple[tuple[Part, ...], dict[str, dict[str, bytes]]]:
    """Write the task's rows in order, arm after arm: the parts, and each arm's roots."""
    num = len(task.sample_ids)
    roots = {arm: ArmRoots(arm, num, num) for arm in task.arms}
    places = [(arm, at) for arm in sorted(task.arms) for at in range(num)]
    parts = tuple(
        _land(task, number, places[start : start + ROWS_PER_PART], roots)
        for number, start in enumerate(range(0, len(places), ROWS_PER_PART))
    )
    return parts, {arm: found.digests() for arm, found in roots.items()}


def _land(
    task: ReplayTask, number: int, places: Sequence[tuple[str, int]], roots: dict[str, ArmRoots]
) -> Part:
    path = task.folder / f"part-{number:05d}.parquet"
    own = []
    for arm, at in places:
        row = _SAME | _differing(task, arm, at)
        graded = graded_fields(row)
        roots[arm].add(row, graded)
        own.append({name: row[name] for name in _DIFFER} | row_digests(row, graded))
    columns = [
        pa.array([row[field.name] for row in own], field.type)
        if field.name in own[0]
        else pa.repeat(pa.scalar(_SAME[field.name], field.type), len(own))
        for field in SCHEMA
    ]
    pq.write_table(pa.Table.from_arrays(columns, schema=SCHEMA), path, compression="zstd")
    return Part(path.name, len(own), path.stat().st_size, file_sha256(path))


_DIFFER = (
    "attempt",
    "arm",
    "position",
    "sample_id",
    "raw_record_sha256",
    "batch_ordinal",
    "generated_token_ids",
    "full_sequence_sha256",
)


def _differing(task: ReplayTask, arm: str, at: int) -> dict[str, Any]:
    """The fields in which a row differs from the others."""
    sample = task.sample_ids[at]
    generated = (at, len(arm))
    return {
        "attempt": task.attempt,
        "arm": arm,
        "position": at,
        "sample_id": sample,
        "raw_record_sha256": hashlib.sha256(f"{arm} {sample}".encode()).digest(),
        "batch_ordinal": at,
        "generated_token_ids": generated,
        "full_sequence_sha256": token_sequence_digest(PROMPT_IDS, generated),
    }


def close(
    task: ReplayTask,
    entry: AtEntry,
    parts: tuple[Part, ...],
    by_arm: dict[str, dict[str, bytes]],
    observed: dict[str, Any],
) -> str:
    """Write the manifest; its digest as text."""
    facts = read_platform(task.attempt, entry.environment, {})
    weights = to_text(sha256(b"weights"))
    manifest = Manifest(
        attempt=task.attempt,
        campaign=task.campaign,
        slot=task.slot,
        purpose=task.purpose,
        contract=task.contract_name,
        execution_id=task.execution_id,
        state="COMPLETE",
        cause=None,
        num_samples=len(task.sample_ids),
        arms=task.arms,
        parts=parts,
        roots=_text(attempt_roots(by_arm)),
        arm_roots={arm: _text(roots) for arm, roots in by_arm.items()},
        stages={"checkpoint": weights, "post_init_weights": weights, "end_weights": weights},
        platform={"format": PLATFORM_FORMAT, "facts": facts.facts},
        platform_sha256=to_text(facts.digest),
        unit=dict(read_unit(task.node_label)),
        process=entry.process,
        freshness=observed | {"device_first_used_after_s": since_boot_s()},
        effective={},
        effective_end={},
        census={},
        envelope={"prompt_tokens": [12, 12], "context_tokens": 14, "batch_size": 1},
        logs={},
    )
    write_once(task.folder / "manifest.json", manifest.to_bytes())
    return to_text(manifest.digest)


def _text(roots: dict[str, bytes]) -> dict[str, str]:
    return {grade: to_text(root) for grade, root in roots.items()}


def main() -> None:
    """Identity, task, token, digest."""
    entry = at_entry()
    with os.fdopen(int(sys.argv[1]), "w") as channel:
        print(json.dumps(asdict(entry.process)), file=channel, flush=True)
        task = ReplayTask.from_json(json.loads(sys.stdin.readline()))
        observed = freshness.at_entry(task, entry, {})
        token = sys.stdin.readline().strip()
        observed |= freshness.before_loading(task, HostWatch(), token)
        task.folder.mkdir(parents=True, exist_ok=True)
        digest = close(task, entry, *land_rows(task), observed)
        print(json.dumps({"digest": digest}), file=channel, flush=True)


if __name__ == "__main__":
    main()
