"""The call tree of one step, opened along the path to one call, everything beside it in counts.

As large as the path is deep, whatever the model: siblings in a row that show the same are one line.
Words are those of :data:`fleet.judge.tracing.calls.WORDS`, over all replays at once. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from fleet.evidence.trace import Call
from fleet.judge.tracing.calls import WORDS, Aligned, Key, ancestors, key_of, place_of

MOST_LINES = 24
"""Of siblings on one level, and of steps: what is further away is told as one line."""


@dataclass(frozen=True)
class Branch:
    """One call on the path, or siblings in a row: as many as ``calls``, from ``path`` to ``last``.

    ``word``: what they show, "" for siblings of several kinds. ``inside``: word -> calls below it.
    ``lines``: what it called itself, of calls on the path.
    """

    path: str
    last: str
    class_name: str
    calls: int
    word: str
    inside: dict[str, int]
    on_path: bool = False
    lines: tuple[Branch, ...] = ()


@dataclass(frozen=True)
class Steps:
    """Steps in a row whose calls show the same counts."""

    first: int
    last: int
    words: dict[str, int]


@dataclass(frozen=True)
class CallTree:
    """One batch and step of an arm. ``elsewhere``: calls of the step that the replay shown here did
    not make. ``steps``: all steps of that batch."""

    arm: str
    batch: int
    step: int
    sample_ids: tuple[str, ...]
    replays: int
    root: Branch
    elsewhere: int
    steps: tuple[Steps, ...]

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        return asdict(self)


def call_tree(aligned: Aligned, wanted: Sequence[Key]) -> CallTree | None:
    """The tree around the first of these calls that some replay made; None when none did."""
    made = (
        (calls[key], replay)
        for key in wanted
        for replay, calls in enumerate(aligned.by_key)
        if key in calls
    )
    found = next(made, None)
    return None if found is None else _Tree(aligned, *found).whole()


class _Tree:
    """Of one replay; what others made differently is in the words."""

    def __init__(self, aligned: Aligned, target: Call, replay: int) -> None:
        self._aligned, self._target = aligned, target
        group = (target.arm, target.batch)
        self._group = [key for key in aligned.keys if key[:2] == group]
        self._words = {key: aligned.word(key) for key in self._group}
        here = (*group, target.step)
        mine = [c for c in aligned.by_key[replay].values() if key_of(c)[:3] == here]
        self._calls = sorted(mine, key=place_of)
        self._path = {target.begin}
        self._path |= {c.begin for c in ancestors(target, aligned.begun[replay])}
        self._children: dict[int, list[Call]] = {}
        for call in self._calls:
            self._children.setdefault(call.parent, []).append(call)
        self._below: dict[int, Counter[str]] = {}
        for call in reversed(self._calls):  # a call begins before those that it makes
            own = self._below.setdefault(call.begin, Counter())
            above = self._below.setdefault(call.parent, Counter())
            above.update(own)
            above[self._word(call)] += 1

    def _word(self, call: Call) -> str:
        return self._words[key_of(call)]

    def whole(self) -> CallTree:
        target = self._target
        here = [key for key in self._group if key[2] == target.step]
        first = next(c for c in self._calls if c.begin in self._path)
        return CallTree(
            arm=target.arm,
            batch=target.batch,
            step=target.step,
            sample_ids=target.sample_ids,
            replays=len(self._aligned.by_key),
            root=self._opened(first),
            elsewhere=len(here) - len(self._calls),
            steps=tuple(self._steps()),
        )

    def _opened(self, call: Call) -> Branch:
        lines = tuple(self._lines(self._children.get(call.begin, ())))
        inside = _counted(self._below[call.begin])
        word = self._word(call)
        return Branch(call.path, call.path, call.class_name, 1, word, inside, True, lines)

    def _lines(self, siblings: Sequence[Call]) -> Iterator[Branch]:
        """The one on the path by itself; of all others, those in a row that show the same."""
        runs = [
            list(run)
            for _, run in groupby(siblings, lambda c: (self._word(c), c.begin in self._path))
        ]
        for run in _nearest(runs, next((i for i, r in enumerate(runs) if self._is_path(r)), 0)):
            yield self._opened(run[0]) if self._is_path(run) else self._folded(run)

    def _is_path(self, run: Sequence[Call]) -> bool:
        return len(run) == 1 and run[0].begin in self._path

    def _folded(self, run: Sequence[Call]) -> Branch:
        words = {self._word(call) for call in run}
        inside: Counter[str] = Counter()
        for call in run:
            inside.update(self._below[call.begin])
        names = {call.class_name for call in run}
        name = names.pop() if len(names) == 1 else ""
        word = words.pop() if len(words) == 1 else ""
        return Branch(run[0].path, run[-1].path, name, len(run), word, _counted(inside))

    def _steps(self) -> Iterator[Steps]:
        by_step: dict[int, Counter[str]] = {}
        for key in self._group:
            by_step.setdefault(key[2], Counter())[self._words[key]] += 1
        rows = sorted(by_step.items())
        runs = [list(run) for _, run in groupby(rows, lambda row: row[1])]
        at = next(i for i, run in enumerate(runs) if self._target.step in [step for step, _ in run])
        for run in _nearest(runs, at):
            total: Counter[str] = Counter()
            for _, words in run:
                total.update(words)
            yield Steps(run[0][0], run[-1][0], _counted(total))


def _nearest(runs: Sequence[list[Any]], at: int) -> list[list[Any]]:
    """Those around one of them; what is further away is one run before and one behind."""
    first, end = max(0, at - MOST_LINES // 2), at + MOST_LINES // 2 + 1
    before = [each for run in runs[:first] for each in run]
    behind = [each for run in runs[end:] for each in run]
    return [*([before] if before else []), *runs[first:end], *([behind] if behind else [])]


def _counted(words: Counter[str]) -> dict[str, int]:
    return {word: words[word] for word in WORDS if words[word]}
