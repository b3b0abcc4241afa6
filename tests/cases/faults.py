"""Faults, each in one process: a function changes one thing and the replay goes on as ever.

Called in the child before the replay starts, as ``name(task, entry)``; may return other entry
facts. Outputs keep their honest digests: what a fault changes, the process really produced.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
import signal
import struct
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import pyarrow as pa

from fleet.contract.canonical import sha256
from fleet.contract.parsers import Parser
from fleet.evidence import landing, parts, records
from fleet.evidence.digests import tensor_digest
from fleet.evidence.records import Record
from fleet.replay import observe, probe, run
from fleet.replay.engines import synthetic
from fleet.replay.engines.protocol import Generation, Prepared, Settings, Step
from fleet.replay.engines.synthetic import SyntheticEngine
from fleet.replay.probe import AtEntry
from fleet.replay.task import ReplayTask

Fault = Callable[[ReplayTask, AtEntry], AtEntry | None]


def wrap(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Put ``make(original)`` in the place of an attribute."""
    setattr(owner, name, make(getattr(owner, name)))


def is_current(prepared: Prepared, *wanted: str) -> bool:
    """One of some samples, in the arm ``current``."""
    return prepared.sample_id in wanted and not prepared.prompt_text.startswith("Choose")


# Inputs


def _prompts(change: Callable[[str], str], *wanted: str) -> Fault:
    """Rendered prompts of some samples of the arm ``current``."""

    def fault(task: ReplayTask, entry: AtEntry) -> None:
        def make(original: Any) -> Any:
            def render_arm(contract: Any, where: str, arm: str, rows: Any) -> list[str]:
                prompts = original(contract, where, arm, rows)
                return [
                    change(p) if arm == "current" and r["id"] in wanted else p
                    for p, r in zip(prompts, rows, strict=True)
                ]

            return render_arm

        wrap(observe, "render_arm", make)

    return fault


trailing_space = _prompts(lambda prompt: prompt + " ", "s07")
decomposed_unicode = _prompts(lambda prompt: unicodedata.normalize("NFD", prompt), "s02")


def _prepared(change: Callable[[Prepared], Prepared]) -> Fault:
    """What the tokenizer makes of a prompt."""

    def fault(task: ReplayTask, entry: AtEntry) -> None:
        def make(original: Any) -> Any:
            def prepare(self: Any, arm: str, *rest: Any) -> list[Prepared]:
                return [change(p) for p in original(self, arm, *rest)]

            return prepare

        wrap(SyntheticEngine, "prepare", make)

    return fault


def _one_id_more(prepared: Prepared) -> Prepared:
    if not is_current(prepared, "s01", "s04", "s08"):
        return prepared
    ids = (prepared.prompt_ids[0], *prepared.prompt_ids)
    return replace(prepared, prompt_ids=ids, attention_mask=(1,) * len(ids))


def _masked_front(prepared: Prepared) -> Prepared:
    if not is_current(prepared, "s05"):
        return prepared
    return replace(prepared, attention_mask=(0, *prepared.attention_mask[1:]))


def other_template(task: ReplayTask, entry: AtEntry) -> None:
    """The process is handed another contract than the one that its execution id stands for."""
    task.contract["arms"]["current"]["template"] += " "


three_longer_prompts = _prepared(_one_id_more)
other_mask = _prepared(_masked_front)


# Weights


def _census(**found: Any) -> Fault:
    def fault(task: ReplayTask, entry: AtEntry) -> None:
        wrap(SyntheticEngine, "load", lambda load: lambda self: replace(load(self), **found))

    return fault


missing_weight = _census(missing=["layers.3.mlp.down_proj.weight"])
reinitialised_weight = _census(altered=["lm_head.weight"])
unmapped_tensor = _census(unmapped=["layers.0.adapter.weight"])
weight_elsewhere = _census(off_device=["layers.1.mlp.up_proj.weight"])


def other_weights(task: ReplayTask, entry: AtEntry) -> None:
    """A load-time kernel wrote other bits, which no output shows."""
    SyntheticEngine.weights = lambda self: sha256(b"other bits")  # type: ignore[method-assign]


def weights_move_unseen(task: ReplayTask, entry: AtEntry) -> None:
    """Weights at the end are not those after load; no output shows it."""
    digests = iter((sha256(b"fleet-synthetic-1"), sha256(b"moved")))
    SyntheticEngine.weights = lambda self: next(digests)  # type: ignore[method-assign]


def weights_move(task: ReplayTask, entry: AtEntry) -> None:
    """From sample s05 of the arm ``current`` on, the weights are others, and so is the output."""

    def make(generate: Any) -> Any:
        def moved(self: Any, batch: Sequence[Prepared]) -> list[Generation]:
            if is_current(batch[0], "s05"):
                self._key = b"fleet-synthetic-2"
            return list(generate(self, batch))

        return moved

    wrap(SyntheticEngine, "generate", make)


# Settings


def setting_moves(task: ReplayTask, entry: AtEntry) -> None:
    """Another component changes a setting while sample s05 of the arm ``current`` runs."""

    def make(generate: Any) -> Any:
        def moved(self: Any, batch: Sequence[Prepared]) -> list[Generation]:
            if is_current(batch[0], "s05"):
                os.environ["PYTHONHASHSEED"] = "9"
            return list(generate(self, batch))

        return moved

    wrap(SyntheticEngine, "generate", make)


def _settings(effective: dict[str, Any], required: dict[str, Any]) -> Fault:
    def fault(task: ReplayTask, entry: AtEntry) -> None:
        def make(settings: Any) -> Any:
            def changed(self: Any) -> Settings:
                s = settings(self)
                return Settings({**s.effective, **effective}, {**s.required, **required})

            return changed

        wrap(SyntheticEngine, "settings", make)

    return fault


undeclared_penalty = _settings(
    {"decoding.repetition_penalty": 1.1}, {"decoding.repetition_penalty": 1.0}
)
other_autotune_table = _settings({"autotune_table": "sha256:0123"}, {})


def larger_batches(task: ReplayTask, entry: AtEntry) -> None:
    """The process forms batches of another size than its contract says."""

    def make(original: Any) -> Any:
        def generate(task: Any, contract: Any, *rest: Any) -> Any:
            decoding = contract.decoding.model_copy(update={"batch_size": 4})
            return original(task, contract.model_copy(update={"decoding": decoding}), *rest)

        return generate

    wrap(observe, "generate", make)


def turned_batches(task: ReplayTask, entry: AtEntry) -> None:
    """Batch-mates in another order inside their batch, and one of them gets other logits."""
    wrap(observe, "_run_batch", _turned)
    flipped_bit(task, entry)


def _turned(original: Any) -> Any:
    def run_batch(engine: Any, arm: str, ordinal: int, rows: Sequence[Prepared]) -> Any:
        batch, made = original(engine, arm, ordinal, rows[::-1])
        return batch, made[::-1]

    return run_batch


# Logits, tokens, stop rule


def _generated(change: Callable[[Prepared, Generation], Generation]) -> Fault:
    """What the engine produced for one row."""

    def fault(task: ReplayTask, entry: AtEntry) -> None:
        def make(original: Any) -> Any:
            def generate_one(self: Any, prepared: Prepared) -> Generation:
                return change(prepared, original(self, prepared))

            return generate_one

        wrap(SyntheticEngine, "_generate_one", make)

    return fault


def _with_logits(bits: int, at: int, step: int, wanted: str, nonfinite: int = 0) -> Fault:
    """The logit of one unlikely token has other bits at one step of one sample (arm current)."""

    def fault(task: ReplayTask, entry: AtEntry) -> None:
        rows: list[bytes] = []

        def make_observe(original: Any) -> Any:
            def seen(logits: Sequence[float]) -> Step:
                rows.append(struct.pack(f"<{len(logits)}f", *logits))
                step: Step = original(logits)
                return step

            return seen

        def make_generate(original: Any) -> Any:
            def generate_one(self: Any, prepared: Prepared) -> Generation:
                rows.clear()
                made: Generation = original(self, prepared)
                return _other_bits(made) if is_current(prepared, wanted) else made

            return generate_one

        def _other_bits(made: Generation) -> Generation:
            row = bytearray(rows[step])
            (old,) = struct.unpack_from("<I", row, 4 * at)
            struct.pack_into("<I", row, 4 * at, bits if bits != FLIP else old ^ 1)
            digest = tensor_digest("float32", (len(row) // 4,), bytes(row))
            changed = replace(made.steps[step], logits_sha256=digest, nonfinite=nonfinite)
            steps = (*made.steps[:step], changed, *made.steps[step + 1 :])
            return replace(made, steps=steps)

        wrap(synthetic, "observe", make_observe)
        wrap(SyntheticEngine, "_generate_one", make_generate)

    return fault


FLIP = -1
flipped_bit = _with_logits(FLIP, at=120, step=1, wanted="s03")
nan_payload_1 = _with_logits(0x7FC00001, at=120, step=1, wanted="s03", nonfinite=1)
nan_payload_2 = _with_logits(0x7FC00002, at=120, step=1, wanted="s03", nonfinite=1)
plus_zero = _with_logits(0x00000000, at=120, step=1, wanted="s03")
minus_zero = _with_logits(0x80000000, at=120, step=1, wanted="s03")


def _second_choice(step: int) -> Fault:
    """The sampler takes the runner-up at one step of s06 (arm current); its logits are as ever."""

    def fault(task: ReplayTask, entry: AtEntry) -> None:
        def make(original: Any) -> Any:
            def generate_one(self: Any, prepared: Prepared) -> Generation:
                if not is_current(prepared, "s06"):
                    made: Generation = original(self, prepared)
                    return made
                context, steps = list(prepared.prompt_ids), []
                for n in range(4):
                    steps.append(synthetic.observe(self._logits(context)))
                    context.append(steps[-1].top_ids[n == step])
                tokens = tuple(context[-4:])
                return Generation(tokens, _text(tokens), tuple(steps), "length")

            return generate_one

        wrap(SyntheticEngine, "_generate_one", make)

    return fault


def _text(tokens: Sequence[int]) -> str:
    return bytes(i for i in tokens if i < 256).decode("utf-8", errors="replace")


second_choice_at_the_last_step = _second_choice(3)
second_choice_at_step_1 = _second_choice(1)


def _stopped(prepared: Prepared, made: Generation) -> Generation:
    tokens = made.token_ids[:1]
    return replace(made, token_ids=tokens, text=_text(tokens), steps=made.steps[:1], stop="eos")


stops_at_step_1 = _generated(_stopped)
no_decode_step = _generated(
    lambda p, made: replace(made, token_ids=(), steps=(), text="") if p.sample_id == "s04" else made
)


def constant_output(task: ReplayTask, entry: AtEntry) -> None:
    """Every context gets the same logits."""
    wrap(SyntheticEngine, "_logits", lambda logits: lambda self, context: logits(self, [65]))


def tame_control(task: ReplayTask, entry: AtEntry) -> None:
    """The control's race is not there any more."""
    os.urandom = bytes  # type: ignore[assignment]


# Answers


other_detokeniser = _generated(
    lambda p, made: replace(made, text=made.text + " ") if is_current(p, "s06") else made
)


def _parser(parse: Callable[[Parser, str, Any], str | None]) -> Fault:
    def fault(task: ReplayTask, entry: AtEntry) -> None:
        def changed(original: Any) -> Any:
            def answer(parser: Parser, text: str, record: Any) -> tuple[str | None, bool]:
                if record["id"] != "s04":
                    found: tuple[str | None, bool] = original(parser, text, record)
                    return found
                return parse(parser, text, record), False

            return answer

        wrap(observe, "_answer", changed)

    return fault


parser_answers_z = _parser(lambda *_: "Z")
parser_is_silent = _parser(lambda *_: None)


# Rows


def _rows(change: Callable[[list[Record]], list[Record]]) -> Fault:
    """All rows of the replay, on their way to the writer."""

    def fault(task: ReplayTask, entry: AtEntry) -> None:
        def make(original: Any) -> Any:
            def generate(*args: Any) -> Iterator[list[Record]]:
                yield change(list(itertools.chain.from_iterable(original(*args))))

            return generate

        wrap(observe, "generate", make)

    return fault


def _at(rows: Sequence[Record], sample: str) -> int:
    return next(i for i, r in enumerate(rows) if (r.arm, r.sample_id) == ("current", sample))


_OUTPUT = ("generated_token_ids", "generated_token_count", "step_logits_sha256", "raw_answer")


def _swap(rows: list[Record]) -> list[Record]:
    i, j = _at(rows, "s04"), _at(rows, "s09")
    rows[i], rows[j] = _given(rows[i], rows[j]), _given(rows[j], rows[i])
    return rows


def _given(row: Record, other: Record) -> Record:
    """A request that received another one's result."""
    taken = {name: getattr(other, name) for name in (*_OUTPUT, "parsed_answer", "unparsed")}
    sequence = records_sequence(row, other)
    return replace(row, full_sequence_sha256=sequence, **taken)


def records_sequence(row: Record, other: Record) -> bytes:
    """Digest of a prompt with another row's tokens behind it."""
    from fleet.evidence.digests import token_sequence_digest

    return token_sequence_digest(row.prompt_ids, other.generated_token_ids)


def _unknown(rows: list[Record]) -> list[Record]:
    row = rows[_at(rows, "s09")]
    return [*rows, replace(row, sample_id="s99", position=10, batch_ordinal=10)]


def _without(rows: list[Record], sample: str) -> list[Record]:
    return [r for i, r in enumerate(rows) if i != _at(rows, sample)]


def _other_record(rows: list[Record]) -> list[Record]:
    i = _at(rows, "s08")
    return [*rows[:i], replace(rows[i], raw_record_sha256=sha256(b"other")), *rows[i + 1 :]]


swapped_outputs = _rows(_swap)
doubled_row = _rows(lambda rows: [*rows, rows[_at(rows, "s03")]])
missing_row = _rows(lambda rows: _without(rows, "s03"))
unknown_sample = _rows(_unknown)
one_missing_one_doubled = _rows(lambda rows: [*_without(rows, "s03"), rows[_at(rows, "s05")]])
row_of_another_attempt = _rows(lambda rows: [*rows[:-1], replace(rows[-1], attempt="0" * 16)])
other_raw_record = _rows(_other_record)
no_row = _rows(lambda rows: [])


def other_random_state(task: ReplayTask, entry: AtEntry) -> None:
    """A generator that nothing draws from stands elsewhere."""
    wrap(SyntheticEngine, "rng", lambda rng: lambda self: (random.random(), rng(self))[1])


def slow(task: ReplayTask, entry: AtEntry) -> None:
    """Times and durations are others."""
    clock = time.time
    time.time = lambda: clock() + 86400.0
    run.time.sleep(0.05)


def _table(change: Callable[[pa.Table], pa.Table]) -> Fault:
    """The Arrow table on its way to Parquet."""

    def fault(task: ReplayTask, entry: AtEntry) -> None:
        wrap(parts, "to_table", lambda to_table: lambda rows: change(to_table(rows)))

    return fault


def _nulled(table: pa.Table) -> pa.Table:
    name = "raw_answer"
    values = table.column(name).to_pylist()
    kind = pa.field(name, pa.string(), nullable=True)
    column = pa.array([None, *values[1:]], kind.type)
    return table.set_column(table.schema.get_field_index(name), kind, column)


def _edited(table: pa.Table) -> pa.Table:
    name = "raw_answer"
    values = table.column(name).to_pylist()
    column = pa.array([f"{values[0]} ", *values[1:]], pa.string())
    return table.set_column(table.schema.get_field_index(name), table.schema.field(name), column)


null_answer = _table(_nulled)
edited_answer = _table(_edited)
no_logits_column = _table(lambda table: table.drop_columns(["step_logits_sha256"]))


# Ends


def _at_s05(act: Callable[[], Any]) -> Fault:
    """Something happens when sample s05 of the arm ``current`` is due."""

    def fault(task: ReplayTask, entry: AtEntry) -> None:
        def make(original: Any) -> Any:
            def generate(self: Any, batch: Sequence[Prepared]) -> Any:
                if is_current(batch[0], "s05"):
                    act()
                return original(self, batch)

            return generate

        wrap(SyntheticEngine, "generate", make)

    return fault


def _raise(error: BaseException) -> NoReturn:
    raise error


def another_writer(task: ReplayTask, entry: AtEntry) -> None:
    """While the replay runs, another process lands a part in its folder."""
    _at_s05(lambda: (task.folder / "part-00000.parquet").write_bytes(b"rows"))(task, entry)


killed = _at_s05(lambda: os.kill(os.getpid(), signal.SIGKILL))
out_of_memory = _at_s05(lambda: _raise(MemoryError()))
raises = _at_s05(lambda: _raise(RuntimeError("kernel launch failed")))
hangs = _at_s05(lambda: time.sleep(600))


def _full(path: Any, data: bytes) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def disk_full_at_a_part(task: ReplayTask, entry: AtEntry) -> None:
    """The landing takes no more rows; the manifest still fits."""
    parts.write_once = _full


def disk_full_for_everything(task: ReplayTask, entry: AtEntry) -> None:
    """Not even the manifest fits."""
    parts.write_once = run.write_once = landing.write_once = _full


def differs_then_out_of_memory(task: ReplayTask, entry: AtEntry) -> None:
    """A row with another logits bit lands, then the process runs out of memory."""
    flipped_bit(task, entry)
    out_of_memory(task, entry)


def differs_with_other_settings_then_out_of_memory(task: ReplayTask, entry: AtEntry) -> None:
    """The same, but under settings that the other replays did not have."""
    other_autotune_table(task, entry)
    differs_then_out_of_memory(task, entry)


# Process and platform


def unreadable_packages(task: ReplayTask, entry: AtEntry) -> None:
    """One fact of the platform cannot be read."""
    probe.packages = lambda: _raise(PermissionError(13, "Permission denied", "RECORD"))


def another_process(task: ReplayTask, entry: AtEntry) -> AtEntry:
    """The manifest will name another process than the one that was seen alive."""
    return replace(entry, process=replace(entry.process, start_tick=entry.process.start_tick + 1))


def torch_at_entry(task: ReplayTask, entry: AtEntry) -> AtEntry:
    """A warm process: torch was imported before the replay came."""
    return replace(entry, imported=("torch",))


def no_nonce(task: ReplayTask, entry: AtEntry) -> AtEntry:
    """The environment that the process was given carries no nonce."""
    environment = {k: v for k, v in entry.environment.items() if k != "FLEET_NONCE"}
    return replace(entry, environment=environment)


def lives_on(task: ReplayTask, entry: AtEntry) -> None:
    """The process does not end when its replay does."""
    threading.Thread(target=time.sleep, args=(60,)).start()


assert records.RECORD_FORMAT == 1  # the faults above edit rows of this format
