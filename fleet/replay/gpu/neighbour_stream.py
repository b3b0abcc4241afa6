"""A busy neighbour on the replay's own device: a thread that keeps a stream of its own at work.

Another process there would void the replay (see ``watch``); a stream of this process shares the
multiprocessors and the memory's bandwidth with it just as well. Stream, cuBLAS handle and modes are
a thread's own in torch, tensors are made once, and no generator is drawn from: nothing that is read
back at the end moves. Told is what the device's events timed, never what was enqueued. Knows no
engine, and of torch only what :func:`on_the_device` hands it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from fleet.errors import AttemptVoid

DEPTH = 8
"""Launches in the queue at most. By the peak rates of an H200 one of them takes 0.8 ms, and a
replay that computes in Python gives the interpreter away every 5 ms (sys.setswitchinterval): the
device has work until the thread comes back, and what waits for the whole device waits 6 ms."""

ROUNDS = 16
"""Products and copies of one launch, in turn: arithmetic, then bandwidth."""

SIDE = 2048
"""Of the square matrices, in float16, which every device multiplies: blocks enough to fill it,
done in tens of microseconds, so that a kernel of the replay soon comes to its turn."""

COPY_BYTES = 64 * 2**20
"""More than the 50 MB of an H200's L2 cache, so that a copy takes the memory's bandwidth."""

Wait = Callable[[], float]
"""Waits until a launch is complete; the milliseconds that it took by the device's clock."""

Launch = Callable[[], Wait]
"""Enqueues a launch and does not wait for it."""


class NeighbourStream:
    """What the thread has seen completed since it was told to begin."""

    def __init__(self, thread: ThreadPoolExecutor, launch: Launch) -> None:
        self._ended, self._lock = threading.Event(), threading.Lock()
        self._launches, self._busy_ms = 0, 0.0
        self._begun_s = time.monotonic()
        self._run = thread.submit(self._keep_busy, launch)

    def counters(self) -> dict[str, int | float]:
        """Completed launches, how long they took by the device's clock, and seconds by the host's.

        A launch takes from its first kernel to its last, whether or not it had the device alone.

        Raises:
            AttemptVoid: stress-not-applied, when the thread has failed.
        """
        if self._run.done():
            _outcome(self._run)
        with self._lock:
            launches, busy_ms = self._launches, self._busy_ms
        return {
            "device_launches": launches,
            "device_busy_ms": round(busy_ms, 6),
            "device_wall_s": round(time.monotonic() - self._begun_s, 6),
        }

    def end(self) -> None:
        """Nothing more is enqueued; what is, runs to its end."""
        self._ended.set()

    def require_unharmed(self) -> None:
        """Waits for the end.

        Raises:
            AttemptVoid: stress-not-applied, when the thread has failed.
        """
        _outcome(self._run)

    def _keep_busy(self, launch: Launch) -> None:
        enqueued: deque[Wait] = deque()
        while not self._ended.is_set():
            enqueued.append(launch())
            if len(enqueued) == DEPTH:
                self._count(enqueued.popleft()())
        for wait in enqueued:
            wait()

    def _count(self, took_ms: float) -> None:
        with self._lock:
            self._launches += 1
            self._busy_ms += took_ms


@contextmanager
def neighbour_stream(opened: Callable[[], Launch] | None = None) -> Iterator[NeighbourStream]:
    """It is at work while the block lasts; the thread is gone when it is left.

    Args:
        opened: called in the thread, gives what it runs; :func:`on_the_device` for None.

    Raises:
        AttemptVoid: stress-not-applied, when the thread failed and the block did not.
    """
    with ThreadPoolExecutor(1, "neighbour-stream") as thread:
        launch: Launch = _outcome(thread.submit(_warm, opened or on_the_device))
        stream = NeighbourStream(thread, launch)
        try:
            yield stream
        finally:
            stream.end()
    stream.require_unharmed()


def _warm(opened: Callable[[], Launch]) -> Launch:
    """After the first launch, which loads kernels and makes a cuBLAS handle for the thread."""
    launch = opened()
    launch()()
    return launch


def _outcome(run: Future[Any]) -> Any:
    """Waits for it; what failed in the thread rises here."""
    error = run.exception()
    if error is not None:
        text = f"load: the neighbour stream failed: {type(error).__name__}: {error}"
        raise AttemptVoid("stress-not-applied", text) from error
    return run.result()


def on_the_device() -> Launch:
    """Products and copies on a new stream of the only device, timed by a pair of its events.

    A new stream waits for no other, not even for the default one (torch docs, "CUDA semantics",
    "CUDA streams").
    """
    import torch

    cuda: Any = torch.cuda
    device = torch.device("cuda", 0)
    stream = cuda.Stream(device)
    with cuda.stream(stream):
        factor = torch.full((SIDE, SIDE), 1 / 64, dtype=torch.float16, device=device)
        source = torch.ones(COPY_BYTES, dtype=torch.uint8, device=device)
        product, target = torch.empty_like(factor), torch.empty_like(source)

    def launch() -> Wait:
        # Blocking: the thread sleeps on the host while it waits, and leaves its core to the replay.
        first, last = (cuda.Event(enable_timing=True, blocking=True) for _ in range(2))
        with cuda.stream(stream):
            first.record()
            for _ in range(ROUNDS):
                torch.mm(factor, factor, out=product)
                target.copy_(source)
            last.record()

        def wait() -> float:
            last.synchronize()
            return float(first.elapsed_time(last))

        return wait

    return launch
