"""``fleet replay``: one sample of one arm in fresh processes; a difference, never a verdict.

The attempts land with purpose *replay*: their agreement never helps a PASS, and a difference with
equal inputs and settings stays evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fleet.errors import UsageError
from fleet.evidence.summary import AttemptSummary
from fleet.report.answers import Answers
from fleet.report.diff import Diff, PairDiff, attempt_diff
from fleet.schedule.certify import Planned, Request, run_request
from fleet.schedule.launcher import Launcher
from fleet.schedule.places import Places
from fleet.store import queries


def check_sample(planned: Planned, sample: str, arm: str) -> None:
    """The contract has this sample and this arm.

    Raises:
        UsageError: naming those it has.
    """
    resolved = planned.named[0]
    arms = sorted(resolved.loaded.contract.arms)
    if arm not in arms:
        raise UsageError(
            str(resolved.loaded.path), "--arm", f"one of {', '.join(arms)}", repr(arm), "name one"
        )
    if sample not in resolved.dataset.ids:
        first = ", ".join(resolved.dataset.ids[:3])
        raise UsageError(
            str(resolved.dataset.file), "--sample", f"a sample id ({first}, ...)", repr(sample),
            "name one",
        )  # fmt: skip


def newest_certified(
    known: Sequence[AttemptSummary], replayed: Sequence[AttemptSummary]
) -> AttemptSummary | None:
    """The newest exact repeat that certified the same contract on the same platform: a sample is
    held against it too, because a difference from it is evidence as well. The settings of a set
    that varies something are told without it, so its reference is none to compare with."""
    for summary in replayed[:1]:
        same = [
            s for s in known
            if s.purpose == "certify" and s.state == "COMPLETE" and not s.vary
            and (s.execution_id, s.platform) == (summary.execution_id, summary.platform)
        ]  # fmt: skip
        return max(same, key=lambda s: s.accepted_at_s or 0.0, default=None)
    return None


def replay_one(
    request: Request,
    planned: Planned,
    places: Places,
    launcher: Launcher,
    say: Callable[[str], None],
) -> Diff:
    """Run it in as many fresh processes as the contract has replays; compare all with the first,
    and the first with the newest certified replay. One alone says nothing of the contract, and a
    difference from the certified rows all the same."""
    campaign, ends = run_request(request, planned, places, launcher, say)
    with places.open_store() as store:
        answers = Answers(store, places.open_landing())
        landed = queries.summaries(store.con, campaign=campaign.id)
        complete = [s for s in landed if s.state == "COMPLETE"]
        pairs = [attempt_diff(answers, complete[0], other) for other in complete[1:]]
        certified = newest_certified(queries.summaries(store.con), complete)
        pairs += [attempt_diff(answers, certified, complete[0])] if certified else []
    if len(complete) < 2:
        ended = "; ".join(f"{e.attempt} {e.state} {e.cause}" for e in ends if e.cause)
        pairs.insert(0, PairDiff(request.contracts[0], "", "", "NO_EVIDENCE", ended))
    return Diff(pairs[0].a, pairs[0].b, "replay", {}, tuple(pairs))
