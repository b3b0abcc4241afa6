"""What an earlier driver of a campaign left: slots that are done, and attempts without an end.

A restarted driver goes on with the missing slots and never inside a replay: an attempt that was
open is given up, once its process is gone, and its slot is tried anew. Knows no verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fleet.errors import CannotRunError, EvidenceError, UsageError
from fleet.evidence.landing import Landing
from fleet.evidence.ledger import Entry, Ledger, ends
from fleet.evidence.manifest import Manifest, Process
from fleet.evidence.states import Cause, State
from fleet.replay.task import TraceOrder
from fleet.schedule.launcher import Launcher
from fleet.schedule.plan import Slot, Work

DRIVER_GONE = Cause("driver-gone", "the driver of this attempt ended before it did")


class Key(NamedTuple):
    """What a slot is for, whatever its number in the plan."""

    contract: str
    vary: tuple[str, ...]
    replay: int
    purpose: str


class Done(NamedTuple):
    """An attempt whose slot is not tried again."""

    attempt: str
    state: State
    cause: Cause | None


def key_of(slot: Slot, purpose: str) -> Key:
    """Of a planned slot. ``purpose``: of the campaign."""
    return Key(slot.contract, slot.vary, slot.replay, slot.work.purpose if slot.work else purpose)


def done(landing: Landing, entries: Sequence[Entry]) -> dict[Key, Done]:
    """Slots with an accepted attempt; repeats of a frozen call are no slots of a plan."""
    found: dict[Key, Done] = {}
    for body, end in _accepted(entries):
        if not (body.get("trace") or {}).get("targets"):
            key = Key(body["contract"], tuple(body["vary"]), body["replay"], body["purpose"])
            found[key] = _done(landing, end)
    return found


def repeats(landing: Landing, entries: Sequence[Entry]) -> list[tuple[Slot, Done]]:
    """Repeats of a frozen call that are there: what follows from them need not run again."""
    found: list[tuple[Slot, Done]] = []
    for body, end in _accepted(entries):
        if not body.get("trace"):
            continue
        order = TraceOrder.from_json(body["trace"])
        work = Work(body["purpose"], tuple(body["sample_ids"]), tuple(body["arms"]), order)
        if work.repeats_a_call:
            slot = Slot(body["slot"], body["contract"], body["replay"], body["role"], work)
            found.append((slot, _done(landing, end)))
    return found


def _accepted(entries: Sequence[Entry]) -> Iterator[tuple[Mapping[str, Any], Entry]]:
    """What was planned of each accepted attempt, and the entry that accepted it."""
    planned = {e.attempt: e.body for e in entries if e.kind == "planned"}
    for attempt, end in ends(list(entries)):
        if end is not None and end.kind == "accepted":
            yield planned[attempt], end


def _done(landing: Landing, end: Entry) -> Done:
    return Done(end.attempt, end.body["state"], _cause(landing, end.attempt))


def _cause(landing: Landing, attempt: str) -> Cause | None:
    try:
        return Manifest.from_bytes(landing.manifest(attempt).read_bytes()).cause
    except (OSError, EvidenceError):
        return None


def require_same(entries: Sequence[Entry], contracts: Iterable[Mapping[str, Any]]) -> None:
    """An id names one plan: what goes on under it is of the same contracts.

    Args:
        entries: the chain of that id.
        contracts: as the campaign entry would have them now.

    Raises:
        UsageError: they are others.
    """
    opened = next((e for e in entries if e.kind == "campaign"), None)
    if opened is None:
        return
    then, now = (
        {c["name"]: c["execution_id"] for c in each}
        for each in (opened.body["contracts"], contracts)
    )
    if then != now:
        odd = sorted({n for n in then.keys() | now.keys() if then.get(n) != now.get(n)})
        raise UsageError(
            "command line",
            "--campaign-id",
            f"the contracts that {opened.campaign} was opened with ({', '.join(sorted(then))})",
            f"others: {', '.join(odd)}",
            "another --campaign-id",
        )


def give_up_open(
    ledger: Ledger, entries: Sequence[Entry], launcher: Launcher, deadline_s: float
) -> None:
    """End what the earlier driver left without an end.

    Raises:
        CannotRunError: one of its processes is still there, so its unit is not free.
    """
    planned = {e.attempt: e for e in entries if e.kind == "planned"}
    started = {e.attempt: e for e in entries if e.kind == "started"}
    gone = {e.attempt for e in entries if e.kind == "gone"}
    for attempt, end in ends(list(entries)):
        if end is not None:
            continue
        if attempt in started and attempt not in gone:
            process = Process(**started[attempt].body["process"])
            node = planned[attempt].body["node"]
            seen = launcher.wait_gone(node, process, deadline_s)
            if seen is False:
                raise CannotRunError(
                    f"campaign {ledger.campaign}",
                    attempt,
                    "the process of the earlier driver to be gone",
                    f"process {process.pid} lives on {node}",
                    f"end it, then the same command again (waited {deadline_s:g} s)",
                )
            ledger.append("gone", attempt, seen_alive=False, gone=bool(seen), watcher={})
        there, cause = ledger.landing.landed(attempt), DRIVER_GONE.to_json()
        ledger.append("given_up", attempt, state="LOST", cause=cause, landed=there)
