"""Compare two attempts, platforms or stacks, or two contracts' newest attempts (``fleet diff``).

Says what differs, from contract keys to the first differing step, and blames nothing: two
different contracts are two sets of bits, so a difference between them is no fault of a kernel.
Gives a difference, never a verdict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.text import Text

from fleet.contract.stack import LoadedStack
from fleet.contract.stack import changes as stack_changes
from fleet.errors import UsageError
from fleet.evidence.summary import AttemptSummary
from fleet.judge.compare import PairComparison
from fleet.report.answers import Answers, known_contracts
from fleet.report.difference import difference_lines
from fleet.report.screen import Cells
from fleet.store import queries

SCHEMA = 1
Changes = dict[str, tuple[Any, Any]]


@dataclass(frozen=True)
class PairDiff:
    """Two attempts. ``fields``: dotted key -> (value of a, value of b), where they differ."""

    contract: str
    a: str
    b: str
    result: str
    words: str
    fields: Changes = field(default_factory=dict)
    comparison: PairComparison | None = None

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        return {
            "contract": self.contract,
            "a": self.a,
            "b": self.b,
            "result": self.result,
            "words": self.words,
            "fields": {key: list(values) for key, values in self.fields.items()},
            "comparison": self.comparison.to_json() if self.comparison else None,
        }


@dataclass(frozen=True)
class Diff:
    """What ``fleet diff`` answers: one pair, or one per contract that both platforms, or replays on
    both stacks, ran."""

    a: str
    b: str
    kind: str
    fields: Changes
    pairs: tuple[PairDiff, ...]

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        return {
            "schema": SCHEMA,
            "kind": self.kind,
            "a": self.a,
            "b": self.b,
            "fields": {key: list(values) for key, values in self.fields.items()},
            "pairs": [pair.to_json() for pair in self.pairs],
        }

    def exit_code(self) -> int:
        """0 nothing differs, 1 something does, 3 nothing could be compared."""
        results = {pair.result for pair in self.pairs}
        if "DIFFERS" in results:
            return 1
        return 0 if results == {"EQUAL"} else 3


def compare(answers: Answers, a: str, b: str) -> Diff:
    """Find what ``a`` and ``b`` name, and compare.

    Raises:
        UsageError: a name that is nothing, or two names of different kinds.
    """
    for kind, find in (("attempts", _attempts), ("platforms", _platforms), ("contracts", _newest)):
        left, right = find(answers, a), find(answers, b)
        if left and right:
            return (
                _platform_diff(answers, left, right)
                if kind == "platforms"
                else _one(answers, kind, left[0], right[0])
            )
    raise UsageError(
        "diff",
        f"{a} {b}",
        "two attempts, platform digests or contract names that the store knows, or two stacks",
        "at least one that is none of them",
        "fleet status --json lists attempts, platforms and contracts",
    )


def _has_rows(summary: AttemptSummary) -> bool:
    return summary.rows > 0 and not summary.pruned


def attempt_diff(answers: Answers, a: AttemptSummary, b: AttemptSummary) -> PairDiff:
    """Contract, platform and settings first, then row by row."""
    fields = _fields(answers, a, b)
    dtype = next((k.dtype for k in known_contracts(answers.store) if k.name == a.contract), "")
    if a.attempt == b.attempt or not (_has_rows(a) and _has_rows(b)):
        words = "one attempt named twice" if a.attempt == b.attempt else "an attempt has no rows"
        words = "the rows of an attempt were pruned" if a.pruned or b.pruned else words
        return PairDiff(a.contract, a.attempt, b.attempt, "NO_EVIDENCE", words, fields)
    pair = (a.attempt, b.attempt)
    found = answers.comparisons([pair], dtype)[pair]
    if not found.counts:
        words = "no row of one can be held against a row of the other"
        return PairDiff(a.contract, a.attempt, b.attempt, "NO_EVIDENCE", words, fields)
    # rows that one attempt never came to are no difference: it could not finish, or was asked less
    whole = a.state == b.state == "COMPLETE" and a.purpose == b.purpose
    differs = bool(found.kinds) or (whole and any(found.only_in))
    words = _words(a, b, fields, found, differs)
    return PairDiff(
        a.contract if a.contract == b.contract else f"{a.contract} / {b.contract}",
        a.attempt,
        b.attempt,
        "DIFFERS" if differs else "EQUAL",
        words,
        fields,
        found,
    )


def _words(
    a: AttemptSummary, b: AttemptSummary, fields: Changes, found: PairComparison, differs: bool
) -> str:
    total = sum(grades.get("logits", (0, 0))[1] for grades in found.counts.values())
    exact = sum(grades.get("logits", (0, 0))[0] for grades in found.counts.values())
    counted = f"logits equal in {exact} of {total} shared records"
    if any(found.only_in):
        counted += f" ({found.only_in[0]} only in a, {found.only_in[1]} only in b)"
    if a.execution_id != b.execution_id:
        keys = ", ".join(k for k in fields if k.startswith(("contract.", "digests.")))
        return f"two different contracts ({keys}): {counted}; no kernel is to blame"
    if a.platform != b.platform:
        return f"one contract on two platforms: {counted}"
    return counted if differs else f"{counted}; no difference seen, which is no verdict"


def _one(answers: Answers, kind: str, a: AttemptSummary, b: AttemptSummary) -> Diff:
    pair = attempt_diff(answers, a, b)
    return Diff(pair.a, pair.b, kind, pair.fields, (pair,))


def stack_diff(a: LoadedStack, b: LoadedStack, answers: Answers | None) -> Diff:
    """What two software stacks have otherwise, and the contracts that ran on both.

    Args:
        a: one.
        b: the other.
        answers: the open store; None where there is none.
    """
    fields = {f"{change.word}.{change.name}": (change.base, change.new)
              for change in stack_changes(a.stack, b.stack)}  # fmt: skip
    pairs: tuple[PairDiff, ...] = ()
    if answers is not None:
        certified = _certified(answers)
        left, right = ([s for s in certified if s.stack == x.digest] for x in (a, b))
        pairs = _newest_pairs(answers, left, right)
    return Diff(f"{a.name} ({a.digest})", f"{b.name} ({b.digest})", "stacks", fields, pairs)


def _newest_pairs(
    answers: Answers, left: list[AttemptSummary], right: list[AttemptSummary]
) -> tuple[PairDiff, ...]:
    """The newest attempt of every contract that both sides ran; a control may differ on purpose."""
    newest = [{s.execution_id: s for s in side} for side in (left, right)]
    controls = {k.execution_id for k in known_contracts(answers.store) if k.expect is not None}
    both = sorted((newest[0].keys() & newest[1].keys()) - controls)
    return tuple(attempt_diff(answers, newest[0][each], newest[1][each]) for each in both)


def _platform_diff(
    answers: Answers, left: list[AttemptSummary], right: list[AttemptSummary]
) -> Diff:
    pairs = _newest_pairs(answers, left, right)
    facts = queries.platforms(answers.store.con)
    fields = changes(facts[left[0].platform]["facts"], facts[right[0].platform]["facts"])
    return Diff(left[0].platform, right[0].platform, "platforms", fields, pairs)


def _attempts(answers: Answers, name: str) -> list[AttemptSummary]:
    everything = queries.summaries(answers.store.con)
    found = [s for s in everything if len(name) >= 4 and s.attempt.startswith(name)]
    if len(found) > 1:
        raise UsageError(
            "diff", name, "an unambiguous attempt id", f"{len(found)} that begin so", "more digits"
        )
    return found


def _platforms(answers: Answers, name: str) -> list[AttemptSummary]:
    wanted = name.removeprefix("sha256:")
    if len(wanted) < 4:
        return []
    certified = _certified(answers)
    return [s for s in certified if s.platform.removeprefix("sha256:").startswith(wanted)]


def _newest(answers: Answers, name: str) -> list[AttemptSummary]:
    return _certified(answers, contract=name)[-1:]


def _certified(answers: Answers, **about: str) -> list[AttemptSummary]:
    """Whole replays of certifications with the contract's own settings, in time."""
    found = queries.summaries(answers.store.con, **about)
    complete = [s for s in found if s.state == "COMPLETE" and s.purpose == "certify"]
    return [s for s in complete if s.is_reference]


def _fields(answers: Answers, a: AttemptSummary, b: AttemptSummary) -> Changes:
    bodies = {row.execution_id: row.body or {} for row in queries.contracts(answers.store.con)}
    platforms = queries.platforms(answers.store.con)
    left, right = bodies.get(a.execution_id, {}), bodies.get(b.execution_id, {})
    sections: dict[str, tuple[Any, Any]] = {
        "contract": (left.get("execution_part", {}), right.get("execution_part", {})),
        "digests": (left.get("digests", {}), right.get("digests", {})),
        "platform": tuple(platforms.get(s.platform, {}).get("facts", {}) for s in (a, b)),
        "effective": (a.effective, b.effective),
        "varied": (a.varied, b.varied),
    }
    found: Changes = {}
    for section, (x, y) in sections.items():
        found |= {f"{section}.{key}": values for key, values in changes(x, y).items()}
    return found


def changes(a: Mapping[str, Any], b: Mapping[str, Any], prefix: str = "") -> Changes:
    """Dotted keys whose values differ; tables are entered, an absent key is None."""
    found: Changes = {}
    for key in sorted(a.keys() | b.keys()):
        x, y = a.get(key), b.get(key)
        if isinstance(x, Mapping) and isinstance(y, Mapping):
            found |= changes(x, y, f"{prefix}{key}.")
        elif type(x) is not type(y) or x != y:
            found[f"{prefix}{key}"] = (x, y)
    return found


def diff_cells(diff: Diff) -> Cells:
    """One line per pair, per field of it that differs, and per kind of row that differs."""
    columns = ("contract", "a", "b", "result", "kind", "key", "value_a", "value_b", "records",
               "sample_id", "words")  # fmt: skip
    return columns, _cells(diff)


def _cells(diff: Diff) -> Iterator[list[Any]]:
    if diff.kind in ("platforms", "stacks"):
        for key, (x, y) in diff.fields.items():
            yield [None, diff.a, diff.b, None, "field", key, x, y, None, None, None]
    for pair in diff.pairs:
        head = [pair.contract, pair.a, pair.b, pair.result]
        yield [*head, "result", None, None, None, None, None, pair.words]
        for key, (x, y) in pair.fields.items():
            yield [*head, "field", key, x, y, None, None, None]
        for kind in pair.comparison.kinds if pair.comparison else ():
            first = kind.first
            yield [*head, "rows", f"{kind.arm}.{kind.stage}", None, None, kind.rows,
                   first.get("sample_id"), first.get("words")]  # fmt: skip


def print_diff(console: Console, diff: Diff) -> None:
    """For a person."""
    for line in _lines(diff):
        console.print(Text(line), soft_wrap=True)  # verbatim: brackets are evidence, no markup


def _lines(diff: Diff) -> Iterator[str]:
    yield f"{diff.kind}: a = {diff.a}, b = {diff.b}"
    for key, (x, y) in diff.fields.items():
        yield f"  {key}: {x!r} | {y!r}"
    if not diff.pairs:
        yield f"no contract ran on both {diff.kind}"
    for pair in diff.pairs:
        yield f"{pair.contract}: {pair.result}: {pair.words}"
        for kind in pair.comparison.kinds if pair.comparison else ():
            yield f"  {kind.rows} records of arm {kind.arm} differ first at {kind.stage}"
            yield from (f"    {line}" for line in difference_lines(kind.first))
