"""What an environment tells of itself, as a program: ``PYTHON -m fleet.replay.environment``.

A driver asks it before it sends replays there: is what they need there, and which software is it?
Knows no stack file and no contract.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from fleet.errors import EvidenceError
from fleet.replay.probe import read_platform
from fleet.replay.software import FACTS, requirements, software
from fleet.replay.task import Device, fitting
from fleet.replay.worker import devices_of_this_node

NEEDED = ("fleet.schedule.actors", "fleet.replay.run")
"""What a replay's process imports before anything of the contract's engine."""


def _faults() -> Iterator[str]:
    """Why no replay could begin here."""
    for name in NEEDED:
        try:
            importlib.import_module(name)
        except ImportError as error:
            yield str(error)


def told() -> dict[str, Any]:
    """All that a driver asks an environment before it sends a replay there."""
    here = [Device(**raw) for raw in devices_of_this_node()]
    devices = fitting(here, os.environ.get("FLEET_DEVICE") or None)
    platform = read_platform("stack", os.environ, (), devices[0].uuid if devices else None)
    facts = platform.facts
    unread = [name for name in platform.unreadable_facts() if name in (*FACTS, "packages")]
    faults = [*dict.fromkeys(_faults()), *(f"{n}: {facts[n]['why']}" for n in unread)]
    if faults:
        return {"faults": faults}
    return {"faults": [], "software": software(facts), "requires": requirements()}


if __name__ == "__main__":
    try:
        print(json.dumps(told()))
    except EvidenceError as error:
        sys.exit(str(error))
