"""Busy neighbours: they work while the block lasts, and no longer than the process beside them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from fleet.contract.vary import Own
from fleet.errors import AttemptVoid
from fleet.evidence.process import identity, process_tree, start_tick
from fleet.evidence.stress import Ran, shortfall
from fleet.replay import neighbours
from fleet.replay.stress import Stress


def stress_of(number: int) -> Stress:
    task: Any = type("Task", (), {"vary": ("load",), "varied": {"load": number}, "device": None})()
    return Stress(task, Ran(Own(1, 1, 2, 2)))


def until_gone(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while start_tick(pid) is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    return start_tick(pid) is None


def test_they_burn_time_while_samples_run_and_are_gone_after() -> None:
    stress = stress_of(2)
    with stress.while_samples_run():
        time.sleep(0.3)
    load = stress.at_the_end({}, {})["load"]
    assert load["running"] == 2
    assert load["cpu_s"] > 0.05 * load["wall_s"] > 0.014
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_the_ancestors_of_the_replay_stay_what_they_were_at_entry() -> None:
    before = process_tree(), identity()
    with neighbours.neighbours(1) as beside:
        assert (process_tree(), identity()) == before
        assert beside.children[0].pid not in before[0]


def test_stopped_neighbours_are_there_and_do_not_count() -> None:
    stress = stress_of(2)
    with neighbours.neighbours(2) as beside:
        for child in beside.children:
            os.kill(child.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        begun = neighbours._cpu_s(beside.children)
        still = neighbours.Neighbours(beside.children, time.monotonic(), begun)
        time.sleep(0.05)
        stress._load = still.counters()
    assert stress._load["running"] == 2
    with pytest.raises(AttemptVoid, match="load: neighbours burned 0 s of CPU") as void:
        stress.at_the_end({}, {})
    assert void.value.code == "stress-not-applied"


def test_a_neighbour_that_ended_early_is_missed() -> None:
    with neighbours.neighbours(2) as beside:
        beside.children[0].kill()
        beside.children[0].wait()
        found = beside.counters()
    assert "1 neighbours ran to the end" in (shortfall({"load": 2}, {"load": found}, False) or "")


def test_one_that_never_came_to_work_is_void_and_leaves_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(neighbours, "PROGRAM", "raise SystemExit(3)")
    with pytest.raises(AttemptVoid, match=r"a neighbour ended \(3\)"), neighbours.neighbours(2):
        pytest.fail("entered")
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_what_fails_beside_them_ends_them() -> None:
    pids: list[int] = []
    with pytest.raises(RuntimeError), neighbours.neighbours(1) as beside:
        pids += [child.pid for child in beside.children]
        raise RuntimeError
    assert until_gone(pids[0])


REPLAY = """
import time
from fleet.replay.neighbours import neighbours
with neighbours(2) as beside:
    print(*(child.pid for child in beside.children), flush=True)
    time.sleep(60)
"""


def test_they_die_with_a_replay_that_is_killed() -> None:
    environment = {"PYTHONPATH": ":".join(sys.path)}
    replay = subprocess.Popen(
        [sys.executable, "-c", REPLAY], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert replay.stdout is not None
    pids = [int(word) for word in replay.stdout.readline().split()]
    assert len(pids) == 2
    assert all(start_tick(pid) is not None for pid in pids)
    replay.kill()
    replay.communicate()
    assert all(until_gone(pid) for pid in pids)


def test_one_whose_parent_is_another_does_not_work_at_all() -> None:
    """As when the parent died before the kernel was asked for its signal."""
    run = subprocess.run(
        [sys.executable, "-I", "-S", "-c", neighbours.PROGRAM, "1", "64"],
        capture_output=True, timeout=30, check=True,
    )  # fmt: skip
    assert run.stdout == b""
