"""Bring what an attempt left on its node to where the landing is, the manifest last.

Nothing to do for a landing folder. A replay ships once all is measured, so that no network code
runs beside the model; what a killed process left is shipped by whoever watched it. Knows no verdict
and no ledger: an attempt that could not be shipped FAILED, whatever its manifest says.
"""

from __future__ import annotations

import shutil
import sys
from contextlib import suppress
from pathlib import Path

from fleet.errors import AttemptFailed, UsageError
from fleet.evidence.remote import Remote
from fleet.replay.task import ReplayTask


def ship(task: ReplayTask) -> None:
    """Create every object of the attempt that is not there yet: rows and logs, then the manifest.

    Raises:
        AttemptFailed: landing-unreachable, or another process wrote into this attempt.
    """
    if task.remote is None or not task.folder.is_dir():
        return
    sys.stdout.flush()
    sys.stderr.flush()
    remote, under = Remote(task.remote), f"attempts/{task.attempt}/"
    try:
        there = remote.listing(under)
        for name in _in_order(task):
            if under + name not in there:
                remote.create(under + name, (task.folder / name).read_bytes())
    except (UsageError, FileExistsError) as error:
        raise AttemptFailed("landing-unreachable", str(error)) from error


def ship_left(task: ReplayTask) -> None:
    """The same for a process that is gone, as far as it can be done. What was shipped moves into
    the mirror where that is on this machine; what was not stays where it is."""
    try:
        ship(task)
    except AttemptFailed:
        return
    if task.remote is None or not task.folder.is_dir():
        return
    mirror = Path(task.landing).parents[1]
    if (mirror / "FORMAT.json").is_file():  # not on a node that is another machine
        (mirror / "attempts").mkdir(exist_ok=True)
        with suppress(OSError):  # a pull was faster: it is there
            task.folder.rename(mirror / "attempts" / task.attempt)
    shutil.rmtree(task.folder, ignore_errors=True)


def _in_order(task: ReplayTask) -> list[str]:
    names = [p.name for p in task.folder.iterdir() if p.is_file() and not p.name.startswith(".")]
    return sorted(names, key=lambda name: (name == "manifest.json", name))
