"""Fresh processes on a real local Ray: what the fakes of other tests promise, Ray must keep.

The first tests start the product's own command line, each with a Ray of its own; the others share
one cluster in this process.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray

from fleet.errors import AttemptFailed, CannotRunError
from fleet.evidence.landing import Landing
from fleet.evidence.ledger import Entry, campaigns, ends, read_chain
from fleet.evidence.manifest import Manifest, Process
from fleet.evidence.process import is_alive
from fleet.schedule.cluster import RayCluster
from fleet.schedule.driver import Campaign, Limits
from tests.campaigns import CONTRACT, CONTROLS, planned_in, write_configs, write_contract

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[2]
LIMITS = Limits(start_s=60, replay_s=60, end_s=20, retries=0)

HANGS = """import time


def parse(text, record):
    time.sleep(600)


def is_correct(answer, record):
    return False
"""


def command(root: Path, *argv: str) -> dict[str, Any]:
    """Arguments of Popen for one command line in ``root``."""
    given = {k: v for k, v in os.environ.items() if not k.startswith("FLEET_")}
    given |= {"PYTHONPATH": str(ROOT), "FLEET_CACHE": str(root / "cache")}
    return {
        "args": [sys.executable, "-m", "fleet", *argv],
        "cwd": root,
        "env": given,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }


def chain(landing: Landing) -> list[Entry]:
    found = campaigns(landing)
    return read_chain(landing, found[-1]) if found else []


def until(condition: Callable[[], bool], limit_s: float = 120.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


def processes_with(variable: str) -> list[int]:
    """Processes that were given a variable."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if variable.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def started(entries: list[Entry]) -> list[Process]:
    return [Process(**e.body["process"]) for e in entries if e.kind == "started"]


# the command line


ISSUE_KEYS = [
    "contract", "execution_id", "platform", "verdict", "attained_grade", "required_grade", "scope",
    "vary", "traced", "layer", "layers", "reason", "arms", "records", "mismatches", "bounds",
    "power", "envelope", "attempts", "roots", "first_difference", "warnings",
]  # fmt: skip


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], str]:
    """``fleet certify toy --json`` from outside: folder, document, standard error."""
    root = tmp_path_factory.mktemp("certified")
    write_configs(root / "configs")
    with subprocess.Popen(**command(root, "certify", "toy", "--json")) as child:
        out, err = child.communicate(timeout=240)
    assert child.returncode == 0, err
    return root, json.loads(out), err


def test_certify_ends_with_one_document_and_its_controls(
    certified: tuple[Path, dict[str, Any], str],
) -> None:
    _, document, err = certified
    assert (list(document), err) == (["schema", "campaign", "contracts", "controls"], "")
    (toy,) = document["contracts"]
    assert set(ISSUE_KEYS) <= set(toy)
    assert (toy["contract"], toy["verdict"], toy["attained_grade"]) == ("toy", "PASS", "logits")
    assert (toy["scope"], toy["vary"], toy["traced"]) == ("same-unit", [], False)
    assert (toy["records"], toy["mismatches"], toy["bounds"]["process"]) == (10, 0, None)
    assert [a["state"] for a in toy["attempts"]] == ["COMPLETE", "COMPLETE"]
    for arm in ("controlled", "current"):
        assert toy["arms"][arm]["logits"]["exact"] == toy["arms"][arm]["logits"]["total"] == 5
    controls = {c["contract"]: c for c in document["controls"]}
    assert tuple(controls) == CONTROLS
    assert all(c["behaves"] for c in controls.values())
    racy = controls[CONTROLS[0]]
    assert (racy["verdict"], racy["layer"], racy["layers"]) == ("FAIL", None, [2, 3])
    assert racy["first_difference"]["sample_id"] == "q001"


def test_a_second_reader_sees_the_same_and_the_lines_of_a_person(
    certified: tuple[Path, dict[str, Any], str],
) -> None:
    root, document, _ = certified
    with subprocess.Popen(**command(root, "status", "toy", *CONTROLS, "--json")) as child:
        out, _ = child.communicate(timeout=60)
    assert child.returncode == 0
    rows = {row["contract"]: row for row in json.loads(out)["contracts"]}
    for contract in (*document["contracts"], *document["controls"]):
        for key in ("verdict", "roots", "attempts", "arms", "layers"):
            assert rows[contract["contract"]][key] == contract[key]


def test_the_ledger_of_a_campaign_proves_that_every_process_was_its_own(
    certified: tuple[Path, dict[str, Any], str],
) -> None:
    root, document, _ = certified
    landing = Landing.open(root / "var" / "landing")
    entries = chain(landing)
    assert entries[0].campaign == document["campaign"]
    assert [end and end.kind for _, end in ends(entries)] == ["accepted"] * 6
    seen = started(entries)
    assert len({(p.pid, p.start_tick) for p in seen}) == 6
    assert not any(is_alive(p) for p in seen)
    gone = [e.body for e in entries if e.kind == "gone"]
    assert all(body["seen_alive"] and body["gone"] for body in gone)
    for body in gone:
        assert body["watcher"]["pid_namespace"] == seen[0].pid_namespace
        assert body["watcher"]["pid"] not in {p.pid for p in seen}


def test_the_environment_really_preceded_the_interpreter(
    certified: tuple[Path, dict[str, Any], str],
) -> None:
    root, _, _ = certified
    landing = Landing.open(root / "var" / "landing")
    predecessors = []
    for attempt, _ in ends(chain(landing)):
        manifest = Manifest.from_bytes(landing.manifest(attempt).read_bytes())
        freshness = manifest.freshness
        assert freshness["nonce"] == attempt  # read from /proc/self/environ
        assert freshness["imported_at_entry"] == []
        assert manifest.effective["python_hash_seed"] == "0"
        assert set(freshness["scheduler"]) == {"node", "worker", "actor"}
        assert freshness["predecessor_gone"] is not False
        predecessors.append(freshness["predecessor"] and freshness["predecessor"]["pid"])
    pids = [p.pid for p in started(chain(landing))]
    assert predecessors == [None, *pids[:-1]]
    workers = {
        Manifest.from_bytes(landing.manifest(a).read_bytes()).freshness["scheduler"]["worker"]
        for a, _ in ends(chain(landing))
    }
    assert len(workers) == 6


def hanging(root: Path) -> Landing:
    """A contract whose parser never returns."""
    configs = write_configs(root / "configs")
    (configs / "contracts" / "hangs.py").write_text(HANGS)
    text = CONTRACT.replace('parser = "letter"', 'parser = "file:hangs.py"')
    write_contract(configs, "hangs", text)
    return Landing(root / "var" / "landing")


def interrupted(root: Path, attempts: int, send: Callable[[int], None], *argv: str) -> list[Entry]:
    """The ledger after a signal in mid-replay of the last attempt. ``send`` is given the pid."""
    landing = hanging(root)
    with subprocess.Popen(**command(root, *argv), start_new_session=True) as child:
        try:
            attempt = _last_started(child, landing, attempts)
            assert processes_with(f"FLEET_NONCE={attempt}")
            send(child.pid)
            out, err = child.communicate(timeout=90)
        finally:
            child.kill()
    assert (child.returncode, out) == (3, "")
    assert err == "interrupted: the ledger says how far it came\n"
    entries = chain(landing)
    assert entries[-1].kind == "closed"
    assert processes_with(f"FLEET_NONCE={attempt}") == []
    assert not any(is_alive(p) for p in started(entries))
    return entries


def _last_started(child: subprocess.Popen[str], landing: Landing, attempts: int) -> str:
    """The attempt in whose process the replay itself has begun."""
    until(lambda: len(started(chain(landing))) == attempts or child.poll() is not None)
    attempt = chain(landing)[-1].attempt
    until(lambda: (landing.attempt(attempt) / "stdout.txt").exists(), 60)
    return attempt


def test_sigterm_in_mid_replay_leaves_a_clean_ledger_and_no_process(tmp_path: Path) -> None:
    """A service manager sends it to the driver alone."""
    argv = ("certify", "hangs", "toy")
    entries = interrupted(tmp_path, 5, lambda pid: os.kill(pid, signal.SIGTERM), *argv)
    found = [(end and end.kind, end and end.body["state"]) for _, end in ends(entries)]
    assert found == [("accepted", "COMPLETE")] * 4 + [("given_up", "FAILED")]
    with subprocess.Popen(**command(tmp_path, "status", "hangs", CONTROLS[0], "--json")) as reader:
        told, _ = reader.communicate(timeout=60)
    hangs, racy = json.loads(told)["contracts"]
    assert (hangs["state"], hangs["code"], racy["behaves"]) == ("VOID", "driver-gone", True)


@pytest.mark.slow
def test_ctrl_c_in_mid_replay_does_the_same(tmp_path: Path) -> None:
    """A terminal sends it to every process of the group."""
    argv = ("replay", "hangs", "--sample", "s0", "--arm", "current")
    entries = interrupted(tmp_path, 1, lambda pid: os.killpg(pid, signal.SIGINT), *argv)
    ((_, end),) = ends(entries)
    assert end is not None
    assert (end.kind, end.body["cause"]["code"]) == ("given_up", "driver-gone")


@pytest.mark.slow
@pytest.mark.torch
def test_a_backend_that_this_machine_cannot_run_is_said_before_anything_is_planned(
    tmp_path: Path,
) -> None:
    configs = tmp_path / "configs"
    text = 'schema = 1\nextends = "tiny-awq-torch"\n[quantization]\nbackend = "awq_marlin"\n'
    path = write_contract(configs, "marlin", text)
    arguments = command(tmp_path, "certify", "marlin")
    arguments["env"].pop("FLEET_CACHE")  # the demo checkpoints are made once per machine
    with subprocess.Popen(**arguments) as child:
        out, err = child.communicate(timeout=240)
    assert (child.returncode, out) == (2, "")
    assert err.startswith(f"error: {path}: quantization.backend: expected a backend that this")
    for words in ("awq_torch, ", "'awq_marlin': ", "CUDA", "\n  next: choose one of those"):
        assert words in err
    assert not (tmp_path / "var").exists()


# one cluster in this process


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    before = signal.getsignal(signal.SIGTERM)
    with RayCluster() as found:
        yield found
    signal.signal(signal.SIGTERM, before)


def run(
    root: Path,
    cluster: RayCluster,
    text: str = CONTRACT,
    parser: str = "",
    replays: int = 2,
    **limits: Any,
) -> tuple[list[tuple[str, str | None]], list[Entry], list[str]]:
    """One contract, no controls: (state, cause) of each attempt, the ledger, the causes' texts."""
    configs = write_configs(root / "configs")
    if parser:
        (configs / "contracts" / "mine.py").write_text(parser)
        text = text.replace('parser = "letter"', 'parser = "file:mine.py"')
    write_contract(configs, "toy", text)
    _, planned, places = planned_in(root, purpose="replay")
    landing = Landing.open(places.landing, create=True)
    contracts = {r.name: r for r in planned.named}
    campaign = Campaign(landing, cluster, contracts, places.scratch, replace(LIMITS, **limits))
    found = campaign.run(planned.slots[:replays])
    told = [(end.state, end.cause.code if end.cause else None) for end in found]
    return told, chain(landing), [end.cause.text if end.cause else "" for end in found]


def parser_that(does: str) -> str:
    """A parser that does something in the first attempt only: a file says that it was done."""
    return (
        "import os, signal, time\nfrom pathlib import Path\n\n\n"
        "def parse(text, record):\n"
        f"    if not Path({{done!r}}).exists():\n        Path({{done!r}}).touch()\n        {does}\n"
        "    return text\n\n\ndef is_correct(answer, record):\n    return False\n"
    )


def once(root: Path, does: str) -> str:
    return parser_that(does).format(done=str(root / "done"))


def test_a_worker_killed_in_mid_replay_is_failed_and_tried_again(
    tmp_path: Path, cluster: RayCluster
) -> None:
    kill = once(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")
    told, entries, texts = run(tmp_path, cluster, parser=kill, retries=1)
    assert told == [("FAILED", "killed"), ("COMPLETE", None), ("COMPLETE", None)]
    assert "ActorDiedError" in texts[0]
    gone = [e.body for e in entries if e.kind == "gone"]
    assert [(b["seen_alive"], b["gone"]) for b in gone] == [(True, True)] * 3
    assert len({(p.pid, p.start_tick) for p in started(entries)}) == 3


def test_what_a_parser_raises_is_its_own_cause(tmp_path: Path, cluster: RayCluster) -> None:
    raises = once(tmp_path, "raise RuntimeError('[odd] fault')")
    told, _, texts = run(tmp_path, cluster, parser=raises, replays=1)
    assert told == [("FAILED", "parser-error")]
    assert "parse raised RuntimeError: [odd] fault" in texts[0]


def test_a_replay_that_hangs_is_ended_and_its_death_observed(
    tmp_path: Path, cluster: RayCluster
) -> None:
    told, entries, texts = run(tmp_path, cluster, parser=HANGS, replays=1, replay_s=3.0)
    assert (told, texts) == ([("FAILED", "hang")], ["no end within 3 s"])
    assert not any(is_alive(p) for p in started(entries))


def test_more_cpus_than_the_node_has_is_unschedulable_at_once(
    tmp_path: Path, cluster: RayCluster
) -> None:
    begun = time.monotonic()
    text = CONTRACT.replace("num_threads = 1", "num_threads = 4096")
    told, entries, texts = run(tmp_path, cluster, text)
    assert told == [("FAILED", "unschedulable")] * 2
    assert texts[0].startswith("4096 CPUs asked, node has ")
    assert [e.kind for e in entries if e.attempt] == ["planned", "given_up"] * 2
    assert time.monotonic() - begun < 10


def test_cpus_that_are_taken_are_waited_for_within_a_bound(
    tmp_path: Path, cluster: RayCluster
) -> None:
    held = [
        cluster._actor(_Holder, {}, num_cpus=1)
        for _ in range(int(cluster._nodes[cluster.place().node_label]["Resources"]["CPU"]))
    ]

    ray.get([actor.here.remote() for actor in held])
    told, _, texts = run(tmp_path, cluster, replays=1, start_s=1.0)
    for actor in held:
        ray.kill(actor)
    assert (told, texts) == ([("LOST", "start")], ["no answer within 1 s"])


class _Holder:
    """Occupies a CPU."""

    def here(self) -> bool:
        return True


def test_the_node_names_itself_and_checks_what_it_is_asked(
    tmp_path: Path, cluster: RayCluster
) -> None:
    assert cluster.place().node_label
    assert cluster.places() == [cluster.place()]
    write_configs(tmp_path / "configs")
    _, planned, places = planned_in(tmp_path, purpose="replay")
    landing = Landing.open(places.landing, create=True)
    campaign = Campaign(landing, cluster, {r.name: r for r in planned.named}, places.scratch)
    task = campaign.task(planned.slots[0], planned.named[0], "0" * 16)
    assert cluster.preflight([task], {}) == []
    wrong = replace(task, digests=task.digests | {"dataset": "sha256:" + "0" * 64})
    (problem,) = cluster.preflight([task, wrong], {})
    assert (problem.contract, problem.key) == ("toy", "pinned-content-changed")


def test_a_cluster_that_does_not_answer_is_a_usage_error(cluster: RayCluster) -> None:
    with pytest.raises(CannotRunError, match="--address") as raised:
        RayCluster("nonsense://here")
    assert raised.value.fix.startswith("ray status")


def test_causes_follow_the_type_of_what_ray_raises() -> None:
    from ray import exceptions

    from fleet.schedule.actors import failure

    def task_error(cause: Exception) -> exceptions.RayTaskError:
        return exceptions.RayTaskError("run", f"Traceback\n{type(cause).__name__}: {cause}", cause)

    codes = {
        "engine-error": task_error(ValueError("x")),
        "out-of-memory": task_error(MemoryError()),
        "disk-full": task_error(OSError(errno.ENOSPC, "No space left on device")),
        "killed": exceptions.ActorDiedError(),
        "node-unreachable": exceptions.NodeDiedError("gone"),
        "start": exceptions.RuntimeEnvSetupError("x"),
    }
    for code, error in codes.items():
        found = failure(error)
        assert isinstance(found, AttemptFailed)
        assert found.code == code
        assert "\n" not in found.text and type(error).__name__ in found.text
    assert failure(exceptions.OutOfMemoryError("x")).code == "out-of-memory"
    assert failure(task_error(OSError(errno.EACCES, "Permission denied"))).code == "engine-error"
