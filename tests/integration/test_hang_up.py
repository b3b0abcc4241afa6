"""A terminal that goes away in mid-replay: the product's own process, with Ray left out of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from fleet.evidence.landing import Landing
from fleet.evidence.ledger import Entry, campaigns, ends, read_chain
from tests.campaigns import write_configs

ROOT = Path(__file__).parents[2]

CHILD = """
import signal, sys
signal.signal(signal.SIGHUP, getattr(signal, sys.argv[1]))
from contextlib import nullcontext
from fleet.cli import main
from fleet.schedule import cluster
from tests.campaigns import FakeLauncher

def wait(task):
    print("in mid-replay", flush=True)
    sys.stdin.readline()

cluster.RayCluster = lambda *given: nullcontext(FakeLauncher(script={1: wait}))
main(["certify", "toy", "--output", "verdicts.txt"])
"""


def hung_up_on(root: Path, before: str) -> tuple[int, str, list[Entry]]:
    """Exit code, standard error and ledger of a certify that began with SIGHUP like ``before``."""
    write_configs(root / "configs")
    given = {k: v for k, v in os.environ.items() if not k.startswith("FLEET_")}
    given |= {"PYTHONPATH": str(ROOT), "FLEET_CACHE": str(root / "cache")}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [sys.executable, "-c", CHILD, before]
    with subprocess.Popen(command, cwd=root, env=given, text=True, **pipes) as child:  # type: ignore[call-overload]
        assert child.stdout.readline() == "in mid-replay\n"
        child.send_signal(signal.SIGHUP)
        _, err = child.communicate("go on\n" if before == "SIG_IGN" else None, timeout=60)
    landing = Landing.open(root / "var" / "landing")
    return child.returncode, err, read_chain(landing, campaigns(landing)[-1])


def test_a_hang_up_in_mid_replay_leaves_a_clean_ledger(tmp_path: Path) -> None:
    code, err, entries = hung_up_on(tmp_path, "SIG_DFL")
    assert (code, err) == (3, "interrupted: the ledger says how far it came\n")
    found = [(end and end.kind, end and end.body.get("state")) for _, end in ends(entries)]
    assert found == [("accepted", "COMPLETE"), ("given_up", "FAILED")]
    assert entries[-1].kind == "closed"


def test_who_began_with_nohup_is_not_hung_up_on(tmp_path: Path) -> None:
    code, err, entries = hung_up_on(tmp_path, "SIG_IGN")
    assert (code, err) == (0, "")
    assert [end and end.kind for _, end in ends(entries)] == ["accepted"] * 6
    assert "PASS" in (tmp_path / "verdicts.txt").read_text()
