"""Ctrl-C, SIGTERM and a hang-up, held back while the driver writes what it did.

A signal can come between any two lines. Were it delivered between a plan and its end, the ledger
would have a gap; so it is let through only where the driver waits for something long, and where
the code around the wait gives the attempt its end. Knows no ledger.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Holds signals while it is entered; outside the main thread there are none to hold."""

    def __init__(self) -> None:
        self._came: list[int] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        self._hold()
        return self

    def __exit__(self, *_: object) -> None:
        self._release()

    @contextmanager
    def let_through(self) -> Iterator[None]:
        """Deliver what was held, and whatever comes inside.

        Raises:
            KeyboardInterrupt: or whatever the handler of the signal raises.
        """
        try:
            self._release()
            yield
        finally:
            self._hold()

    def _hold(self) -> None:
        if threading.current_thread() is threading.main_thread() and not self._before:
            # An ignored signal (nohup) stays so: held, it would push out one that is meant.
            held = [n for n in SIGNALS if signal.getsignal(n) is not signal.SIG_IGN]
            self._before = {n: signal.signal(n, self._note) for n in held}

    def _note(self, number: int, _: object) -> None:
        self._came.append(number)

    def _release(self) -> None:
        before, self._before = self._before, {}
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        came, self._came = self._came, []
        if came:
            signal.raise_signal(came[0])
