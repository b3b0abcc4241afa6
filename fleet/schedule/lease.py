"""One campaign at a time writes to a landing from this machine: a lock that dies with its holder.

An advisory lock on a file in the landing folder (flock(2)): the kernel gives it up when the process
is gone, however it went, so no lease is ever stale and nothing has to expire. Over object storage
each machine has a mirror of its own; there the ledger's exclusive creation keeps two drivers off
one chain.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fleet.errors import CannotRunError

NAME = ".lease"


@contextmanager
def lease(landing: Path, campaign: str) -> Iterator[None]:
    """Hold it while the block lasts.

    Args:
        landing: a folder that exists.
        campaign: for whoever finds it taken.

    Raises:
        CannotRunError: another campaign holds it.
    """
    descriptor = os.open(landing / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _take(descriptor, landing)
        mine = {"campaign": campaign, "pid": os.getpid(), "host": socket.gethostname()}
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(mine | {"since_s": time.time()}).encode(), 0)
        yield
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _take(descriptor: int, landing: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = _holder(descriptor)
        raise CannotRunError(
            str(landing),
            "",
            "no other campaign that writes to it",
            holder,
            "wait for it, or pass another --landing and --store",
        ) from None


def _holder(descriptor: int) -> str:
    """Who has it, as far as it says."""
    try:
        told: dict[str, Any] = json.loads(os.pread(descriptor, 4096, 0))
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(told["since_s"]))
        return f"{told['campaign']}, process {told['pid']} on {told['host']}, since {since}"
    except (ValueError, KeyError, TypeError):
        return "one that is just starting"
