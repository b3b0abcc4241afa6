"""The neighbour stream's own loop over a device that the test steers: what it counts, how deep it
queues, what it says when it fails, and that its thread is gone afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fleet.contract.vary import Own
from fleet.errors import AttemptVoid
from fleet.evidence.stress import Ran
from fleet.replay import stress as stress_module
from fleet.replay.gpu.neighbour_stream import DEPTH, Launch, NeighbourStream, Wait, neighbour_stream
from fleet.replay.stress import Stress
from fleet.replay.task import Device

TOOK_MS = 2.5


class Steered:
    """A device that completes a launch when it is let, in order; the first one at once."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.enqueued = self.completed = 0
        self.fails_at = fails_at
        self.threads: set[str] = set()
        self._let, self._all = threading.Semaphore(1), threading.Event()

    def opened(self) -> Launch:
        return self.launch

    def launch(self) -> Wait:
        self.threads.add(threading.current_thread().name)
        if self.enqueued == self.fails_at:
            raise RuntimeError("an illegal memory access was encountered")
        self.enqueued += 1
        return self._wait

    def _wait(self) -> float:
        while not self._all.is_set() and not self._let.acquire(timeout=0.01):
            continue
        self.completed += 1
        return TOOK_MS

    def complete(self, number: int) -> None:
        self._let.release(number)

    def complete_all(self) -> None:
        self._all.set()


@pytest.fixture
def device() -> Steered:
    return Steered()


@pytest.fixture(autouse=True)
def no_thread_is_left_over() -> Any:
    before = threading.active_count()
    yield
    assert threading.active_count() == before


def until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def launches(stream: NeighbourStream) -> int | float:
    return stream.counters()["device_launches"]


def test_only_completed_launches_count_and_by_the_time_of_the_device(device: Steered) -> None:
    with neighbour_stream(device.opened) as beside:
        until(lambda: device.enqueued == 1 + DEPTH)
        assert beside.counters()["device_busy_ms"] == launches(beside) == 0
        device.complete(3)
        until(lambda: launches(beside) == 3)
        until(lambda: device.enqueued == 1 + 3 + DEPTH)
        counters = beside.counters()
        assert counters["device_busy_ms"] == 3 * TOOK_MS
        assert counters["device_wall_s"] > 0
        time.sleep(0.02)
        assert launches(beside) == 3
        assert device.enqueued == 1 + 3 + DEPTH
        device.complete_all()
    assert device.threads == {"neighbour-stream_0"}


def test_what_is_enqueued_is_complete_when_it_is_left(device: Steered) -> None:
    with neighbour_stream(device.opened):
        until(lambda: device.enqueued == 1 + DEPTH)
        device.complete_all()
    assert device.completed == device.enqueued > DEPTH
    enqueued = device.enqueued
    time.sleep(0.02)
    assert device.enqueued == enqueued


def test_it_is_entered_only_when_the_first_launch_is_complete() -> None:
    seen: list[str] = []

    def opened() -> Launch:
        seen.append("opened")

        def wait() -> float:
            seen.append("completed")
            time.sleep(0.001)
            return TOOK_MS

        return lambda: wait

    with neighbour_stream(opened):
        assert seen[:2] == ["opened", "completed"]


def test_a_device_that_it_cannot_open_is_void_before_any_sample() -> None:
    def opened() -> Launch:
        raise MemoryError("CUDA out of memory")

    words = "load: the neighbour stream failed: MemoryError: CUDA out of memory"
    with pytest.raises(AttemptVoid, match=words) as void, neighbour_stream(opened):
        pytest.fail("entered")
    assert void.value.code == "stress-not-applied"


@pytest.mark.parametrize("asks", [True, False])
def test_a_thread_that_fails_while_samples_run_voids_them(asks: bool) -> None:
    device = Steered(fails_at=4)
    device.complete_all()
    words = "failed: RuntimeError: an illegal memory access was encountered"
    with pytest.raises(AttemptVoid, match=words), neighbour_stream(device.opened) as beside:
        until(beside._run.done)
        if asks:
            beside.counters()
            pytest.fail("counted")
    assert device.enqueued == 4


def test_what_fails_beside_it_ends_it_and_is_told_first(device: Steered) -> None:
    with pytest.raises(KeyError, match="body"), neighbour_stream(device.opened):
        device.complete_all()
        raise KeyError("body")
    both = Steered(fails_at=1)
    with pytest.raises(KeyError, match="body"), neighbour_stream(both.opened) as beside:
        until(beside._run.done)
        raise KeyError("body")


GPU = Device("GPU-1", "fake", 0, 1)


def stress_of(on: Device | None) -> Stress:
    task: Any = type("Task", (), {"vary": ("load",), "varied": {"load": 1}, "device": on})()
    return Stress(task, Ran(Own(1, 1, 2, 2)))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, device: Steered) -> Steered:
    """What runs beside a replay goes to this device, which completes nothing until the end."""

    @contextmanager
    def opened() -> Iterator[NeighbourStream]:
        with neighbour_stream(device.opened) as beside:
            try:
                yield beside
            finally:
                device.complete_all()

    monkeypatch.setattr(stress_module, "neighbour_stream", opened)
    return device


def test_a_replay_with_a_device_shows_neighbours_on_the_host_and_on_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def opened() -> Launch:
        def wait() -> float:
            begun = time.monotonic()
            time.sleep(0.005)
            return (time.monotonic() - begun) * 1000

        return lambda: wait

    monkeypatch.setattr(stress_module, "neighbour_stream", lambda: neighbour_stream(opened))
    stress = stress_of(GPU)
    with stress.while_samples_run():
        time.sleep(0.3)
    load = stress.at_the_end({}, {})["load"]
    assert load["running"] == 1
    assert load["cpu_s"] > 0
    assert load["device_launches"] > 0
    assert load["device_busy_ms"] > 500 * load["device_wall_s"] > 0


def test_a_device_that_did_nothing_beside_the_replay_is_void(gpu: Steered) -> None:
    stress = stress_of(GPU)
    with stress.while_samples_run():
        until(lambda: gpu.enqueued == 1 + DEPTH)
        time.sleep(0.2)
    with pytest.raises(AttemptVoid, match="load: no launch of the neighbour stream") as void:
        stress.at_the_end({}, {})
    assert void.value.code == "stress-not-applied"
    assert void.value.details["stress"]["load"]["device_launches"] == 0


def test_on_the_host_alone_no_stream_is_opened(gpu: Steered) -> None:
    stress = stress_of(None)
    with stress.while_samples_run():
        time.sleep(0.1)
    assert stress.at_the_end({}, {})["load"].keys() == {"running", "cpu_s", "wall_s"}
    assert gpu.enqueued == 0


def test_what_a_failing_replay_leaves_is_no_thread_and_no_process(gpu: Steered) -> None:
    with pytest.raises(KeyError), stress_of(GPU).while_samples_run():
        raise KeyError
    assert gpu.completed == gpu.enqueued > 0
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_a_replay_that_has_no_torch_still_has_none() -> None:
    probe = "import fleet.replay.stress, sys; print('torch' in sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", probe], env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert run.stdout.split() == ["False"]
