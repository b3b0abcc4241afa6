"""Is there enough sound evidence in a campaign for a PASS, and if not, why not.

Keeps law 1 (not enough evidence is VOID, a word that never means "differs"), law 2 (a VOID attempt
is not retried away; FAILED and LOST are) and law 6 (every replay its own process). Knows nothing of
what the replays agree on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fleet.contract.model import Require
from fleet.evidence.states import RETRIED, Cause
from fleet.evidence.summary import AttemptSummary
from fleet.judge.bounds import fewest_replays
from fleet.judge.retracted import restored
from fleet.judge.sets import in_order, is_good, objection, occasion


@dataclass(frozen=True)
class Evidence:
    """A set's certification replays by campaign (a night, where the claim is about several units),
    and which of them are no fresh process.

    ``used_before``: attempt -> the earlier good replay of the same process.
    """

    require: Require
    by_campaign: dict[str, list[AttemptSummary]]
    used_before: dict[str, AttemptSummary]

    @classmethod
    def of(
        cls,
        attempts: Sequence[AttemptSummary],
        siblings: Sequence[AttemptSummary],
        require: Require,
    ) -> Evidence:
        """Sort the evidence once.

        Args:
            attempts: the whole set that is judged.
            siblings: attempts of the same contract outside the set (no platform known); they are
                held against their campaign.
            require: what is asked.
        """
        by_campaign: dict[str, list[AttemptSummary]] = {}
        for s in in_order([*attempts, *siblings]):
            if s.purpose == "certify":
                by_campaign.setdefault(occasion(s, require), []).append(s)
        return cls(require, by_campaign, _used_before(attempts, require))

    def parts(self, campaign: str) -> list[str]:
        """The campaigns that it is made of, each with its own controls."""
        return list(dict.fromkeys(s.campaign for s in self.by_campaign.get(campaign, ())))

    @property
    def newest_first(self) -> list[str]:
        """Campaigns, the latest first."""
        return list(reversed(self.by_campaign))

    def shortfall(self, campaign: str) -> Cause | None:
        """What a campaign lacks for a PASS, or None when it lacks nothing."""
        mine = self.by_campaign.get(campaign, [])
        if not mine:
            return Cause("missing-evidence", "the campaign holds no certification replay")
        unsound = _void(mine) or _offered_twice(mine) or self._not_fresh(mine)
        good = [s for s in mine if is_good(s, self.require)]
        short = _too_few(mine, good, self.require) or _not_varied(good, self.require)
        return unsound or short or self._doubted(good)

    def _doubted(self, good: Sequence[AttemptSummary]) -> Cause | None:
        """A PASS at *modules* is about calls that were watched; watching must have moved no bit. It
        is no reason to leave such a replay out of a FAIL: one that races shows other bits without
        hooks too."""
        if self.require.grade != "modules":
            return None
        doubts = ((s, s.trace.get("doubt", "it is not told")) for s in good)
        found = next(((s, doubt) for s, doubt in doubts if doubt), None)
        return found and Cause("cannot-observe", f"{_name(found[0])}, watched calls: {found[1]}")

    def _not_fresh(self, mine: Sequence[AttemptSummary]) -> Cause | None:
        for s in mine:
            first = self.used_before.get(s.attempt)
            if first is not None:
                return Cause("not-fresh", f"{_name(s)} ran in the process of {_name(first)}")
        return None


def _used_before(attempts: Sequence[AttemptSummary], require: Require) -> dict[str, AttemptSummary]:
    """The later of two replays of one process is not fresh, whichever campaign the first is of, and
    whether or not the first was retracted."""
    seen: dict[object, AttemptSummary] = {}
    used: dict[str, AttemptSummary] = {}
    for s in in_order(restored(attempts)):
        if is_good(s, require) and seen.setdefault(s.process, s) is not s:
            used[s.attempt] = seen[s.process]
    return used


def _void(mine: Sequence[AttemptSummary]) -> Cause | None:
    """One VOID attempt voids its campaign: it is not retried, not outvoted, and not retracted."""
    for s in mine:
        if s.state == "VOID":
            cause = s.cause or Cause("missing-evidence", "VOID without a cause")
            return Cause(cause.code, f"{_name(s)}: {cause.text}", cause.details)
    return None


def _offered_twice(mine: Sequence[AttemptSummary]) -> Cause | None:
    twice = [attempt for attempt, n in Counter(s.attempt for s in mine).items() if n > 1]
    text = f"attempt {twice[0]} is offered as two replays" if twice else ""
    return Cause("duplicate-attempt", text) if twice else None


def _too_few(
    mine: Sequence[AttemptSummary], good: Sequence[AttemptSummary], require: Require
) -> Cause | None:
    per_unit = Counter(s.unit for s in good)
    most, needed = max(per_unit.values(), default=0), fewest_replays(require)
    if require.scope == "same-unit" and most >= needed:
        return None
    if require.scope == "same-class" and len(good) >= needed and len(per_unit) > 1:
        return None
    cause = next(_causes(mine, good, require), None)
    if cause is not None:
        return cause
    if require.scope == "same-class" and len(per_unit) == 1:
        return Cause("missing-evidence", "same-class needs replays on two units, all ran on one")
    had = f"{most} on one unit" if require.scope == "same-unit" else str(len(good))
    why = f" for a process bound of {require.process_bound:g}" if needed > require.replays else ""
    return Cause("missing-evidence", f"{needed} complete replays required{why}, {had}")


def _not_varied(good: Sequence[AttemptSummary], require: Require) -> Cause | None:
    """A varied set has its reference and all of its varied replays: one unit must have both, for
    replays that took the same values prove no more than an exact repeat."""
    if not any(s.vary for s in good):
        return None
    references = {s.unit for s in good if s.is_reference}
    varied = Counter(s.unit for s in good if not s.is_reference)
    needed = fewest_replays(require) - 1
    if any(varied[unit] >= needed for unit in references):
        return None
    most = max(varied.values(), default=0)
    had = f"{len(references)} units with a reference, at most {most} varied on one unit"
    why = f"a reference and {needed} varied replays required, {had}"
    return Cause("missing-evidence", why)


def _causes(
    mine: Sequence[AttemptSummary], good: Sequence[AttemptSummary], require: Require
) -> Iterator[Cause]:
    """Causes of slots that no good attempt filled, then of any attempt that is not good."""
    filled = {_slot(s) for s in good}
    for s in sorted(mine, key=lambda s: _slot(s) in filled):
        cause = objection(s, require)
        if cause is not None and (_slot(s) not in filled or s.state not in RETRIED):
            yield Cause(cause.code, f"{_name(s)}: {cause.text}", cause.details)


def _slot(summary: AttemptSummary) -> tuple[str, int]:
    return summary.campaign, summary.slot


def _name(summary: AttemptSummary) -> str:
    return f"slot {summary.slot} (attempt {summary.attempt})"
