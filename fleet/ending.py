"""An exit code that is always ours: the command runs in a child process, which says its code.

Ray ends the process of a driver whose head or node is gone, by exit(1) and without a word to
Python, and 1 is the word for "differs" here. What ends without having said a code is no verdict.
Signals that were sent to this process alone are passed on; those of a terminal reach both. Knows
no verb.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from fleet.evidence.process import die_with_parent

PASSED_ON = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
SI_USER = 0
"""Up to here a process sent the signal; above it the kernel did (sigaction(2), si_code)."""
NO_VERDICT = 3


def in_a_child(work: Callable[[], int]) -> int:
    """Run ``work`` in a child process: the code that it returns, or 3 when it ended without one.

    The child dies with this process. To be called before any thread was started.
    """
    ours, theirs = os.pipe()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*PASSED_ON, signal.SIGCHLD})
    parent, child = os.getpid(), os.fork()
    if child == 0:
        os.close(ours)
        _run(work, parent, theirs, before)
    os.close(theirs)
    status = _wait(child)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    said = os.read(ours, 1)
    os.close(ours)
    return said[0] if said else _nothing_said(status)


def _run(
    work: Callable[[], int], parent: int, theirs: int, mask: set[int | signal.Signals]
) -> NoReturn:
    die_with_parent()
    if os.getppid() != parent:  # it was gone before that could hold
        os._exit(NO_VERDICT)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    code = work()
    try:
        sys.stdout.flush()
    except OSError:  # whoever read the answer has left
        code = NO_VERDICT
    os.write(theirs, bytes([code]))
    os.close(theirs)
    sys.exit(code)


def _wait(child: int) -> int:
    """Its exit status, as :func:`os.waitstatus_to_exitcode` gives it."""
    while True:
        info = signal.sigwaitinfo({*PASSED_ON, signal.SIGCHLD})
        if info.si_signo in PASSED_ON and info.si_code <= SI_USER:
            with suppress(ProcessLookupError):
                os.kill(child, info.si_signo)
        done, status = os.waitpid(child, os.WNOHANG)
        if done == child:
            return os.waitstatus_to_exitcode(status)


def _nothing_said(status: int) -> int:
    how = f"exit code {status}" if status >= 0 else f"signal {-status}"
    sys.stderr.write(
        f"error (no verdict): the process of this command ended without a word ({how}): Ray does "
        "that when its head, or the node of the driver, is gone\n"
        "  next: ray status; what landed stays, and the same command with the --campaign-id of "
        "this one goes on\n"
    )
    return NO_VERDICT
