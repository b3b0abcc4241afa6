"""Run the engine over the planned samples and write down what was seen, row by row.

Arm by arm, by the batch plan, in dataset order unless that is varied. Settings are read back after
every batch, so a thread count that changes at sample 9 is found at sample 9. Knows no file and no
other replay.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fleet.contract.canonical import digest_json, sha256, to_text
from fleet.contract.model import Contract
from fleet.contract.parsers import Parser
from fleet.contract.vary import batch_plan, comparable
from fleet.errors import AttemptFailed, AttemptVoid, ParserFault
from fleet.evidence.digests import ids_bytes, token_sequence_digest
from fleet.evidence.records import ImageRecord, Record
from fleet.evidence.stress import Ran
from fleet.replay.engines.protocol import Engine, Generation, Prepared, Settings
from fleet.replay.inputs import clocks, render_arm
from fleet.replay.pinned import Samples
from fleet.replay.task import ReplayTask

if TYPE_CHECKING:  # it brings torch, which a replay without it must not need
    from fleet.replay.trace.session import TraceSession

Inputs = Mapping[str, Sequence[Prepared]]
"""Arm -> its samples in dataset order."""


@dataclass(frozen=True)
class _Batch:
    """What all rows of one batch share."""

    arm: str
    ordinal: int
    rng_sha256: bytes
    settings_sha256: bytes
    seconds_per_row: float


def prepare(task: ReplayTask, contract: Contract, engine: Engine, samples: Samples) -> Inputs:
    """Inputs of every arm, before any weight, under each clock.

    Raises:
        AttemptVoid: the chat template reads the clock, or a prompt has no ids.
    """
    inputs: dict[str, list[Prepared]] = {}
    records = samples.records
    for arm in task.arms:
        prompts = render_arm(contract, task.contract_name, arm, records)
        first, *others = (engine.prepare(arm, records, prompts, now) for now in clocks(contract))
        for other in others:
            moved = next((a for a, b in zip(first, other, strict=True) if a != b), None)
            if moved is not None:
                raise AttemptVoid(
                    "clock-dependent-template",
                    f"{arm}/{moved.sample_id}: the chat template reads the clock; "
                    "pin [dataset] clock",
                )
        empty = next((p.sample_id for p in first if not p.prompt_ids), None)
        if empty is not None:
            raise AttemptVoid("missing-evidence", f"{arm}/{empty}: no input ids")
        inputs[arm] = first
    return inputs


def generate(
    task: ReplayTask,
    contract: Contract,
    engine: Engine,
    inputs: Inputs,
    samples: Samples,
    parsers: Mapping[str, Parser],
    session: TraceSession | None = None,
    ran: Ran | None = None,
) -> Iterator[list[Record]]:
    """One list of records per batch; ``session`` traces them, ``ran`` counts them.

    Raises:
        AttemptVoid: a setting stopped being in force.
    """
    by_id = {str(record["id"]): record for record in samples.records}
    position = {sample: i for i, sample in enumerate(task.sample_ids)}
    size = contract.decoding.batch_size
    for arm in task.arms:
        for planned in batch_plan(task.sample_ids, arm, size, task.varied):
            rows = [inputs[arm][at] for at in planned.positions]
            batch, made = _run_batch(engine, arm, planned.ordinal, rows, session, task.vary)
            if ran is not None:
                ran.add(arm, [position[p.sample_id] for p, _ in zip(rows, made, strict=True)])
            yield [
                _record(
                    task.attempt,
                    position[p.sample_id],
                    batch,
                    p,
                    g,
                    samples.raw[p.sample_id],
                    *_answer(parsers[arm], batch.arm, g.text, by_id[p.sample_id]),
                )
                for p, g in zip(rows, made, strict=True)
            ]


def batches(prepared: Sequence[Prepared], size: int) -> Iterator[Sequence[Prepared]]:
    """An arm's samples by the batch plan."""
    for first in range(0, len(prepared), size):
        yield prepared[first : first + size]


def shape(batch: Sequence[Prepared]) -> tuple[int, int]:
    """(rows, longest prompt): what a prefill computes on."""
    return len(batch), max(len(prepared.prompt_ids) for prepared in batch)


def image_shapes(batch: Sequence[Prepared]) -> tuple[tuple[int, ...], ...]:
    """Shapes of what a batch's images became: what a vision tower computes on."""
    evidence = [prepared.images for prepared in batch if prepared.images is not None]
    return tuple(output.shape for each in evidence for _, output in sorted(each.outputs.items()))


def _run_batch(
    engine: Engine,
    arm: str,
    ordinal: int,
    rows: Sequence[Prepared],
    session: TraceSession | None,
    vary: Sequence[str],
) -> tuple[_Batch, list[Generation]]:
    rng = engine.rng()
    begun = time.monotonic()
    made = session.run(engine, arm, ordinal, rows) if session else engine.generate(rows)
    seconds = (time.monotonic() - begun) / len(rows)
    settings = engine.settings()
    require_in_force(settings, f"at sample {arm}/{rows[0].sample_id}")
    in_force: dict[str, Any] = {"settings": comparable(settings.effective, vary)}
    if "batch" not in vary:
        in_force["batch"] = [to_text(sha256(ids_bytes(row.prompt_ids))) for row in rows]
    return _Batch(arm, ordinal, rng, digest_json(in_force), seconds), made


def require_in_force(settings: Settings, when: str) -> None:
    """Law 5: requested is not effective.

    Raises:
        AttemptVoid: naming the first setting whose read-back differs from what was asked.
    """
    for key, wanted in settings.required.items():
        got = settings.effective.get(key)
        if type(got) is not type(wanted) or got != wanted:
            code = "undeclared-decoding" if key.startswith("decoding.") else "setting-not-in-force"
            raise AttemptVoid(code, f"{key} {when}: contract {wanted!r}, in force {got!r}")


def _answer(
    parser: Parser, arm: str, text: str, record: Mapping[str, Any]
) -> tuple[str | None, bool]:
    try:
        return parser.answer(text, record)
    except ParserFault as fault:
        raise AttemptFailed("parser-error", f"{arm}/{record['id']}: {fault}") from fault


def _record(
    attempt: str,
    position: int,
    batch: _Batch,
    prepared: Prepared,
    made: Generation,
    raw: bytes,
    parsed: str | None,
    is_correct: bool,
) -> Record:
    row: dict[str, Any] = dict(
        attempt=attempt,
        arm=batch.arm,
        position=position,
        sample_id=prepared.sample_id,
        raw_record_sha256=sha256(raw),
        prompt_text=prepared.prompt_text,
        prompt_sha256=sha256(prepared.prompt_text.encode("utf-8")),
        prompt_ids=prepared.prompt_ids,
        prompt_ids_sha256=sha256(ids_bytes(prepared.prompt_ids)),
        attention_mask_sha256=sha256(ids_bytes(prepared.attention_mask)),
        settings_sha256=batch.settings_sha256,
        rng_sha256=batch.rng_sha256,
        batch_ordinal=batch.ordinal,
        generated_token_ids=made.token_ids,
        generated_token_count=len(made.token_ids),
        full_sequence_sha256=token_sequence_digest(prepared.prompt_ids, made.token_ids),
        step_logits_sha256=tuple(step.logits_sha256 for step in made.steps),
        raw_answer=made.text,
        parsed_answer=parsed or "",
        unparsed=parsed is None,
        is_correct=is_correct,
        top_ids=tuple(step.top_ids for step in made.steps),
        top_bits=tuple(step.top_bits for step in made.steps),
        margin_logits=tuple(step.margin_logits for step in made.steps),
        margin_ulps=tuple(step.margin_ulps for step in made.steps),
        nonfinite=sum(step.nonfinite for step in made.steps),
        stop=made.stop,
        seconds=batch.seconds_per_row,
        finished_at_s=time.time(),
    )
    return Record(**row) if prepared.images is None else ImageRecord(**row, images=prepared.images)


def envelope(task: ReplayTask, contract: Contract, inputs: Inputs) -> dict[str, Any]:
    """The shapes that were exercised: the claim holds for these, outside them is UNTESTED."""
    size = contract.decoding.batch_size
    new = contract.decoding.max_new_tokens
    lengths = [len(p.prompt_ids) for arm in inputs.values() for p in arm]
    shapes = {
        shape([prepared[at] for at in batch.positions])
        for arm, prepared in inputs.items()
        for batch in batch_plan(task.sample_ids, arm, size, task.varied)
    }
    images = {image_shapes([p]) for arm in inputs.values() for p in arm if p.images is not None}
    return {
        **({"image_shapes": len(images)} if images else {}),
        "prompt_tokens": [min(lengths), max(lengths)],
        "context_tokens": max(lengths) + new,
        "max_new_tokens": new,
        "batch_size": size,
        "prefill_shapes": len(shapes),
        "decode_batch_sizes": sorted({rows for rows, _ in shapes}),
    }


def input_warnings(inputs: Inputs) -> list[str]:
    """Reproducible, and probably not meant."""
    prompts = [p.prompt_ids for arm in inputs.values() for p in arm]
    if all(len(ids) > 1 and ids[0] == ids[1] for ids in prompts):
        return ["every prompt begins with the same token twice (a doubled BOS?)"]
    return []
