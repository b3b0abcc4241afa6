"""Two campaigns never write to one landing at a time, and a dead one's lease is nobody's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fleet.errors import CannotRunError
from fleet.schedule.lease import NAME, lease

HOLD = """
import sys, time
from pathlib import Path
from fleet.schedule.lease import lease
with lease(Path(sys.argv[1]), "theirs"):
    print("held", flush=True)
    time.sleep(60)
"""


def hold(landing: Path) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(landing)], stdout=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    return child


def test_a_second_campaign_is_told_who_has_it_and_takes_it_over_from_the_dead(
    tmp_path: Path,
) -> None:
    child = hold(tmp_path)
    with (
        pytest.raises(CannotRunError, match=f"theirs, process {child.pid} on "),
        lease(tmp_path, "mine"),
    ):
        raise AssertionError("it is taken")
    child.send_signal(signal.SIGKILL)
    child.communicate()
    with lease(tmp_path, "mine"):
        assert b"mine" in (tmp_path / NAME).read_bytes()
    assert (tmp_path / NAME).read_bytes() == b""


def test_one_process_cannot_take_it_twice(tmp_path: Path) -> None:
    with lease(tmp_path, "one"):
        with pytest.raises(CannotRunError, match="one, process"), lease(tmp_path, "two"):
            pass
        assert b"one" in (tmp_path / NAME).read_bytes()


def test_a_holder_that_said_nothing_yet_is_a_holder(tmp_path: Path) -> None:
    with lease(tmp_path, "one"):
        (tmp_path / NAME).write_bytes(b"{")
        with pytest.raises(CannotRunError, match="just starting"), lease(tmp_path, "two"):
            pass
