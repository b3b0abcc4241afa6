"""Faults on a real Ray cluster whose nodes differ: no record is lost or doubled, no verdict mixes
attempts, no mismatch that was seen is erased, and state and cause are right.

    node killed in mid-replay; back under a new id    here
    raylet killed, or frozen, while its replay lives  here
    worker killed, out of memory, hang, full disk     here; of every kind of death cases/test_fleet
    the node out of memory (Ray's monitor)            here
    full disk: ledger, store                          unit/test_units_lost, test_full_disk
    driver killed and restarted, two drivers at once  here; at every entry unit/test_resume
    driver interrupted                                here; in mid-start test_cluster_waits
    late writer                                       here; one that differs cases/test_fleet
    environment that lies, skewed clock               here
    correlated crash                                  here
    a set that takes down every unit                  unit/test_units_lost
    waits: node that hangs, no processor left         test_cluster_waits, test_ray_cluster
    another process on the device                     unit/test_gpu (a stand-in of NVML)
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from fleet.evidence.ledger import NIGHT
from tests.integration.fault_fleet import KILL, NIGHT_ID, fault_fleet

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(400)]

NOTICED_S = 60.0
"""Ray's health check finds a dead raylet after about 13 s; the rest is watching for a death."""
FROZEN_S = 150.0
"""Of one that is there and does not answer it makes sure for about 65 s."""

FULL_DISK = """
import errno, os
from fleet.evidence import parts


def full(path, data):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


parts.write_once = full
"""
LANDS_EVERY_ROW = """
from fleet.evidence.parts import PartWriter
add = PartWriter.add


def at_once(self, records):
    self._seconds_per_part = 0.0
    add(self, records)


PartWriter.add = at_once
"""
OTHER_BITS = (
    LANDS_EVERY_ROW
    + """
from fleet.replay.engines.synthetic import SyntheticEngine
logits = SyntheticEngine._logits
SyntheticEngine._logits = lambda self, context: [x + 0.5 for x in logits(self, context)]
"""
)
LATE_WRITER = (
    LANDS_EVERY_ROW
    + """
import os, signal, time
if os.fork() == 0:  # it goes on with the replay, and its parent waits to be killed
    os.setsid()
    signal.alarm(120)
    while not (orders / "release-late").exists():
        time.sleep(0.05)
    signal.alarm(8)
else:
    (orders / "holding-late").touch()
    time.sleep(600)
"""
)
SKEWED = """import time
true_time, true_time_ns = time.time, time.time_ns
time.time = lambda: true_time() + 5 * 3600.0
time.time_ns = lambda: true_time_ns() + 5 * 3600 * 10**9
"""
GIB = 2**30
TAKES_MEMORY = """
import time
held = []
for _ in range(80):  # 8 GiB; it is to be killed well before
    held.append(b"x" * (100 * 2**20))
    time.sleep(0.05)
time.sleep(30)
"""
SAYS_THE_TIME = "import time\n(orders / 'clock').write_text(str(time.time()))\n"


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_a_raylet_lost_in_mid_replay_loses_the_attempt_and_not_the_work(
    tmp_path: Path, fault: signal.Signals
) -> None:
    """Killed: its replay dies with it, and is seen to. Frozen: Ray takes a minute to see it."""
    with fault_fleet(tmp_path, left={}, right={}) as rack:
        for name in ("toy", "second"):
            rack.contract(name)
        rack.fleet_of(left=("toy", "second"), right=("second",))
        rack.hold("right", "second")
        with rack.night() as child:
            rack.until_held("right", "second")
            lost, begun_s = rack.open_attempt("right", "second"), time.time()
            os.kill(rack.raylet("right"), fault)
            answer = rack.told(child, 0, 300)
        first, *others = rack.attempts("right", "second")
        assert first[:2] in ((0, "LOST"), (0, "FAILED"))
        assert first[2] == ("node-unreachable" if first[1] == "LOST" else "killed")
        assert [end for end in others if end != (0, "LOST", "start")] == []
        bound_s = NOTICED_S if fault == signal.SIGKILL else FROZEN_S
        assert rack.seconds_from(begun_s, "right", lost) < bound_s
        assert [state for _, state, _ in rack.attempts("left", "second")] == ["COMPLETE"] * 2
        assert answer["left_out"] == [] and rack.left_out() == []
        if fault == signal.SIGSTOP:
            os.kill(rack.raylet("right"), signal.SIGKILL)
        rack.until_no_process(lost)
        rack.sound()
        assert rack.verdicts()["second"] == rack.verdicts()["toy"] == "PASS"
        rack.forget("right")


def test_a_node_killed_in_mid_replay_is_used_again_under_its_new_id(tmp_path: Path) -> None:
    with fault_fleet(tmp_path, left={}, right={}) as rack:
        for name in ("toy", "second"):
            rack.contract(name)
        rack.fleet_of(left=("toy",), right=("second",))
        rack.hold("left", "toy")
        rack.hold("right", "second")
        with rack.night() as child:
            rack.until_held("left", "toy")
            rack.until_held("right", "second")
            lost, begun_s = rack.open_attempt("right", "second"), time.time()
            rack.kill("right")
            rack.until_given_up("right", lost)
            assert rack.seconds_from(begun_s, "right", lost) < NOTICED_S
            rack.add("right")
            rack.until_ended("right", "second", 2)
            rack.release("left", "toy")
            answer = rack.told(child, 0)
        first, *others = rack.attempts("right", "second")
        assert first == (0, "LOST", "node-unreachable")
        assert [state for _, state, _ in others][-2:] == ["COMPLETE"] * 2
        kinds = [e.kind for e in rack.chain(f"{NIGHT_ID}.right")]
        assert (kinds.count("campaign"), kinds.count("resumed")) == (1, 1)
        assert len(rack.node_ids("right")) == 2
        assert answer["left_out"] == []
        rack.sound()
        assert rack.verdicts()["second"] == rack.verdicts()["toy"] == "PASS"


def test_replays_that_die_hang_or_find_no_memory_or_disk_are_tried_again_within_a_budget(
    tmp_path: Path,
) -> None:
    does = {
        "killed": KILL,
        "memory": "raise MemoryError",
        "hangs": "import time\ntime.sleep(600)\n",
        "disk": FULL_DISK,
        "always": KILL,
    }
    with fault_fleet(tmp_path, left={}) as rack:
        for name, code in does.items():
            rack.contract(name)
            rack.order("left", name, "s2", code)
        rack.order("left", "always", "s3", KILL)
        rack.fleet_of(left=tuple(does))
        with rack.night("--replay-s", "12") as child:
            answer = rack.told(child, 3)
        complete = [(0, "COMPLETE", None), (1, "COMPLETE", None)]
        told = {name: rack.attempts("left", name) for name in does}
        assert told.pop("always") == [
            (0, "FAILED", "killed"), (0, "FAILED", "killed"), (1, "COMPLETE", None),
        ]  # fmt: skip
        assert told == {
            "killed": [(0, "FAILED", "killed"), *complete],
            "memory": [(0, "FAILED", "out-of-memory"), *complete],
            "hangs": [(0, "FAILED", "hang"), *complete],
            "disk": [(0, "FAILED", "disk-full"), *complete],
        }
        assert answer["left_out"] == []
        rack.sound()
        found = rack.verdicts()
        assert {name: found[name] for name in does} == dict.fromkeys(told, "PASS") | {
            "always": "VOID"
        }


def test_a_worker_that_ray_kills_for_memory_is_out_of_memory(tmp_path: Path) -> None:
    memory = psutil.virtual_memory()
    limit = (memory.total - memory.available + 3 * GIB) / memory.total
    monitor = {
        "RAY_memory_usage_threshold": f"{limit:.3f}",
        "RAY_memory_monitor_refresh_ms": "100",
    }
    with fault_fleet(tmp_path, left=monitor) as rack:
        rack.contract("toy")
        rack.order("left", "toy", "s2", TAKES_MEMORY)
        rack.fleet_of(left=("toy",))
        with rack.night() as child:
            rack.told(child, 0)
        first, *others = rack.attempts("left", "toy")
        assert first == (0, "FAILED", "out-of-memory")
        assert others == [(0, "COMPLETE", None), (1, "COMPLETE", None)]
        rack.sound()


def test_a_driver_that_is_killed_is_followed_by_one_that_goes_on_and_never_joined_by_one(
    tmp_path: Path,
) -> None:
    with fault_fleet(tmp_path, left={}, right={}) as rack:
        for name in ("toy", "second"):
            rack.contract(name)
        rack.fleet_of(left=("toy",), right=("second",))
        rack.hold("left", "toy")
        rack.hold("right", "second")
        with rack.night() as child:
            rack.until_held("left", "toy")
            rack.until_held("right", "second")
            lost = [rack.open_attempt(*each) for each in (("left", "toy"), ("right", "second"))]
            before = rack.entries()
            with rack.night() as other:
                _, err = other.communicate(timeout=60)
            assert other.returncode == 2
            assert f"expected no other campaign that writes to it, got {NIGHT_ID}, process" in err
            assert rack.entries() == before
            child.kill()
            child.communicate()
        with rack.night() as child:
            rack.told(child, 0)
        again = [(0, "LOST", "driver-gone"), (0, "COMPLETE", None), (1, "COMPLETE", None)]
        assert rack.attempts("left", "toy") == rack.attempts("right", "second") == again
        assert [rack.rows(attempt) for attempt in lost] == [[], []]
        for label in ("left", "right"):
            planned = [e.body for e in rack.chain(f"{NIGHT_ID}.{label}") if e.kind == "planned"]
            controls = [b["contract"] for b in planned if b["role"] == "control"]
            assert len(controls) == 4  # those were done, and are not done again
        rack.sound()
        assert rack.verdicts()["second"] == rack.verdicts()["toy"] == "PASS"


def test_an_interrupted_night_ends_every_lane_within_a_bound(tmp_path: Path) -> None:
    with fault_fleet(tmp_path, left={}, right={}) as rack:
        for name in ("toy", "second"):
            rack.contract(name)
        rack.fleet_of(left=("toy",), right=("second",))
        rack.hold("left", "toy")
        rack.hold("right", "second")
        with rack.night() as child:
            rack.until_held("left", "toy")
            rack.until_held("right", "second")
            begun_s = time.monotonic()
            os.kill(child.pid, signal.SIGTERM)
            out, err = child.communicate(timeout=100)
        assert time.monotonic() - begun_s < 30
        assert (child.returncode, out) == (3, "")
        assert err == "interrupted: the ledger says how far it came\n"
        for label, name in (("left", "toy"), ("right", "second")):
            assert rack.attempts(label, name) == [(0, "FAILED", "driver-gone")]
            assert rack.chain(f"{NIGHT_ID}.{label}")[-1].kind == "closed"
        assert rack.chain(f"{NIGHT}{NIGHT_ID}")[-1].kind == "closed"
        rack.sound()


def test_a_late_writer_helps_nothing_and_its_rows_stay_evidence(tmp_path: Path) -> None:
    with fault_fleet(tmp_path, left={}, right={}) as rack:
        for name in ("toy", "second"):
            rack.contract(name)
        rack.fleet_of(left=("toy", "second"), right=("second",))
        rack.order("right", "second", "s1", LATE_WRITER)
        with rack.night() as child:
            rack.until_marked("holding-late")
            lost = rack.open_attempt("right", "second")
            rack.kill("right")
            rack.told(child, 0)
        assert not rack.landing.manifest(lost).exists()
        before = rack.status()
        (rack.orders / "release-late").touch()
        rack.until_rows(lost, 10)
        rack.until_no_process(lost)
        assert rack.ask("store", "ingest")
        after_it = rack.sound()
        assert {k: row["state"] for k, row in after_it.items()} == {
            k: row["state"] for k, row in before.items()
        }
        second = next(row for row in after_it.values() if row["contract"] == "second")
        shown = {a["attempt"]: (a["state"], a["accepted"]) for a in second["attempts"]}
        assert shown.pop(lost) == ("LOST", False)
        assert list(shown.values()) == [("COMPLETE", True)] * 2


def test_a_correlated_crash_erases_no_mismatch(tmp_path: Path) -> None:
    """Every replay that would have shown the mismatch dies before its end."""
    with fault_fleet(tmp_path, left={}) as rack:
        rack.contract("toy")
        rack.fleet_of(left=("toy",))
        for sample in ("s0", "s1"):  # one for each of two attempts
            rack.order("left", "toy", sample, OTHER_BITS if sample == "s0" else "")
        rack.order("left", "toy", "s2", KILL)
        with rack.night() as child:
            rack.told(child, 1)
        told = rack.attempts("left", "toy")
        assert told == [(0, "FAILED", "killed"), (0, "COMPLETE", None), (1, "COMPLETE", None)]
        rack.sound()
        assert rack.verdicts()["toy"] == "FAIL"


def test_a_node_whose_environment_is_not_what_its_label_says_is_another_platform(
    tmp_path: Path,
) -> None:
    with fault_fleet(tmp_path, left={}, right={"ATEN_CPU_CAPABILITY": "default"}) as rack:
        rack.contract("toy")
        rack.fleet_of(left=("toy",), right=("toy",))
        with rack.driver("certify", "toy", "--scope", "same-class", "--campaign-id", "c1") as child:
            answer = rack.told(child, 3)
        (toy,) = answer["contracts"]
        assert toy["verdict"] == "VOID" and "different platforms" in toy["reason"]
        rows = [row for row in rack.sound().values() if row["contract"] == "toy"]
        assert len({row["platform"] for row in rows}) == 2
        assert {row["state"] for row in rows} == {"VOID"}
        plan = rack.ask("campaign", "rack", "--dry-run")["plan"]
        assert len({item["class"] for item in plan if item["role"] == "named"}) == 2


def test_ages_come_from_the_ledger_whatever_the_clock_of_a_node_says(tmp_path: Path) -> None:
    (tmp_path / "skew").mkdir()
    (tmp_path / "skew" / "sitecustomize.py").write_text(SKEWED)
    path = os.pathsep.join([str(tmp_path / "skew"), str(Path(__file__).parents[2])])
    with fault_fleet(tmp_path, left={}, right={"PYTHONPATH": path}) as rack:
        for name in ("toy", "second"):
            rack.contract(name)
        rack.fleet_of(left=("second",), right=("toy",))
        rack.order("right", "toy", "s0", SAYS_THE_TIME)
        begun_s = time.time()
        with rack.night() as child:
            rack.told(child, 0)
        clock = float((rack.orders / "clock").read_text())
        assert clock - time.time() > 4 * 3600
        rack.sound()
        (toy,) = rack.ask("status", "toy")["contracts"]
        assert toy["state"] == "PASS" and 0 <= toy["age_s"] <= time.time() - begun_s
        stamps = [e.at_s for e in rack.chain(f"{NIGHT_ID}.right")]
        assert stamps == sorted(stamps) and begun_s <= stamps[0] and stamps[-1] <= time.time()
