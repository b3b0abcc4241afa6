"""Time of the reads that must not grow with the number of records.

    python -m tests.bench.bench_queries [--rows 1000000] [--rows-per-part 50000] [--runs 5]

``first_difference``: two attempts of 1M rows, straight from Parquet, target 0.5 s, as four pairs:
equal, one row late in the data set, every logits digest, and the same rows in parts of another
size (which have to be joined). The others: 100M records behind them, target 0.3 s. That store is
built from summaries alone, since they read nothing else: one attempt goes in through the
ingester's writers and is copied under other names, in campaigns of 2,000, pairs of replays over 50
contracts x 4 platforms x 5 units, until the records reach 100M; three stores, of 100 large, 10,000
middling and 260,000 small attempts. ``status``, ``history`` and ``report`` of one contract are
asked of all three, ``status``, ``matrix`` and ``report`` of all contracts of the first two. Margins
are not in it: of one replay of 1M rows they are read by themselves (``margins``). Reading summaries
is linear in the number of attempts, so there is no target where one answer reads more than a
thousand of them. The page cache is warm.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fleet.contract.canonical import sha256, to_text
from fleet.contract.load import BUILTIN
from fleet.contract.model import Require
from fleet.evidence.landing import Landing
from fleet.evidence.manifest import Process
from fleet.evidence.platform import FACTS, NOT_APPLICABLE
from fleet.evidence.records import SCHEMA
from fleet.evidence.roots import ROOTED
from fleet.evidence.summary import STAGE_COLUMNS, ArmSummary, AttemptSummary, Power
from fleet.report.answers import Answers
from fleet.report.cell import MOST_MARGINS
from fleet.report.filters import Filters
from fleet.report.history import history_of
from fleet.report.html_page import html_page
from fleet.report.matrix import matrix_of
from fleet.report.report_data import report_document
from fleet.report.status import StatusRow, status_rows
from fleet.store import write
from fleet.store.first_difference import first_difference
from fleet.store.margins import margins_of
from fleet.store.open import Store, open_writer, transaction
from tests.bench.result import Result
from tests.bench.synthetic_parts import ARMS, Change, copy_parts, write_parts

RECORDS = 100_000_000
CONTRACTS = 50
FEW = 1000
NOW_S = 1.5e9 + 1e6


def bench_first_difference(folder: Path, rows: int, size: int, runs: int) -> list[Result]:
    """Seconds for each kind of pair."""
    base = write_parts(folder / "a", "a" * 16, rows, size)
    late = rows // len(ARMS) - 1
    pairs: dict[str, tuple[list[Path], object]] = {
        "equal": (copy_parts(base, folder / "equal", "b" * 16), None),
        "one late row": (copy_parts(base, folder / "late", "b" * 16, _flip(late)), late),
        "every row": (copy_parts(base, folder / "all", "b" * 16, _flip(None)), 0),
        "other part sizes": (_in_one_part(base, folder / "one"), None),
    }
    results = []
    for name, (other, expected) in pairs.items():
        found = first_difference(base, other)
        assert (found.position if found else None) == expected, (name, found)
        seconds = _times(partial(first_difference, base, other), runs)
        results.append(_result(f"first_difference, {name}", seconds, 0.5, rows=rows))
    return results


def _flip(position: int | None) -> Change:
    """Another logits digest at one position of every arm, or everywhere."""

    def change(table: pa.Table) -> pa.Table:
        at = table["position"]
        here = pc.equal(at, position) if position is not None else pc.equal(at, at)
        other = pa.array([b"\xff" * 32] * table.num_rows, pa.binary(32))
        column = pc.if_else(here, other, table["logits_sha256"])
        index = SCHEMA.get_field_index("logits_sha256")
        return table.set_column(index, SCHEMA.field(index), column)

    return change


def _in_one_part(paths: list[Path], folder: Path) -> list[Path]:
    folder.mkdir()
    whole = pa.concat_tables([pq.read_table(path) for path in paths])
    pq.write_table(whole, folder / "part-00000.parquet", compression="zstd")
    return [folder / "part-00000.parquet"]


def bench_margins(folder: Path, rows: int, size: int, runs: int) -> list[Result]:
    """Seconds for what a report reads of the records behind one cell."""
    landing, attempt = Landing.open(folder / "margins", create=True), "f" * 16
    write_parts(landing.attempt(attempt), attempt, rows, size)
    with open_writer(folder / "margins.duckdb") as store:
        ask = partial(margins_of, store.con, landing, attempt, MOST_MARGINS)
        assert len(ask()) >= min(rows, MOST_MARGINS)
        return [_result("margins", _times(ask, runs), None, rows=rows)]


def bench_status(folder: Path, per_arm: int, runs: int) -> list[Result]:
    """Seconds for the ``status`` view, and for each verb that reads summaries."""
    landing = Landing.open(folder / "landing", create=True)
    with open_writer(folder / f"status-{per_arm}.duckdb") as store:
        attempts = _fill(store, per_arm)
        more = {"attempts": attempts, "records": attempts * per_arm * len(ARMS)}
        return [
            _result(f"{name}, {attempts:,} attempts", _times(ask, runs), target_s, **more)
            for name, target_s, ask in _questions(store, landing, attempts)
        ]


def _questions(
    store: Store, landing: Landing, attempts: int
) -> Iterator[tuple[str, float | None, Callable[[], object]]]:
    """Name, target, and what is asked: every verb anew, as a process would."""

    def status(*names: str) -> list[StatusRow]:
        answers = Answers(store, landing)
        rows = status_rows(answers, names, (BUILTIN,), folder, NOW_S)
        told = {row.state for row in rows if row.verdict is not None}
        assert told == {"PASS"}, told
        return rows

    def matrix() -> None:
        found = matrix_of(Answers(store, landing), status())
        assert len(found.lines) > CONTRACTS

    def history() -> None:
        found = history_of(Answers(store, landing), "c7", (BUILTIN,), folder, Filters())
        assert found.moments[0].events == ("first PASS",)

    def report(*names: str) -> None:
        answers = Answers(store, landing)
        rows = status_rows(answers, names, (BUILTIN,), folder, NOW_S)
        page = html_page(report_document(answers, rows, NOW_S))
        assert 'class="cell PASS"' in page

    folder = landing.root
    yield "status view", 0.3, lambda: store.con.execute("SELECT * FROM status").fetchall()
    of_one = 0.3 if attempts // CONTRACTS <= FEW else None
    yield "status of one contract", of_one, partial(status, "c7")
    yield "history of one contract", of_one, history
    yield "report of one contract", None, partial(report, "c7")
    if attempts <= 10_000:
        of_all = 0.3 if attempts <= FEW else None
        yield "status of all", of_all, status
        yield "matrix of all", of_all, matrix
        yield "report of all", None, report


def _fill(store: Store, per_arm: int) -> int:
    """One summary through the ingester's writers, then copies under other names, until their
    records reach 100M. Returns the attempts."""
    attempts = RECORDS // (per_arm * len(ARMS))
    with transaction(store, "bench"):
        write.insert_attempt(store.con, -1, _summary(per_arm), None, "")
        write.insert_summaries(store.con, -1, _summary(per_arm))
        store.con.execute(_COPIES, [attempts])
        store.con.execute(
            "INSERT INTO summaries SELECT t.key, s.arm, s.grade, unhex(sha256(concat(t.contract, "
            "t.platform, s.arm, s.grade))), s.rows, s.correct, s.unparsed, s.effective "
            "FROM summaries s, attempts t WHERE s.attempt = -1 AND t.key >= 0"
        )
        write.forget_attempt(store.con, "f" * 16)
        store.con.execute(_CONTRACTS, [_body()])
        store.con.execute(_PLATFORMS, [_facts()])
    store.con.execute("CHECKPOINT")
    return attempts


_COPIES = """
INSERT INTO attempts BY NAME
SELECT t.* REPLACE (
    i AS key, printf('%016x', i) AS attempt, 'night-' || printf('%06d', i // 2000) AS campaign,
    (i % 2)::INTEGER AS slot, c AS contract, unhex(sha256(c)) AS execution_id,
    unhex(sha256(p)) AS platform, u AS unit, 1.5e9 + i AS accepted_at_s,
    replace(replace(replace(replace(replace(replace(replace(replace(t.summary,
        t.attempt, printf('%016x', i)), '"toy"', '"' || c || '"'), '"unit-0"', '"' || u || '"'),
        '"night-0"', '"night-' || printf('%06d', i // 2000) || '"'),
        'sha256:' || repeat('e', 64), 'sha256:' || sha256(c)),
        'sha256:' || repeat('a', 64), 'sha256:' || sha256(p)),
        '"start_tick": 1', '"start_tick": ' || i),
        '1500000000.5', (1.5e9 + i)::VARCHAR) AS summary)
FROM attempts t, (
    SELECT i, 'c' || (i // 2 % 50) AS c, 'p' || (i // 100 % 4) AS p,
           'unit-' || (i // 100 % 4) || '-' || (i // 400 % 5) AS u FROM range(?) r(i)
) WHERE t.key = -1
"""
_CONTRACTS = "INSERT INTO contracts SELECT DISTINCT execution_id, contract, ? FROM attempts"
_PLATFORMS = "INSERT INTO platforms SELECT DISTINCT platform, ? FROM attempts"


def _body() -> str:
    """What the landing keeps of a contract."""
    require = Require(valid_days=36500).model_dump(mode="json")
    asked = {"require": require, "expect": None}
    return json.dumps({"execution_part": {"model": {"dtype": "bfloat16"}}, "asked": asked})


def _facts() -> str:
    return json.dumps({"format": 1, "facts": dict.fromkeys(FACTS, NOT_APPLICABLE)})


def _summary(per_arm: int) -> AttemptSummary:
    """A COMPLETE attempt, as large as a real one's."""
    text = to_text(sha256(b"x"))
    arm = ArmSummary(
        per_arm, 9, 0, 0, dict.fromkeys(ROOTED, text), dict.fromkeys(STAGE_COLUMNS, text)
    )
    records = per_arm * len(ARMS)
    return AttemptSummary(
        attempt="f" * 16,
        campaign="night-0",
        slot=0,
        purpose="certify",
        contract="toy",
        execution_id="sha256:" + "e" * 64,
        platform="sha256:" + "a" * 64,
        unit="unit-0",
        state="COMPLETE",
        cause=None,
        accepted_at_s=1500000000.5,
        traced=False,
        vary=(),
        num_samples=per_arm,
        rows=records,
        arms=dict.fromkeys(ARMS, arm),
        roots=dict.fromkeys(ROOTED, text),
        stages=dict.fromkeys(("checkpoint", "post_init_weights", "end_weights", "effective"), text),
        process=Process("boot", "pid:[1]", 1, 1),
        power=Power(records, records, 9, 0, records, 0, 0, 0, 0, 0, 0.5),
        envelope={"prompt_tokens": [20, 140], "batch_size": 1, "context": 160},
        effective={f"setting_{i}": i for i in range(30)},
    )


def _times(ask: Callable[[], object], runs: int) -> list[float]:
    seconds = []
    for _ in range(runs):
        started = time.perf_counter()
        ask()
        seconds.append(time.perf_counter() - started)
    return seconds


def _result(name: str, seconds: list[float], target_s: float | None, **more: object) -> Result:
    return Result(name, target_s, tuple(seconds), "s", more=more)


def run(quick: bool = False) -> Iterator[Result]:
    """One result per measurement; ``quick`` for a smoke test."""
    with tempfile.TemporaryDirectory() as name:
        per_arms = (500_000,) if quick else (500_000, 5_000, 191)
        rows, runs = (2000, 1) if quick else (1_000_000, 5)
        for per_arm in per_arms:
            yield from bench_status(Path(name), per_arm, runs)
        yield from bench_margins(Path(name), rows, min(rows, 50_000), runs)
        yield from bench_first_difference(Path(name), rows, min(rows, 50_000), runs)


def main() -> None:
    """Print one JSON line per measurement."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rows-per-part", type=int, default=50_000)
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for per_arm in (500_000, 5_000, 191):
            for line in bench_status(folder, per_arm, given.runs):
                print(json.dumps(line.to_json()), flush=True)
        for line in bench_margins(folder, given.rows, given.rows_per_part, given.runs):
            print(json.dumps(line.to_json()), flush=True)
        for line in bench_first_difference(folder, given.rows, given.rows_per_part, given.runs):
            print(json.dumps(line.to_json()), flush=True)


if __name__ == "__main__":
    main()
