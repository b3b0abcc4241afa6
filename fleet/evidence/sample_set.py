"""Law 1 on landed rows: every declared sample of every arm exactly once, each at its position.

Rows in dataset order, arm by arm, are checked a batch at a time, so that an attempt of a million
rows needs no memory; rows in any other order, and rows that are wrong, are looked at one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fleet.contract.sample_ids import SampleIds
from fleet.errors import EvidenceError
from fleet.evidence.distinct import Distinct
from fleet.evidence.rows import BATCH_ROWS, IDENTITY, identities


def check_sample_set(
    attempt: str, parts: Sequence[Path], ids: Sequence[str], arms: Sequence[str]
) -> bool:
    """Check the landed samples against the planned ones. Returns: are the rows in order.

    Args:
        attempt: whose rows these must be.
        parts: its Parquet files.
        ids: the planned samples in dataset order.
        arms: the planned arms.

    Raises:
        EvidenceError: saying which samples are missing, unknown, doubled or out of place.
    """
    return _whole_and_in_order(attempt, parts, ids, arms) or _one_by_one(attempt, parts, ids, arms)


def _whole_and_in_order(
    attempt: str, parts: Sequence[Path], ids: Sequence[str], arms: Sequence[str]
) -> bool:
    """Are the rows exactly the planned ones, arms sorted, each arm in dataset order.

    A row's place counts through all of that; places that rise by one from 0 to the last are all
    of them, each once.
    """
    planned, known = _column(ids), pa.array(sorted(arms), pa.string())
    distinct = Distinct()
    for sample in ids:
        distinct.add(sample.encode("utf-8"))
    if distinct.count() != len(ids):
        return False
    place = 0
    for part in parts:
        for batch in pq.ParquetFile(part).iter_batches(BATCH_ROWS, columns=list(IDENTITY)):
            expected = pa.array(range(place, place + len(batch)), pa.int64())
            if not _at(batch, expected, attempt, planned, known):
                return False
            place += len(batch)
    return place == len(ids) * len(arms) > 0


def _column(ids: Sequence[str]) -> pa.LargeStringArray:
    """The ids as Arrow; packed ones are not copied."""
    packed = ids if isinstance(ids, SampleIds) else SampleIds(ids)
    ends, text = pa.py_buffer(packed.ends), pa.py_buffer(packed.text)
    return pa.LargeStringArray.from_buffers(len(packed), ends, text)


def _at(
    batch: pa.RecordBatch, expected: pa.Array, attempt: str, planned: pa.Array, known: pa.Array
) -> bool:
    """Do the rows of this batch stand at the expected places."""
    names, arms, positions, samples = (batch.column(name) for name in IDENTITY[:4])
    if any(column.null_count for column in batch.columns):
        return False
    if pc.min(positions).as_py() < 0 or pc.max(positions).as_py() >= len(planned):
        return False
    arm = pc.index_in(arms, known).cast(pa.int64())
    places = pc.add(pc.multiply(arm, len(planned)), positions.cast(pa.int64()))
    mine = pc.equal(names, attempt)
    named = pc.equal(samples, planned.take(positions).cast(pa.string()))
    checks = (mine, named, pc.equal(places, expected))
    return all(pc.all(check, skip_nulls=False).as_py() is True for check in checks)


def _one_by_one(
    attempt: str, parts: Sequence[Path], ids: Sequence[str], arms: Sequence[str]
) -> bool:
    found = identities(parts)
    if any(value is None for row in found for value in row):
        raise EvidenceError("missing-evidence", "an identity column is NULL")
    strangers = {a for a, *_ in found if a != attempt}
    if strangers:
        raise EvidenceError("evidence-altered", f"rows of another attempt: {sorted(strangers)[:3]}")
    seen = Counter((arm, sample) for _, arm, _, sample, _ in found)
    wanted = {(arm, sample) for arm in arms for sample in ids}
    odd = {
        "missing": sorted(wanted - seen.keys()),
        "unknown": sorted(seen.keys() - wanted),
        "doubled": sorted(key for key, n in seen.items() if n > 1),
    }
    for word, keys in odd.items():
        if keys:
            shown = ", ".join(f"{arm}/{sample}" for arm, sample in keys[:5])
            raise EvidenceError("sample-set", f"{len(keys)} {word} of {len(wanted)}: {shown}")
    if not found:
        raise EvidenceError("missing-evidence", "no rows")
    position = {sample: i for i, sample in enumerate(ids)}
    wrong = [sample for _, _, at, sample, _ in found if position[sample] != at]
    if wrong:
        raise EvidenceError("sample-set", f"sample {wrong[0]} stands at another's position")
    return found == sorted(found, key=lambda f: (f[1], f[2]))
