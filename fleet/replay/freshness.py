"""Proof that a process is fresh, taken and judged before anything is loaded.

Freshness is stored evidence, not a promise of the scheduler: what was imported at entry, the
nonce in the environment that the process was given, the death of the replay before it, seen from a
place that could have seen it alive, and on a GPU a device that nobody holds any more.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fleet.errors import AttemptVoid
from fleet.evidence.process import is_alive
from fleet.replay.gpu.watch import DeviceWatch, HostWatch
from fleet.replay.probe import AtEntry
from fleet.replay.task import ReplayTask


def observe(
    task: ReplayTask, entry: AtEntry, ids: dict[str, str], watch: HostWatch | DeviceWatch
) -> dict[str, Any]:
    """The evidence itself; waits a while for a device that is not free yet.

    Raises:
        EvidenceError: cannot-observe, when the replay before this one ran in another boot or
            PID namespace, or the device does not answer.
    """
    return {
        "nonce": entry.environment.get("FLEET_NONCE", ""),
        "imported_at_entry": list(entry.imported),
        "process_tree": list(entry.process_tree),
        "scheduler": ids,
        "predecessor": asdict(task.predecessor) if task.predecessor else None,
        "predecessor_gone": not is_alive(task.predecessor) if task.predecessor else None,
        "landed_before": _landed(task),
        "device": watch.wait_free(),
    }


def _landed(task: ReplayTask) -> list[str]:
    """Evidence that lies in the attempt's folder already: an attempt is never resumed."""
    return sorted(p.name for kind in ("part-*", "manifest*") for p in task.folder.glob(kind))


def require_fresh(task: ReplayTask, entry: AtEntry, freshness: dict[str, Any]) -> None:
    """Freshness is stored evidence, and it is judged before anything is loaded."""
    if entry.imported:
        raise AttemptVoid("not-fresh", f"imported before entry: {', '.join(entry.imported)}")
    if freshness["nonce"] != task.attempt:
        raise AttemptVoid("not-fresh", "the environment does not carry this attempt's nonce")
    if freshness["predecessor_gone"] is False:
        raise AttemptVoid("not-fresh", "the replay before this one still lives")
    if freshness["landed_before"]:
        names = ", ".join(freshness["landed_before"])
        raise AttemptVoid("not-fresh", f"there before the process: {names}; never resumed")
    if freshness["device"] and (why := freshness["device"]["not_free"]):
        raise AttemptVoid("device-not-free", f"{freshness['device']['uuid']}: {why}")


def require_given(entry: AtEntry, wanted: dict[str, str]) -> None:
    """Variables that must precede the interpreter are compared with what it was given."""
    for name, value in wanted.items():
        if entry.environment.get(name) != value:
            got = entry.environment.get(name)
            raise AttemptVoid(
                "setting-not-in-force", f"environment {name}: contract {value!r}, process {got!r}"
            )
