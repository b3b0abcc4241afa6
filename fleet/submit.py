"""Submit a night to a Ray cluster, once a day, and give the exit code of its own verdict.

The submission id is the fleet's name and the UTC date: Ray refuses a second job of one id, and the
first one's verdict file is the answer then too. What ``ray job submit`` ends with says nothing of a
verdict and is not looked at. No verdict file: nothing is established, exit 3. Starts ``ray`` as a
program; knows no verdict rule.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path


def main(script: Path) -> None:
    """What ``jobs/submit.py`` is.

    Args:
        script: the job's script, at a path that the cluster's head has as well.
    """
    parser = argparse.ArgumentParser(description="Submit a fleet's night, once a UTC day.")
    parser.add_argument("fleet", help="name or file of the fleet")
    parser.add_argument("--verdicts", type=Path, required=True, help="folder that the head shares")
    parser.add_argument("--day", type=date.fromisoformat, default=datetime.now(UTC).date())
    parser.add_argument("--address", help="of the dashboard: http://HEAD:8265; else RAY_ADDRESS")
    parser.epilog = "What stands after -- is for fleet campaign."
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    given, rest = parser.parse_args(sys.argv[1:end]), sys.argv[end + 1 :]
    address = ["--address", given.address] if given.address else []
    sys.exit(submit(script, given.fleet, given.day, given.verdicts, address, rest))


def submission_id(fleet: str, day: date) -> str:
    """One for each fleet and UTC day, such as ``nightly-2026-11-30``."""
    return f"{Path(fleet).name.removesuffix('.toml')}-{day.isoformat()}"


def submit(
    script: Path,
    fleet: str,
    day: date,
    verdicts: Path,
    ray_options: Sequence[str] = (),
    rest: Sequence[str] = (),
) -> int:
    """Submit it, wait for its end, and read its verdict; one that is there already is read at once.

    Returns:
        The exit code of the verdict file; 3 without one.
    """
    name = submission_id(fleet, day)
    file = verdicts.absolute() / f"{name}.json"
    if not file.exists():
        job = ["python", str(script), fleet, *rest, "--verdict-file", str(file)]
        _run([_ray(), "job", "submit", *ray_options, "--submission-id", name, "--", *job])
    code = exit_code_of(file)
    if code is None:
        print(f"no verdict (yet) in {file}: {name} was not started, still runs, or was killed")
        print(f"  next: ray job status {name}; ray job logs {name}")
        return 3
    print(f"{file}\nfleet exit code: {code}")
    return code


def exit_code_of(file: Path) -> int | None:
    """What a verdict file says; None where there is none, and 3 for what cannot be read."""
    try:
        code = json.loads(file.read_bytes())["exit_code"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError):
        return 3
    return code if type(code) is int and code in (0, 1, 2, 3) else 3


def _run(command: Sequence[str]) -> None:
    try:
        subprocess.run(command, check=False)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}: pip install 'ray[default]'", file=sys.stderr)


def _ray() -> str:
    """The program beside this Python, else the one of the path."""
    beside = Path(sys.executable).with_name("ray")
    return str(beside) if beside.exists() else shutil.which("ray") or "ray"
