"""Faults of answers and rows on their way to the landing."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from fleet.contract.canonical import sha256
from fleet.contract.parsers import Parser
from fleet.evidence import parts
from fleet.evidence.digests import token_sequence_digest
from fleet.evidence.records import Record
from fleet.replay import observe, run
from fleet.replay.engines.synthetic import SyntheticEngine
from fleet.replay.probe import AtEntry
from fleet.replay.task import ReplayTask
from tests.cases.faults.patching import Fault, generated, is_current, wrap

other_detokeniser = generated(
    lambda p, made: replace(made, text=made.text + " ") if is_current(p, "s06") else made
)


def _parser(parse: Callable[[Parser, str, Any], str | None]) -> Fault:
    def fault(task: ReplayTask, entry: AtEntry) -> None:
        def changed(original: Any) -> Any:
            def answer(parser: Parser, arm: str, text: str, record: Any) -> tuple[str | None, bool]:
                if record["id"] != "s04":
                    found: tuple[str | None, bool] = original(parser, arm, text, record)
                    return found
                return parse(parser, text, record), False

            return answer

        wrap(observe, "_answer", changed)

    return fault


parser_answers_z = _parser(lambda *_: "Z")
parser_is_silent = _parser(lambda *_: None)


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
    sequence = token_sequence_digest(row.prompt_ids, other.generated_token_ids)
    return replace(row, full_sequence_sha256=sequence, **taken)


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
