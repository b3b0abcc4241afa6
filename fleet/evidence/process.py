"""Identity of a Linux process that survives pid reuse, read from /proc.

Boot id, PID namespace, pid and start tick (field 22 of /proc/<pid>/stat, proc(5)). A creation time
in seconds is not used: clocks step, ticks since boot do not.
"""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

from fleet.errors import EvidenceError
from fleet.evidence.manifest import Process

PROC = Path("/proc")
PR_SET_PDEATHSIG = 1


def identity(pid: int | None = None) -> Process:
    """Identity of a process of this PID namespace; of this very process by default.

    Raises:
        EvidenceError: cannot-observe, when /proc does not tell.
    """
    pid = os.getpid() if pid is None else pid
    tick = start_tick(pid)
    if tick is None:
        raise EvidenceError("cannot-observe", f"/proc tells nothing of process {pid}")
    return Process(boot_id(), pid_namespace(), pid, tick)


def start_tick(pid: int) -> int | None:
    """Start tick of a process, None when there is no such process (or it is a zombie)."""
    try:
        stat = (PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat[stat.rindex(")") + 2 :].split()
    return None if fields[0] in ("Z", "X") else int(fields[19])


def is_alive(process: Process) -> bool:
    """Does this very process still run?

    Raises:
        EvidenceError: cannot-observe, from another boot or PID namespace, where absence in /proc
            proves nothing.
    """
    if not can_observe(process):
        raise EvidenceError("cannot-observe", "another boot or PID namespace than the process")
    return start_tick(process.pid) == process.start_tick


def die_with_parent() -> None:
    """Have the kernel kill this process when the one that started it dies (prctl(2)).

    Raises:
        OSError: the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")


def can_observe(process: Process) -> bool:
    """Could this process have seen ``process`` alive?"""
    return (process.boot_id, process.pid_namespace) == (boot_id(), pid_namespace())


def boot_id() -> str:
    """The kernel's boot id: evidence that a tick belongs to this boot."""
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def pid_namespace() -> str:
    """``pid:[inode]`` of this process."""
    return os.readlink(PROC / "self/ns/pid")


def process_tree() -> list[int]:
    """Pids from this process's parent up to the first process of the namespace."""
    chain: list[int] = []
    pid = os.getppid()
    while pid > 0 and pid not in chain:
        chain.append(pid)
        try:
            stat = (PROC / str(pid) / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            break
        pid = int(stat[stat.rindex(")") + 2 :].split()[1])
    return chain


def given_environment() -> dict[str, str]:
    """The environment as the process was given it, before any import could change it."""
    raw = (PROC / "self/environ").read_bytes()
    pairs = (item.partition(b"=") for item in raw.split(b"\0") if b"=" in item)
    return {os.fsdecode(key): os.fsdecode(value) for key, _, value in pairs}
