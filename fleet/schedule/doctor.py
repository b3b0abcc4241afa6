"""What this machine can run, and what is missing (``fleet doctor``). Changes nothing."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console

from fleet.contract.load import list_contracts, load_contract
from fleet.errors import UsageError
from fleet.replay import probe
from fleet.report import screen
from fleet.schedule.certify import Places

PACKAGES = ("ray", "torch", "transformers", "gptqmodel", "duckdb", "pyarrow", "typer", "pydantic")


@dataclass
class Findings:
    """``missing``: sentences; ``backends``: method -> {backend: "" or why it cannot run here}."""

    python: str
    platform: dict[str, Any]
    unit: dict[str, str]
    packages: dict[str, str]
    backends: dict[str, dict[str, str]] = field(default_factory=dict)
    contracts: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        return {"schema": 1} | asdict(self)


def examine(places: Places, say: Callable[[str], None]) -> Findings:
    """Look at interpreter, packages, device facts, backends, contracts and folders."""
    say("reading the platform")
    facts = probe.read_platform("doctor", dict(os.environ), ()).facts
    findings = Findings(sys.version.split()[0], facts, probe.read_unit("local"), _packages())
    findings.missing += [
        f"package {n}: pip install {n}" for n, v in findings.packages.items() if not v
    ]
    findings.missing += [
        f"platform fact {name}: {value['why']}"
        for name, value in facts.items()
        if isinstance(value, dict) and "unreadable_in" in value
    ]
    if shutil.which("cc") is None:
        findings.missing.append("a C compiler (one dependency builds with it): install gcc")
    for folder in (places.store.parent, places.landing):
        findings.missing += _writable(folder)
    if findings.packages["gptqmodel"]:
        say("asking gptqmodel which backends run here")
        findings.backends = _backends()
    findings.contracts = {name: _contract(name, places) for name in list_contracts(places.search)}
    return findings


def _packages() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = ""
    return found


def _writable(folder: Path) -> list[str]:
    nearest = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    usable = nearest.is_dir() and os.access(nearest, os.W_OK)
    return [] if usable else [f"a folder with write access at {nearest}"]


def _backends() -> dict[str, dict[str, str]]:
    from fleet.replay.capability import runnable_backends

    found = {}
    for method in ("awq", "gptq"):
        can, cannot = runnable_backends(method, 4, 64)
        found[method] = {name: "" for name in can} | dict(cannot)
    return found


def _contract(name: str, places: Places) -> str:
    try:
        load_contract(name, places.search)
    except UsageError as error:
        return str(error)
    return ""


def print_findings(console: Console, findings: Findings) -> None:
    """For a person."""
    table = screen.table(console, f"python {findings.python}", "what", "found")
    for name, version in findings.packages.items():
        table.add_row(name, version or "missing")
    for name, value in findings.platform.items():
        if name not in ("packages", "environment"):
            table.add_row(name, str(value))
    table.add_row("environment", ", ".join(findings.platform["environment"]) or "nothing set")
    console.print(table)
    for method, backends in findings.backends.items():
        can = [name for name, why in backends.items() if not why]
        console.print(f"{method} backends that run here: {', '.join(can) or 'none'}")
        for name, why in backends.items():
            if why:
                console.print(f"  {name}: {why}", markup=False, highlight=False, soft_wrap=True)
    for name, fault in findings.contracts.items():
        if fault:
            console.print(f"contract {name}: {fault}", markup=False, soft_wrap=True)
    for line in findings.missing:
        console.print(f"missing: {line}", style="yellow", markup=False, soft_wrap=True)
    if not findings.missing:
        console.print("nothing is missing")
