"""What the ledger says of an attempt before it starts: all that its evidence is held against.

Knows no campaign and no verdict.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fleet.contract.vary import Own
from fleet.replay.task import ReplayTask
from fleet.schedule.plan import Slot


def planned_body(slot: Slot, task: ReplayTask, own: Own, night: str) -> dict[str, Any]:
    """The body of its *planned* entry.

    Args:
        slot: what it fills.
        task: what its process is given.
        own: the contract's own values of what may be varied.
        night: the one that its campaign is a unit's part of, or "".
    """
    more: dict[str, Any] = {} if task.trace is None else {"trace": asdict(task.trace)}
    more |= {"night": night} if night else {}
    if task.stack:
        more |= {"stack": {"name": task.stack["name"], "sha256": task.stack["digest"]}}
    more |= {"varied": task.varied, "own": asdict(own)} if task.vary else {}
    return more | {
        "slot": slot.index,
        "replay": slot.replay,
        "role": slot.role,
        "contract": slot.contract,
        "execution_id": task.execution_id,
        "purpose": task.purpose,
        "vary": list(task.vary),
        "node": task.node_label,
        "device": asdict(task.device) if task.device else None,
        "num_samples": len(task.sample_ids),
        "sample_ids": task.sample_ids,
        "arms": list(task.arms),
        "batch_size": task.contract["decoding"]["batch_size"],
    }
