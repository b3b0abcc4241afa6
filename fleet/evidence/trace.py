"""What a traced replay leaves: one row per module call, per module and per weight, format 2.

    trace-00000.parquet ...   calls, in the order they began
    trace-modules.parquet     every module: class, facts that decide its arithmetic, times it fired
    trace-weights.parquet     every tensor that counts as a weight: digest at load and at the end

A call has two digests: the out-root, and the in-root, of which the parts are landed, so that a
reader can tell an input from a weight and a cache. The in-root itself is made of them at reading;
format 1 landed it too, and there it must be theirs. Knows no torch and no verdict; what differs
between two traces is worked out elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from fleet.contract.canonical import sha256
from fleet.errors import EvidenceError
from fleet.evidence.landing import Landing, file_sha256
from fleet.evidence.manifest import Manifest
from fleet.evidence.records import length_prefixed

TRACE_FORMAT = 2
UNCHANGED = "no bit changed"
"""What a session says of its hooks when the first batch gave the same logits without them."""
DIGEST = pa.binary(32)
IN_PARTS = ("args_sha256", "own_sha256", "cache_sha256")
"""What an in-root is over."""
MODULES_FILE, WEIGHTS_FILE = "trace-modules.parquet", "trace-weights.parquet"


@dataclass(frozen=True, slots=True)
class Call:
    """One call of one module. Digests are 32 bytes, None where there was nothing to hash.

    ``begin`` and ``end`` are places in the order of everything observed in one step (a call is
    observed twice); ``end`` is -1 for a call that never returned. ``parent`` is the caller's
    ``begin``, -1 for the model itself. ``occurrence`` counts the calls of ``path`` in the step.
    ``args_sha256``: positional and keyword arguments; ``own_sha256``: the module's own parameters
    (as loaded), buffers and other tensors it keeps; ``cache_sha256``: caches among the arguments,
    the part that belongs to this module's layers. ``in_sha256`` is :func:`root_of` the three, and
    not landed; ``out_sha256`` is over the returned value and whatever of the three the call changed
    in place. ``unhashed``: arguments that are no tensor, number, text or collection of those.
    """

    arm: str
    batch: int
    sample_ids: tuple[str, ...]
    step: int
    begin: int
    end: int
    parent: int
    path: str
    occurrence: int
    class_name: str
    args_sha256: bytes | None
    own_sha256: bytes | None
    cache_sha256: bytes | None
    in_sha256: bytes | None
    out_sha256: bytes | None
    dtype: str
    shape: str
    unhashed: int


def root_of(parts: Sequence[bytes | None]) -> bytes | None:
    """One digest over parts, absent ones told apart from empty ones; None when all are absent."""
    if parts.count(None) == len(parts):
        return None
    return sha256(length_prefixed([b"" if part is None else b"+" + part for part in parts]))


def in_roots(path: Path, columns: Mapping[str, Sequence[Any]]) -> list[bytes | None]:
    """The in-root of every call, from columns of that file.

    Raises:
        EvidenceError: format 1 landed another one.
    """
    parts = (columns[name] for name in IN_PARTS)
    roots = [root_of(each) for each in zip(*parts, strict=True)]
    if columns.get("in_sha256", roots) != roots:
        raise EvidenceError("evidence-altered", f"{path.name}: an in-root is not of its parts")
    return roots


Phase = Literal["in", "out"]


def moments(calls: Iterable[Call]) -> list[tuple[Phase, Call]]:
    """The beginning of every call and the end of those that returned, in the order they came."""
    found: list[tuple[int, int, Phase, Call]] = []
    for call in calls:
        found.append((call.step, call.begin, "in", call))
        if call.end >= 0:
            found.append((call.step, call.end, "out", call))
    return [(phase, call) for *_, phase, call in sorted(found, key=lambda item: item[:2])]


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """One module. ``facts`` is JSON text; ``expected``: its class has a forward of its own.

    ``own_sha256``: what a call's ``own_sha256`` would have been when tracing began.
    """

    path: str
    class_name: str
    facts: str
    facts_at_end: str
    expected: bool
    fired: int
    own_sha256: bytes | None = None


@dataclass(frozen=True, slots=True)
class WeightRow:
    """One tensor that counts as a weight, by its name; ``path`` is the module that owns it."""

    name: str
    path: str
    load_sha256: bytes
    end_sha256: bytes | None


def _field(name: str, kind: pa.DataType, nullable: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=nullable)


_META = {"fleet.trace_format": str(TRACE_FORMAT)}
CALLS = pa.schema(
    [
        _field("arm", pa.string()),
        _field("batch", pa.int32()),
        _field("sample_ids", pa.list_(pa.field("item", pa.string(), nullable=False))),
        _field("step", pa.int32()),
        _field("begin", pa.int32()),
        _field("end", pa.int32()),
        _field("parent", pa.int32()),
        _field("path", pa.string()),
        _field("occurrence", pa.int32()),
        _field("class_name", pa.string()),
        _field("args_sha256", DIGEST, nullable=True),
        _field("own_sha256", DIGEST, nullable=True),
        _field("cache_sha256", DIGEST, nullable=True),
        _field("out_sha256", DIGEST, nullable=True),
        _field("dtype", pa.string()),
        _field("shape", pa.string()),
        _field("unhashed", pa.int32()),
    ],
    metadata=_META,
)
CALLS_1 = CALLS.insert(
    CALLS.get_field_index("out_sha256"), _field("in_sha256", DIGEST, nullable=True)
)
"""What format 1 landed."""
MODULES = pa.schema(
    [
        _field("path", pa.string()),
        _field("class_name", pa.string()),
        _field("facts", pa.string()),
        _field("facts_at_end", pa.string()),
        _field("expected", pa.bool_()),
        _field("fired", pa.int32()),
        _field("own_sha256", DIGEST, nullable=True),
    ],
    metadata=_META,
)
WEIGHTS = pa.schema(
    [
        _field("name", pa.string()),
        _field("path", pa.string()),
        _field("load_sha256", DIGEST),
        _field("end_sha256", DIGEST, nullable=True),
    ],
    metadata=_META,
)


def to_table(rows: Sequence[Call | ModuleRow | WeightRow], schema: pa.Schema) -> pa.Table:
    """Rows of one kind as a table."""
    columns = {name: [getattr(row, name) for row in rows] for name in schema.names}
    return pa.table(columns, schema=schema)


def calls_table(rows: Sequence[Call]) -> pa.Table:
    """Calls as a table."""
    return to_table(rows, CALLS)


@dataclass(frozen=True)
class Trace:
    """One traced replay, read back. ``repeats``: what repeating a frozen call gave, if asked for.

    ``logits``: (arm, sample id) -> digest of the raw logits of every step. ``injected``: the path
    that a control's own fault was put at, for whoever tests the tracer.
    """

    attempt: str
    calls: tuple[Call, ...]
    modules: Mapping[str, ModuleRow]
    weights: Mapping[str, WeightRow]
    repeats: tuple[Mapping[str, Any], ...] = ()
    logits: Mapping[tuple[str, str], tuple[bytes, ...]] = field(default_factory=dict)
    hooks: str = ""
    injected: str | None = None


def calls_files(names: Iterable[str]) -> list[str]:
    """Of a trace's files those that hold calls, in the order they landed."""
    return [name for name in sorted(names) if name not in (MODULES_FILE, WEIGHTS_FILE)]


def require_files(folder: Path, manifest: Manifest) -> None:
    """Every file of the trace is there, with the bytes that the manifest names.

    Raises:
        EvidenceError: evidence-altered.
    """
    for name, digest in manifest.trace["files"].items():
        _require_whole(folder / name, digest)


def read_trace(landing: Landing, attempt: str, only: tuple[str, int] | None = None) -> Trace | None:
    """The trace of one attempt; None when it has a manifest and no trace.

    Args:
        landing: where it is.
        attempt: its id.
        only: (arm, batch) whose calls are wanted; None for all of them, which of a replay that was
            traced throughout are more than fit in memory.

    Raises:
        EvidenceError: a file is missing, was edited after the fact, or is of another format.
    """
    path = landing.manifest(attempt)
    if not path.exists():
        return None
    manifest = Manifest.from_bytes(path.read_bytes())
    if not manifest.trace:
        return None
    folder = landing.attempt(attempt)
    require_files(folder, manifest)
    names = calls_files(manifest.trace["files"])
    return Trace(
        attempt=attempt,
        calls=tuple(call for name in names for call in _calls(folder / name, only)),
        modules={m.path: m for m in _rows(folder / MODULES_FILE, ModuleRow, MODULES)},
        weights={w.name: w for w in _rows(folder / WEIGHTS_FILE, WeightRow, WEIGHTS)},
        repeats=tuple(manifest.trace.get("repeats", ())),
        logits=_logits(landing.parts(attempt)),
        hooks=str(manifest.trace.get("hooks", "")),
        injected=manifest.census.get("injected"),
    )


def _require_whole(path: Path, digest: str) -> None:
    if not path.exists():
        raise EvidenceError("evidence-altered", f"{path.name} is gone")
    if file_sha256(path) != digest:
        raise EvidenceError("evidence-altered", f"{path.name} was edited after the fact")


def _calls(path: Path, only: tuple[str, int] | None) -> Iterable[Call]:
    columns = _read(path, CALLS, CALLS_1, batch=only and only[1]).to_pydict()
    if only is not None:
        places = enumerate(zip(columns["arm"], columns["batch"], strict=True))
        kept = [row for row, place in places if place == only]
        columns = {name: [values[row] for row in kept] for name, values in columns.items()}
    columns["in_sha256"] = in_roots(path, columns)
    columns["sample_ids"] = [tuple(ids) for ids in columns["sample_ids"]]
    return (
        Call(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)
    )


def _rows(path: Path, kind: type[Any], schema: pa.Schema) -> list[Any]:
    return [kind(**row) for row in _read(path, schema).to_pylist()]


def _read(path: Path, *schemas: pa.Schema, batch: int | None = None) -> pa.Table:
    """All rows, or the groups of rows that may hold a batch.

    By nothing that makes pyarrow import pandas, which takes half a second where it is installed:
    neither ``pq.read_table`` nor a comparison with a value of Python's.
    """
    with pq.ParquetFile(path) as file:
        if not any(file.schema_arrow.equals(schema) for schema in schemas):
            raise EvidenceError("evidence-altered", f"{path.name}: not the columns of a trace")
        groups = [i for i in range(file.num_row_groups) if _may_hold(file, i, batch)]
        return file.read_row_groups(groups)


def _may_hold(file: pq.ParquetFile, group: int, batch: int | None) -> bool:
    """By what the footer says of it."""
    if batch is None:
        return True
    column = file.schema.names.index("batch")  # of the leaves, as a footer counts them
    told = file.metadata.row_group(group).column(column).statistics
    return told is None or not told.has_min_max or told.min <= batch <= told.max


def _logits(parts: Sequence[Path]) -> dict[tuple[str, str], tuple[bytes, ...]]:
    found = {}
    for part in parts:
        with pq.ParquetFile(part) as file:
            table = file.read(columns=["arm", "sample_id", "step_logits_sha256"])
        for row in table.to_pylist():
            found[row["arm"], row["sample_id"]] = tuple(row["step_logits_sha256"])
    return found
