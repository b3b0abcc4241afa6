"""One command line as a job: run it, write down what came of it, say its exit code last.

``ray job submit`` ends with 1 whatever a job failed with, so a job's answer is its verdict file:
``{schema, job, campaign, exit_code, contracts, started, ended}``, written whole, last and once. No
file means that the job was killed or still runs: nothing is established. A 0 is believed only
beside a document that tells of a contract. Knows no verdict rule.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fleet.cli import run
from fleet.errors import UsageError
from fleet.evidence.landing import write_once

VERDICT_FILE = "FLEET_VERDICT_FILE"

OWN = ("--json", "--output", "--dry-run", "--help", "--version")
"""Options that print something else than verdicts, or that the job passes itself."""

PLACES = ("--store", "--landing", "--configs", "--trusted-keys")


def main(verb: str, then: Sequence[str] = ()) -> None:
    """What a script of ``jobs/`` is: this process's arguments, and its exit code."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what ``ray job stop`` sends
    sys.exit(job(verb, sys.argv[1:], then))


def job(verb: str, argv: Sequence[str], then: Sequence[str] = ()) -> int:
    """Run ``fleet VERB`` on the cluster that runs this job.

    Args:
        verb: what to run; its exit code is the job's.
        argv: its arguments, and ``--verdict-file PATH`` (else ``FLEET_VERDICT_FILE``).
        then: a verb that reads, whose document tells of the contracts; ``verb``'s own if empty.
    """
    started, rest = _now(), list(argv)
    path: Path | None = None
    document: dict[str, Any] = {}
    try:
        path, rest = _verdict_file(argv)
        _refuse_own(rest)
        code, document = _run(verb, rest, then)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 2
    contracts = [_contract(entry) for entry in document.get("contracts", [])]
    for each in contracts:
        print(f"{each['contract']}: {each['verdict']}: {each['reason']}")
    if path is not None:
        body = {
            "schema": 1,
            "job": [verb, *rest],
            "campaign": document.get("campaign") or _option(rest, "--campaign-id"),
            "exit_code": code,
            "contracts": contracts,
            "started": started,
            "ended": _now(),
        }
        code = _written(path, body, code)
    print(f"fleet exit code: {code}", flush=True)
    return code


def _run(verb: str, rest: Sequence[str], then: Sequence[str]) -> tuple[int, dict[str, Any]]:
    """The verb's exit code and the document about its contracts."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "document.json"
        asked = ["--json", "--output", str(file)]
        code = run([verb, *rest, "--address", "auto", *([] if then else asked)])
        if then and code in (0, 1, 3):
            places = [word for name in PLACES if (at := _option(rest, name)) for word in (name, at)]
            run([*then, *places, *asked])
        document = json.loads(file.read_bytes()) if file.exists() else {}
    if code == 0 and not document.get("contracts"):
        print("error (no verdict): it ended with 0 and told of no contract", file=sys.stderr)
        code = 3
    return code, document


def _contract(entry: dict[str, Any]) -> dict[str, Any]:
    """Of a verdict, or of a trace, which has a result in its place."""
    told = {key: entry.get(key) for key in ("contract", "execution_id", "platform", "vary")}
    word = entry.get("state") or entry.get("verdict") or entry.get("result")
    reason = entry.get("reason") or entry.get("note") or ""
    return told | {"verdict": word, "grade": entry.get("attained_grade"), "reason": reason}


def _option(argv: Sequence[str], name: str) -> str | None:
    """The value of an option, as ``--name VALUE`` or ``--name=VALUE``; the last one counts."""
    found = None
    for index, word in enumerate(argv):
        if word == name and index + 1 < len(argv):
            found = argv[index + 1]
        elif word.startswith(f"{name}="):
            found = word.partition("=")[2]
    return found


def _verdict_file(argv: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Where to write, and the arguments without it. What is there already is another run's."""
    given = _option(argv, "--verdict-file") or os.environ.get(VERDICT_FILE)
    rest = [
        word
        for before, word in zip(["", *argv], argv, strict=False)
        if before != "--verdict-file" and word.partition("=")[0] != "--verdict-file"
    ]
    if not given:
        return None, rest
    path = Path(given)
    if path.exists():
        raise _usage(given, "a file that is not there yet", "one", "its exit_code is the answer")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        got = error.strerror or str(error)
        raise _usage(given, "a folder that can be made", got, "name another path") from error
    return path, rest


def _refuse_own(rest: Sequence[str]) -> None:
    for word in rest:
        if word.partition("=")[0] in OWN:
            raise _usage(word, "what a verb is to run", "an option that is not for jobs", "drop it")


def _usage(key: str, expected: str, got: str, fix: str) -> UsageError:
    return UsageError("job", key, expected, got, fix)


def _written(path: Path, body: dict[str, Any], code: int) -> int:
    """What cannot be written down, or is another's by now, is not claimed."""
    try:
        write_once(path, (json.dumps(body, indent=2, ensure_ascii=False) + "\n").encode())
    except OSError as error:
        print(f"error (no verdict): {path} cannot be written: {error.strerror}", file=sys.stderr)
        return 3
    return code


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
