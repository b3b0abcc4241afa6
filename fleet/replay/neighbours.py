"""Busy neighbours of a replay: child processes that keep the host's cores and memory at work.

They are started after the entry facts and the model, so that no evidence of freshness meets them,
and are gone before the manifest is written. Told is what the kernel accounts to them, never what
they were asked for. Knows no engine; loads no device.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fleet.errors import AttemptVoid

BLOCK_BYTES = 4 * 2**20
"""What a neighbour copies and hashes again and again: more than a core's own caches hold."""

PROGRAM = """
import ctypes, hashlib, os, sys
ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL: prctl(2)
parent, block, told = int(sys.argv[1]), bytearray(int(sys.argv[2])), False
while os.getppid() == parent:  # one whose parent died before the line above would miss the signal
    hashlib.sha256(bytes(block)).digest()
    if not told:
        told = bool(os.write(1, b"."))
"""


@dataclass(frozen=True)
class Neighbours:
    """The processes, with when and at how many CPU seconds each the replay began beside them."""

    children: list[subprocess.Popen[bytes]]
    begun_s: float
    at_begin_s: float

    def counters(self) -> dict[str, int | float]:
        """How many still run, and CPU seconds of all of them since the replay began beside them."""
        return {
            "running": sum(child.poll() is None for child in self.children),
            "cpu_s": round(_cpu_s(self.children) - self.at_begin_s, 6),
            "wall_s": round(time.monotonic() - self.begun_s, 6),
        }


@contextmanager
def neighbours(number: int) -> Iterator[Neighbours]:
    """So many of them, all at work when the block is entered and gone when it is left.

    Raises:
        AttemptVoid: one of them did not come to work.
    """
    children: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(number):
            children.append(_start())
        for child in children:
            _wait_for_work(child)
        yield Neighbours(children, time.monotonic(), _cpu_s(children))
    finally:
        for child in children:
            child.kill()
        for child in children:
            child.communicate()


def _start() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-I", "-S", "-c", PROGRAM, str(os.getpid()), str(BLOCK_BYTES)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)


def _wait_for_work(child: subprocess.Popen[bytes]) -> None:
    assert child.stdout is not None
    if not child.stdout.read(1):
        raise AttemptVoid("stress-not-applied", f"load: a neighbour ended ({child.wait()})")


def _cpu_s(children: list[subprocess.Popen[bytes]]) -> float:
    """CPU seconds of all of them, in the kernel's nanoseconds: a short generation is shorter than
    the ticks of /proc. clock_getcpuclockid(3)."""
    library, total = ctypes.CDLL(None), 0.0
    for child in children:
        clock = ctypes.c_int()
        code = library.clock_getcpuclockid(child.pid, ctypes.byref(clock))
        try:
            total += 0.0 if code else time.clock_gettime(clock.value)
        except OSError:  # an unseen one burned nothing, as far as can be told
            continue
    return total
