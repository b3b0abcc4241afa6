"""One contract on two software stacks: does it keep its bits, and where does a change start?

Two verdicts, one a stack, each certified by itself; their roots are compared grade by grade. A
difference between stacks is no verdict on either. What could explain it stays a candidate until a
counterfactual shows it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from fleet.contract.model import GRADES
from fleet.judge.compare import PairComparison
from fleet.judge.sets import grades_up_to
from fleet.judge.stages import BY_NAME, earliest, localise
from fleet.judge.tracing.culprit import Culprit
from fleet.judge.tracing.proof import is_one_operation
from fleet.judge.tracing.verdict import layers_of
from fleet.judge.verdict import Verdict

Word = Literal["KEPT", "CHANGED", "REGRESSED", "FIXED", "STILL_FAIL", "NOT_COVERED"]

CODES: Mapping[Word, int] = {
    "KEPT": 0, "FIXED": 0, "CHANGED": 1, "REGRESSED": 1, "STILL_FAIL": 1, "NOT_COVERED": 3,
}  # fmt: skip
BROKE: tuple[Word, ...] = ("CHANGED", "REGRESSED")
"""Words whose cause is looked for: the base had one set of bits, and the new stack has not."""

NOT_TODAY = ("STALE", "UNTESTED")
"""States of a PASS that does not stand, or never was."""

_FAILS: Mapping[tuple[str, str], Word] = {
    ("PASS", "FAIL"): "REGRESSED",
    ("FAIL", "PASS"): "FIXED",
    ("FAIL", "FAIL"): "STILL_FAIL",
}


@dataclass(frozen=True)
class Moved:
    """``grade``: kept up to it, or changed from it up; None for words about no bits."""

    word: Word
    grade: str | None
    reason: str

    def in_words(self) -> str:
        """``CHANGED(tokens)``."""
        return f"{self.word}({self.grade})" if self.grade else self.word


def moved(base: Verdict | None, new: Verdict | None) -> Moved:
    """The answer for one contract. None: nothing was ever certified there."""
    why = [w for side, v in (("base", base), ("new", new)) if (w := _uncovered(side, v))]
    if why or base is None or new is None:
        return Moved("NOT_COVERED", None, "; ".join(why))
    if (base.execution_id, base.vary, base.traced) != (new.execution_id, new.vary, new.traced):
        return Moved("NOT_COVERED", None, "the two sides are of two contracts or claims")
    word = _FAILS.get((base.verdict, new.verdict))
    if word is not None:
        sides = [f"{s} {v.reason}" for s, v in (("base", base), ("new", new)) if _fails(v)]
        return Moved(word, None, "; ".join(sides))
    return _roots(base, new)


def _fails(verdict: Verdict) -> bool:
    return verdict.verdict == "FAIL"


def _uncovered(side: str, verdict: Verdict | None) -> str | None:
    if verdict is None:
        return f"{side} UNTESTED"
    if verdict.state in NOT_TODAY:
        return f"{side} {verdict.state}"
    return f"{side} {verdict.reason}" if verdict.verdict == "VOID" else None


def _roots(base: Verdict, new: Verdict) -> Moved:
    """Both PASS: the first grade, ascending, at which their roots part."""
    required = max(base.required_grade, new.required_grade, key=GRADES.index)
    kept: str | None = None
    for grade in GRADES:
        asked = grade in grades_up_to(required)
        one, other = (v.roots.get(grade, []) for v in (base, new))
        if len(one) != 1 or len(other) != 1:
            if asked:
                return Moved("NOT_COVERED", None, f"no single root of the grade {grade}")
            break
        if one != other and asked:
            return Moved("CHANGED", grade, f"both PASS, with other bits from {grade} up")
        if one != other:
            words = f"both PASS, same root at {kept}; at {grade}, which is not required, they part"
            return Moved("KEPT", kept, words)
        kept = grade
    return Moved("KEPT", kept, f"both PASS, same root at {kept}")


def exit_code(words: Iterable[Word]) -> int:
    """1 over 3 over 0; nothing at all is not covered."""
    codes = {CODES[word] for word in words}
    return 1 if 1 in codes else max(codes, default=3)


@dataclass(frozen=True)
class Start:
    """Where a change starts. ``layer`` is None when it is not localised to one of ``layers``."""

    stage: str
    layer: int | None
    layers: tuple[int, ...]
    words: str


def start(
    found: PairComparison,
    weights: Mapping[str, tuple[str | None, str | None]],
    settings_differ: bool,
    culprit: Culprit | None = None,
) -> Start | None:
    """The earliest stage that differs between a replay of each stack; None where none does.

    Args:
        found: the rows of the two.
        weights: weight stage -> its digest on both sides.
        settings_differ: do the settings that were in force?
        culprit: what the traces of both name.
    """
    stages = {kind.stage for kind in found.kinds if kind.broken or not kind.same_input}
    stages |= {name for name, (a, b) in weights.items() if a and b and a != b and name in BY_NAME}
    if not stages:
        return None
    settings = {"settings"} if settings_differ else set()
    _, layers = localise(stages | settings)
    first = earliest(stages) or ""
    words = BY_NAME[first].words
    if first == "logits" and culprit is not None:
        layers, words = layers_of(culprit), f"{culprit.path or 'the model'}: {words}"
    if layers == (3,) and not (first == "logits" and _is_kernel(culprit)):
        # what runs at load, and in a module, is as much the framework's code as a kernel
        layers = (2, 3)
    layer = layers[0] if len(layers) == 1 else None
    return Start(first, layer, layers, words)


def _is_kernel(culprit: Culprit | None) -> bool:
    """Was one frozen input seen to get other outputs, in one process or from one operation?"""
    return culprit is not None and (culprit.kind == "race" or is_one_operation(culprit))
