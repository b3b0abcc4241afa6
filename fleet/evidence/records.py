"""One row per sample and arm: what the process saw, and its Arrow schema.

Format 1 is a row of text alone; format 2 has the columns of its images beside them.
Knows no engine. Keeps law 1: no field of a grade may be NULL; an answer that the parser could not
read is the typed value UNPARSED (``unparsed`` true, ``parsed_answer`` empty), never NULL.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import pyarrow as pa

from fleet.evidence.digests import ids_bytes
from fleet.evidence.images import DIGEST_COLUMNS, TEXT_COLUMN, ImageEvidence

RECORD_FORMAT, IMAGES_FORMAT = 1, 2
DIGEST = pa.binary(32)


def _column(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


def _list(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("item", kind, nullable=False))


SCHEMA = pa.schema(
    [
        # identity
        _column("attempt", pa.string()),
        _column("arm", pa.string()),
        _column("position", pa.int32()),
        _column("sample_id", pa.string()),
        # inputs, stage by stage
        _column("raw_record_sha256", DIGEST),
        _column("prompt_text", pa.string()),
        _column("prompt_sha256", DIGEST),
        _column("prompt_ids", _list(pa.int32())),
        _column("prompt_ids_sha256", DIGEST),
        _column("attention_mask_sha256", DIGEST),
        # what was in force for this sample
        _column("settings_sha256", DIGEST),
        _column("rng_sha256", DIGEST),
        _column("batch_ordinal", pa.int32()),
        # outputs
        _column("generated_token_ids", _list(pa.int32())),
        _column("generated_token_count", pa.int32()),
        _column("full_sequence_sha256", DIGEST),
        _column("step_logits_sha256", _list(DIGEST)),
        _column("raw_answer", pa.string()),
        _column("parsed_answer", pa.string()),
        _column("unparsed", pa.bool_()),
        _column("is_correct", pa.bool_()),
        # row digests of the fields above, for comparisons that need no wide row
        _column("input_sha256", DIGEST),
        _column("prediction_sha256", DIGEST),
        _column("tokens_sha256", DIGEST),
        _column("logits_sha256", DIGEST),
        # diagnostics: in no root
        _column("top_ids", _list(_list(pa.int32()))),
        _column("top_bits", _list(_list(pa.int64()))),
        _column("margin_logits", _list(pa.float64())),
        _column("margin_ulps", _list(pa.int64())),
        _column("nonfinite", pa.int64()),
        _column("stop", pa.string()),
        # volatile: recorded, never compared
        _column("seconds", pa.float64()),
        _column("finished_at_s", pa.float64()),
    ],
    metadata={"fleet.record_format": str(RECORD_FORMAT)},
)
"""``top_*`` and ``margin_*`` have one entry per generated step (top-8 ids and raw logit bits,
top-1 minus top-2 in logits and in units in the last place; 0 ulps is an exact tie);
``nonfinite`` counts NaN and infinities over all steps; ``stop`` is ``eos`` or ``length``."""


IMAGES_SCHEMA = pa.schema(
    [
        *SCHEMA,
        *(_column(name, DIGEST) for name in DIGEST_COLUMNS),
        _column(TEXT_COLUMN, pa.string()),
    ],
    metadata={"fleet.record_format": str(IMAGES_FORMAT)},
)
"""Rows of samples with images; all else is as in :data:`SCHEMA`."""

SCHEMAS = {str(RECORD_FORMAT): SCHEMA, str(IMAGES_FORMAT): IMAGES_SCHEMA}


@dataclass(frozen=True)
class Record:
    """One row of :data:`SCHEMA`; digests are 32 bytes, ids are ints."""

    attempt: str
    arm: str
    position: int
    sample_id: str
    raw_record_sha256: bytes
    prompt_text: str
    prompt_sha256: bytes
    prompt_ids: tuple[int, ...]
    prompt_ids_sha256: bytes
    attention_mask_sha256: bytes
    settings_sha256: bytes
    rng_sha256: bytes
    batch_ordinal: int
    generated_token_ids: tuple[int, ...]
    generated_token_count: int
    full_sequence_sha256: bytes
    step_logits_sha256: tuple[bytes, ...]
    raw_answer: str
    parsed_answer: str
    unparsed: bool
    is_correct: bool
    top_ids: tuple[tuple[int, ...], ...]
    top_bits: tuple[tuple[int, ...], ...]
    margin_logits: tuple[float, ...]
    margin_ulps: tuple[int, ...]
    nonfinite: int
    stop: str
    seconds: float
    finished_at_s: float

    def to_row(self) -> dict[str, Any]:
        """The row, with its row digests computed here and nowhere else."""
        row = {f.name: getattr(self, f.name) for f in fields(self)}
        return row | row_digests(row)


@dataclass(frozen=True)
class ImageRecord(Record):
    """One row of :data:`IMAGES_SCHEMA`."""

    images: ImageEvidence

    def to_row(self) -> dict[str, Any]:
        """The row of text, with the columns of its images."""
        row = {f.name: getattr(self, f.name) for f in fields(self)} | self.images.columns()
        return row | row_digests(row)


@lru_cache(maxsize=8192)
def _length(n: int) -> bytes:
    return struct.pack("<q", n)


def length_prefixed(parts: list[bytes]) -> bytes:
    """Each part behind its length as little-endian int64: no two lists share bytes."""
    return b"".join([piece for part in parts for piece in (_length(len(part)), part)])


def prediction_fields(row: dict[str, Any]) -> list[bytes]:
    """Own fields of *prediction*: the parsed answer (or UNPARSED with the raw one), correct."""
    if row["unparsed"]:
        answer = b"\x00" + row["raw_answer"].encode("utf-8")
    else:
        answer = b"\x01" + row["parsed_answer"].encode("utf-8")
    return [answer, b"\x01" if row["is_correct"] else b"\x00"]


def tokens_fields(row: dict[str, Any]) -> list[bytes]:
    """Own fields of the grade *tokens*."""
    return [
        row["prompt_ids_sha256"],
        ids_bytes(row["generated_token_ids"]),
        _length(row["generated_token_count"]),
        row["full_sequence_sha256"],
        row["raw_answer"].encode("utf-8"),
    ]


def logits_fields(row: dict[str, Any]) -> list[bytes]:
    """Own fields of the grade *logits*: the per-step digests of raw last-position logits.

    A row that was read back may hold them joined already.
    """
    steps = row["step_logits_sha256"]
    return [steps if isinstance(steps, bytes) else b"".join(steps)]


def input_fields(row: dict[str, Any]) -> list[bytes]:
    """What went in: raw record, prompt, ids, mask; and the images, stage by stage."""
    return [
        row["raw_record_sha256"],
        row["prompt_sha256"],
        row["prompt_ids_sha256"],
        row["attention_mask_sha256"],
        *(row[name] for name in DIGEST_COLUMNS if name in row),
    ]


def graded_fields(row: dict[str, Any]) -> dict[str, bytes]:
    """The own fields of each grade that has some, length-prefixed."""
    return {
        "prediction": length_prefixed(prediction_fields(row)),
        "tokens": length_prefixed(tokens_fields(row)),
        "logits": length_prefixed(logits_fields(row)),
    }


def row_digests(row: dict[str, Any], graded: dict[str, bytes] | None = None) -> dict[str, bytes]:
    """SHA-256 over the length-prefixed own fields, by column name.

    ``graded`` spares the work where the row's :func:`graded_fields` are known.
    """
    groups = {"input": length_prefixed(input_fields(row)), **(graded or graded_fields(row))}
    return {f"{name}_sha256": hashlib.sha256(own).digest() for name, own in groups.items()}


def to_table(records: Sequence[Record]) -> pa.Table:
    """An Arrow table of :data:`SCHEMA`, of :data:`IMAGES_SCHEMA` where samples have images."""
    with_images = any(isinstance(record, ImageRecord) for record in records)
    schema = IMAGES_SCHEMA if with_images else SCHEMA
    return pa.Table.from_pylist([record.to_row() for record in records], schema=schema)
