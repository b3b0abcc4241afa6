"""Build a landing as driver and workers leave one, through the product's own writers.

Rows are synthetic and honest: every digest is computed from the content beside it. ``edit`` changes
rows before they are written (a worker that really produced them); the functions at the end change
bytes that are already landed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from fleet.contract.canonical import digest_json, sha256, to_text
from fleet.contract.execution_id import id_of, unflat
from fleet.evidence.digests import ids_bytes, token_sequence_digest
from fleet.evidence.landing import Landing
from fleet.evidence.ledger import Ledger
from fleet.evidence.manifest import Manifest, Process
from fleet.evidence.parts import PartWriter
from fleet.evidence.platform import FACTS, NOT_APPLICABLE, PLATFORM_FORMAT
from fleet.evidence.records import Record
from fleet.evidence.states import Cause, Purpose, State
from fleet.evidence.tally import tally_rows

Edit = Callable[[list[Record]], list[Record]]

WATCHED = {"pid_namespace": "pid:[1]", "boot_id": "boot-0"}


def _same(records: list[Record]) -> list[Record]:
    return records


@dataclass(frozen=True)
class AttemptSpec:
    """One attempt to land.

    ``ends``: how its story ends. *accepted*: manifest written and accepted. *given-up*: rows, no
    manifest, given up with ``state`` FAILED or LOST. *open*: planned and started, nothing more.
    *unplanned*: rows and manifest, and no ledger knows of it.
    """

    attempt: str
    campaign: str = "c1"
    contract: str = "toy"
    execution_id: bytes | None = None
    slot: int = 0
    unit: str = "unit-0"
    facts: tuple[tuple[str, str], ...] = ()
    purpose: Purpose = "certify"
    num_samples: int = 5
    arms: tuple[str, ...] = ("controlled", "current")
    ends: Literal["accepted", "given-up", "open", "unplanned"] = "accepted"
    state: State = "COMPLETE"
    cause: Cause | None = None
    vary: tuple[str, ...] = ()
    rows_per_part: int = 4
    effective: tuple[tuple[str, Any], ...] = (("num_threads", 1),)
    edit: Edit = _same

    @property
    def samples(self) -> list[str]:
        """Planned sample ids in dataset order."""
        return [f"s{i:05d}" for i in range(self.num_samples)]

    @property
    def contract_id(self) -> bytes:
        """The execution id: given, or of the contract's name."""
        return self.execution_id or id_of({"contract": self.contract}, unflat({}))

    @property
    def body(self) -> dict[str, Any]:
        """What its execution id stands for."""
        return {"execution_part": {"contract": self.contract}, "digests": {}}


def build_landing(root: Path, attempts: Sequence[AttemptSpec]) -> Landing:
    """A landing with one ledger chain per campaign; attempts land in the order given."""
    landing = Landing.open(root, create=True)
    for campaign in dict.fromkeys(spec.campaign for spec in attempts):
        mine = [spec for spec in attempts if spec.campaign == campaign]
        planned = [spec for spec in mine if spec.ends != "unplanned"]
        ledger = Ledger(landing, campaign)
        if planned:
            named = sorted({(s.contract, to_text(s.contract_id)) for s in planned})
            contracts = [{"name": name, "execution_id": text} for name, text in named]
            ledger.append("campaign", contracts=contracts, argv=["fleet", "certify"])
        for spec in mine:
            _land(landing, ledger, spec)
        if planned:
            ledger.append("controls", contracts=[])
            ledger.append("closed")
    return landing


def make_record(
    attempt: str,
    arm: str,
    position: int,
    sample_id: str,
    *,
    prompt: str | None = None,
    tokens: Sequence[int] | None = None,
    answer: str | None = None,
    logits: str = "",
    settings: str = "settings",
) -> Record:
    """One honest row. ``logits`` salts the per-step logits digests."""
    prompt = prompt if prompt is not None else f"{arm} {sample_id}?"
    prompt_ids = tuple(prompt.encode())
    ids = tuple(tokens) if tokens is not None else (position % 7 + 1, 2)
    answer = answer if answer is not None else "ABCD"[position % 4]
    steps = [sha256(f"{logits}/{sample_id}/{arm}/{n}/{t}".encode()) for n, t in enumerate(ids)]
    return Record(
        attempt=attempt,
        arm=arm,
        position=position,
        sample_id=sample_id,
        raw_record_sha256=sha256(sample_id.encode()),
        prompt_text=prompt,
        prompt_sha256=sha256(prompt.encode()),
        prompt_ids=prompt_ids,
        prompt_ids_sha256=sha256(ids_bytes(prompt_ids)),
        attention_mask_sha256=sha256(bytes([1] * len(prompt_ids))),
        settings_sha256=sha256(settings.encode()),
        rng_sha256=sha256(b"rng"),
        batch_ordinal=position,
        generated_token_ids=ids,
        generated_token_count=len(ids),
        full_sequence_sha256=token_sequence_digest(prompt_ids, ids),
        step_logits_sha256=tuple(steps),
        raw_answer=answer,
        parsed_answer=answer,
        unparsed=False,
        is_correct=answer == "A",
        top_ids=tuple((t, 0) for t in ids),
        top_bits=tuple((16256, 16000) for _ in ids),
        margin_logits=tuple(0.5 for _ in ids),
        margin_ulps=tuple(64 for _ in ids),
        nonfinite=0,
        stop="eos",
        seconds=0.01,
        finished_at_s=1.0,
    )


def remake(record: Record, **changes: Any) -> Record:
    """The honest row of a process that produced something else for this sample."""
    kept = {"prompt": record.prompt_text, "tokens": record.generated_token_ids}
    kept["answer"] = record.raw_answer
    at = (record.attempt, record.arm, record.position, record.sample_id)
    return make_record(*at, **kept | changes)


def other_row(index: int, **changes: Any) -> Edit:
    """An edit that remakes one row."""

    def edit(records: list[Record]) -> list[Record]:
        changed = remake(records[index], **changes)
        return [*records[:index], changed, *records[index + 1 :]]

    return edit


def _land(landing: Landing, ledger: Ledger, spec: AttemptSpec) -> None:
    process = Process("boot-0", "pid:[1]", 1000 + spec.slot, int(spec.attempt, 16) % 10**9)
    if spec.ends != "unplanned":
        landing.write_contract(spec.contract_id, spec.body)
        _plan(ledger, spec)
        ledger.append("started", spec.attempt, process=asdict(process), watcher=WATCHED)
        ledger.append("go", spec.attempt, token=_token(spec), after=None)
    writer = PartWriter(landing.attempt(spec.attempt), spec.rows_per_part)
    for record in spec.edit(_records(spec)):
        writer.add([record])
    writer.flush()
    if spec.ends == "open":
        return
    manifest = _manifest(landing, spec, writer, process)
    if spec.ends in ("accepted", "unplanned"):
        path = landing.manifest(spec.attempt)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(manifest.to_bytes())
    _end(ledger, spec, manifest)


def _plan(ledger: Ledger, spec: AttemptSpec) -> None:
    ledger.append(
        "planned",
        spec.attempt,
        slot=spec.slot,
        contract=spec.contract,
        execution_id=to_text(spec.contract_id),
        purpose=spec.purpose,
        vary=list(spec.vary),
        node="node-0",
        unit_hint=spec.unit,
        num_samples=spec.num_samples,
        sample_ids=spec.samples,
        arms=list(spec.arms),
    )


def _end(ledger: Ledger, spec: AttemptSpec, manifest: Manifest) -> None:
    if spec.ends == "unplanned":
        return
    seen = {"seen_alive": True, "gone": spec.state != "LOST", "watcher_pid_namespace": "pid:[1]"}
    ledger.append("gone", spec.attempt, **seen)
    if spec.ends == "accepted":
        digest = to_text(manifest.digest)
        ledger.append("accepted", spec.attempt, manifest_sha256=digest, state=spec.state)
    else:
        cause = spec.cause or Cause("killed", "signal 9")
        ledger.append("given_up", spec.attempt, state=spec.state, cause=cause.to_json())


def _records(spec: AttemptSpec) -> list[Record]:
    return [
        make_record(spec.attempt, arm, position, sample)
        for arm in spec.arms
        for position, sample in enumerate(spec.samples)
    ]


def _manifest(
    landing: Landing, spec: AttemptSpec, writer: PartWriter, process: Process
) -> Manifest:
    paths = landing.parts(spec.attempt)
    whole = spec.state == "COMPLETE" and spec.ends != "given-up"
    tally = tally_rows(paths, spec.arms, in_order=True) if whole else None
    platform = {"format": PLATFORM_FORMAT, "facts": _facts(spec)}
    weights = to_text(sha256(b"weights"))
    return Manifest(
        attempt=spec.attempt,
        campaign=spec.campaign,
        slot=spec.slot,
        purpose=spec.purpose,
        contract=spec.contract,
        execution_id=to_text(spec.contract_id),
        state=spec.state,
        cause=spec.cause,
        num_samples=spec.num_samples,
        arms=spec.arms,
        parts=tuple(writer.parts),
        roots=tally.roots if tally else {},
        arm_roots=tally.arm_roots if tally else {},
        stages={"checkpoint": weights, "post_init_weights": weights, "end_weights": weights},
        platform=platform,
        platform_sha256=to_text(digest_json(platform)),
        unit={"id": spec.unit, "kind": "cpu", "machine": "m0", "node_label": "n0", "host": "h"},
        process=process,
        freshness={
            "nonce": spec.attempt,
            "imported_at_entry": [],
            "predecessor": None,
            "predecessor_gone": None,
            "token": _token(spec),
            "token_at_s": 1.0,
            "device_in_use_before_token": False,
            "device": None,
            "device_first_used_after_s": 2.0,
        },
        effective=dict(spec.effective),
        effective_end=dict(spec.effective),
        census={},
        envelope={"batch_size": 1},
        logs={},
        vary=spec.vary,
        volatile={"closed_at_s": time.time()},
    )


def _token(spec: AttemptSpec) -> str:
    return f"token of {spec.attempt}"


def _facts(spec: AttemptSpec) -> dict[str, Any]:
    return {name: NOT_APPLICABLE for name in FACTS} | dict(spec.facts)


def other_slot(spec: AttemptSpec, attempt: str, **changes: Any) -> AttemptSpec:
    """The next replay of the same plan."""
    values: dict[str, Any] = {"attempt": attempt, "slot": spec.slot + 1}
    return replace(spec, **values | changes)


# Bytes that change after they landed.


def rewrite_part(path: Path, edit: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    """Replace a part by a well-formed one with edited rows; NULLs are allowed here."""
    table = pq.read_table(path)
    fields = [field.with_nullable(True) for field in table.schema]
    schema = pa.schema(fields, metadata=table.schema.metadata)
    rows = edit(table.to_pylist())
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path, compression="zstd")


def drop_column(path: Path, name: str) -> None:
    """Replace a part by one without a column."""
    pq.write_table(pq.read_table(path).drop_columns([name]), path, compression="zstd")


def null_column(path: Path, name: str) -> None:
    """Replace a part by one in which a column is NULL in every row."""
    rewrite_part(path, lambda rows: [row | {name: None} for row in rows])


def cut(path: Path, num_bytes: int) -> None:
    """Keep the first bytes only: no Parquet footer is left."""
    path.write_bytes(path.read_bytes()[:num_bytes])
