"""The exit code of a command is its own, whatever ends its process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAD = "import os, signal, sys, time\nfrom fleet.ending import in_a_child\n"


def started(work: str) -> subprocess.Popen[str]:
    """A process whose command is the body of a function."""
    body = "\n".join(f"    {line}" for line in work.splitlines())
    code = f"{HEAD}def work():\n{body}\nsys.exit(in_a_child(work))\n"
    return subprocess.Popen(
        [sys.executable, "-c", code], text=True, cwd=ROOT,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def ended(work: str) -> tuple[int, str, str]:
    with started(work) as child:
        out, err = child.communicate(timeout=30)
    return child.returncode, out, err


@pytest.mark.parametrize("code", [0, 1, 2, 3])
def test_what_a_command_says_is_its_exit_code(code: int) -> None:
    assert ended(f"print('told')\nreturn {code}") == (code, "told\n", "")


@pytest.mark.parametrize(
    ("death", "how"),
    [
        ("os._exit(1)", "exit code 1"),
        ("os._exit(0)", "exit code 0"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "signal 9"),
        ("os.abort()", "signal 6"),
    ],
)
def test_a_process_that_ends_without_a_word_is_no_verdict(death: str, how: str) -> None:
    code, _, err = ended(death)
    assert code == 3
    assert f"error (no verdict): the process of this command ended without a word ({how})" in err
    assert "--campaign-id" in err


def test_a_code_that_was_said_stands_when_the_process_crashes_while_it_leaves() -> None:
    assert ended("import atexit\natexit.register(os._exit, 1)\nreturn 0")[0] == 0


def test_an_answer_that_nobody_read_is_no_verdict() -> None:
    with started("sys.stdin.readline()\nprint('told')\nreturn 0") as child:
        assert child.stdout is not None and child.stdin is not None
        child.stdout.close()
        child.stdin.write("go on\n")
        child.stdin.close()
        assert child.wait(30) == 3


WAITS = """
def told(number, _):
    raise SystemExit(f"got {number}")
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, told)
print(os.getpid(), flush=True)
time.sleep(30)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_for_the_command_reaches_it(number: signal.Signals) -> None:
    with started(WAITS) as child:
        assert child.stdout is not None and child.stderr is not None
        assert int(child.stdout.readline()) != child.pid
        child.send_signal(number)
        assert child.wait(30) == 3
        assert f"got {int(number)}" in child.stderr.read()


def test_a_command_dies_with_the_process_that_a_person_kills() -> None:
    with started(WAITS) as child:
        assert child.stdout is not None
        inner = int(child.stdout.readline())
        child.kill()
        child.wait(30)
        until = time.monotonic() + 10
        while os.path.exists(f"/proc/{inner}") and time.monotonic() < until:
            time.sleep(0.02)
        assert not os.path.exists(f"/proc/{inner}")


def test_the_command_line_is_run_that_way(tmp_path: Path) -> None:
    code = (
        "import os, fleet.cli\n"
        "fleet.cli.run = lambda argv: os._exit(1)\n"
        "fleet.cli.main(['status'])\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert found.returncode == 3
    assert "no verdict" in found.stderr
