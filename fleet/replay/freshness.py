"""Proof that a process is fresh, and its unit free, taken and judged before anything is loaded.

Freshness is stored evidence, not a promise of the scheduler: what was imported at entry, the
nonce in the environment that the process was given, the death of the replay before it, seen from a
place that could have seen it alive, and on a GPU a device that nobody holds any more and that this
process has not touched. Order: predecessor gone < token < device free < first use of the device.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fleet.errors import AttemptVoid
from fleet.evidence.process import is_alive
from fleet.replay.gpu.watch import DeviceWatch, HostWatch, since_boot_s
from fleet.replay.probe import AtEntry
from fleet.replay.task import ReplayTask


def at_entry(task: ReplayTask, entry: AtEntry, ids: dict[str, str]) -> dict[str, Any]:
    """What can be told before anything is prepared; the replay before this one may still live.

    Raises:
        EvidenceError: cannot-observe, when that one ran in another boot or PID namespace.
    """
    return {
        "nonce": entry.environment.get("FLEET_NONCE", ""),
        "imported_at_entry": list(entry.imported),
        "process_tree": list(entry.process_tree),
        "scheduler": ids,
        "predecessor": asdict(task.predecessor) if task.predecessor else None,
        "predecessor_seen_alive": is_alive(task.predecessor) if task.predecessor else None,
        "landed_before": _landed(task),
    }


def before_loading(task: ReplayTask, watch: HostWatch | DeviceWatch, token: str) -> dict[str, Any]:
    """What must hold at the driver's token; waits a while for a device that is not free yet.

    Raises:
        EvidenceError: cannot-observe, when the replay before this one ran in another boot or
            PID namespace, or the device does not answer.
    """
    return {
        "token": token,
        "token_at_s": since_boot_s(),
        "device_in_use_before_token": watch.in_use_here(),
        "predecessor_gone": not is_alive(task.predecessor) if task.predecessor else None,
        "device": watch.wait_free(),
    }


def _landed(task: ReplayTask) -> list[str]:
    """Evidence that lies in the attempt's folder already: an attempt is never resumed."""
    return sorted(p.name for kind in ("part-*", "manifest*") for p in task.folder.glob(kind))


def require_fresh(task: ReplayTask, freshness: dict[str, Any]) -> None:
    """The process itself: judged before it prepares anything."""
    if freshness["imported_at_entry"]:
        names = ", ".join(freshness["imported_at_entry"])
        raise AttemptVoid("not-fresh", f"imported before entry: {names}")
    if freshness["nonce"] != task.attempt:
        raise AttemptVoid("not-fresh", "the environment does not carry this attempt's nonce")
    if freshness["landed_before"]:
        names = ", ".join(freshness["landed_before"])
        raise AttemptVoid("not-fresh", f"there before the process: {names}; never resumed")


def require_free(freshness: dict[str, Any]) -> None:
    """The unit: judged before anything is loaded, and before the device is used."""
    if freshness["device_in_use_before_token"]:
        raise AttemptVoid("not-fresh", "preparing used the device, before the token for it")
    if freshness["predecessor_gone"] is False:
        raise AttemptVoid("not-fresh", "the replay before this one still lives")
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
