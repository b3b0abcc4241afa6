"""Peak memory of the driver with a million records behind it, over that with ten thousand; and with
a thousand replays of a thousand records, over that with fifty.

    python -m tests.bench.bench_memory [--records 10000 1000000] [--replays 50 1000]

The driver's whole way through ``certify``, in a process of its own per size: resolve, plan, ledger,
ingest, judge, for two attempts (or so many) and the two controls. The attempts land honest rows
from processes of their own (``landed_attempt``), whose memory does not count. Target 1.2.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.errors import AttemptFailed
from fleet.evidence.landing import file_sha256
from fleet.evidence.manifest import Process
from fleet.evidence.process import identity, is_alive
from fleet.replay.checkpoint import silent
from fleet.replay.task import ReplayTask
from fleet.schedule.certify import Request, certify, plan_request
from fleet.schedule.driver import Limits
from fleet.schedule.places import Places
from tests.bench.result import Result
from tests.process_launcher import ROOT, ProcessLauncher, RunningChild, read_line

TARGET = 1.2
SIZES = (10_000, 1_000_000)
REPLAYS = (50, 1000)
RECORDS_A_REPLAY = 1000
NAME = "large"
CONFIGS = ROOT / "configs"


@dataclass
class LandingLauncher(ProcessLauncher):
    """Attempts of the large contract land rows that nothing ran; its controls are replays."""

    def start(
        self,
        task: ReplayTask,
        environment: Mapping[str, str],
        num_cpus: int,
        deadline_s: float,
    ) -> RunningChild:
        if task.contract_name != NAME:
            return super().start(task, environment, num_cpus, deadline_s)
        ours, theirs = os.pipe()
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.landed_attempt", str(theirs)],
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            pass_fds=(theirs,),
            text=True,
            cwd=ROOT,
        )
        os.close(theirs)
        line = read_line(ours, deadline_s)
        if not line:
            raise AttemptFailed("start", "the child did not answer")
        process = Process(**json.loads(line))
        watcher = {"process": vars(identity())}
        return RunningChild(child, ours, process, task, watcher, is_alive(process))


def certify_large(folder: Path, records: int, replays: int = 2) -> dict[str, Any]:
    """Certify a contract over ``records`` records in this process: verdict and peak memory."""
    places = Places(
        search=(_configs(folder, records // 2), CONFIGS),
        store=folder / "fleet.duckdb",
        landing=folder / "landing",
        cache=folder / "cache",
        scratch=folder / "scratch",
    )
    request = Request((NAME,), limits=Limits(retries=0), replays=replays)
    planned = plan_request(request, places, silent)
    peaks = {"planned": peak_bytes()}
    answer = certify(request, planned, places, LandingLauncher(), silent)
    peaks["judged"] = peak_bytes()
    return {"exit_code": answer.exit_code(), "peaks": peaks}


def _configs(folder: Path, samples: int) -> Path:
    """The shipped synthetic contract over a data set of its own."""
    configs = folder / "configs"
    for name in ("contracts", "datasets"):
        (configs / name).mkdir(parents=True)
    shipped = (CONFIGS / "contracts" / "synthetic.toml").read_text()
    text = shipped.replace('name = "choices-24"', f'name = "{NAME}"')
    (configs / "contracts" / f"{NAME}.toml").write_text(text)
    data = configs / "datasets" / f"{NAME}.jsonl"
    with data.open("w") as file:
        for i in range(samples):
            line = {"id": f"s{i:07d}", "question": f"Question {i}?", "choices": "", "answer": "A"}
            file.write(json.dumps(line) + "\n")
    pinned = f'file = "{data.name}"\nsha256 = "{file_sha256(data)}"\n'
    (configs / "datasets" / f"{NAME}.toml").write_text(pinned)
    return configs


def peak_bytes() -> int:
    """Peak resident memory of this process. ``ru_maxrss`` would start at the parent's."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmHWM in /proc/self/status")


def bench(sizes: tuple[int, int] = SIZES) -> Result:
    """Measure both sizes, each in a fresh process."""
    small, large = (_measure(records) for records in sizes)
    ratio = large["peaks"]["judged"] / small["peaks"]["judged"]
    return Result(
        f"peak driver memory, {sizes[1]:,} records over {sizes[0]:,}",
        TARGET,
        (ratio,),
        "x",
        more={"small": small, "large": large},
    )


def bench_replays(sizes: tuple[int, int] = REPLAYS, records: int = RECORDS_A_REPLAY) -> Result:
    """The same over numbers of replays."""
    few, many = (_measure(records, replays) for replays in sizes)
    ratio = many["peaks"]["judged"] / few["peaks"]["judged"]
    what = f"{sizes[1]:,} replays over {sizes[0]:,}, {records:,} records each"
    more = {"few": few, "many": many}
    return Result(f"peak driver memory, {what}", TARGET, (ratio,), "x", more=more)


def _measure(records: int, replays: int = 2) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.bench.bench_memory", "--here", str(records)]
    command += ["--number", str(replays)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if found["exit_code"] != 0:
        raise RuntimeError(f"{records} records: no PASS, exit code {found['exit_code']}")
    return found


def run(quick: bool = False) -> Iterator[Result]:
    """One result; ``quick`` for a smoke test."""
    yield bench((200, 2000)) if quick else bench()
    yield bench_replays((2, 6), 200) if quick else bench_replays()


def main() -> None:
    """Print one JSON line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, nargs=2, default=SIZES)
    parser.add_argument("--here", type=int, help="records to certify in this process")
    parser.add_argument("--number", type=int, default=2, help="replays in this process")
    parser.add_argument("--replays", type=int, nargs=2, help="the second measure alone")
    given = parser.parse_args()
    if given.here:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(certify_large(Path(folder), given.here, given.number)))
        return
    if given.replays:
        return print(json.dumps(bench_replays(tuple(given.replays)).to_json()))
    print(json.dumps(bench(tuple(given.records)).to_json()))


if __name__ == "__main__":
    main()
