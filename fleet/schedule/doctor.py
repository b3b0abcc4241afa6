"""What this machine can run, and what is missing (``fleet doctor``).

Changes nothing but, when asked to, the pinned kernel cache.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console

from fleet.contract.load import list_contracts, load_contract
from fleet.errors import EvidenceError, UsageError
from fleet.evidence.landing import Landing
from fleet.replay import caches, probe
from fleet.replay.capability import image_processors
from fleet.replay.gpu import nvml
from fleet.replay.task import Device, device_environment, fitting
from fleet.replay.worker import devices_of_this_node
from fleet.report import screen
from fleet.schedule.asking import preflight
from fleet.schedule.certify import Request, plan_request
from fleet.schedule.claims import Claims, own_claim
from fleet.schedule.driver import Campaign
from fleet.schedule.launcher import Launcher
from fleet.schedule.places import Places
from fleet.schedule.warming import Outcome, warm

PACKAGES = ("ray", "torch", "transformers", "gptqmodel", "duckdb", "pyarrow", "typer", "pydantic")


@dataclass
class Findings:
    """``missing``: sentences; ``backends``: method -> {backend: "" or why it cannot run here};
    ``processors``: of images, likewise."""

    python: str
    platform: dict[str, Any]
    unit: dict[str, str]
    packages: dict[str, str]
    devices: list[dict[str, Any]] = field(default_factory=list)
    backends: dict[str, dict[str, str]] = field(default_factory=dict)
    processors: dict[str, str] = field(default_factory=dict)
    contracts: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        return {"schema": 1} | asdict(self)


def examine(places: Places, device: str | None, say: Callable[[str], None]) -> Findings:
    """Look at interpreter, packages, devices, backends, contracts and folders.

    Args:
        places: where things are.
        device: as ``FLEET_DEVICE`` says it; None for the first there is.
        say: takes progress.
    """
    say("reading the platform")
    devices, faults = _devices()
    chosen = _chosen(devices, device, faults)
    os.environ.update(device_environment(chosen))
    uuid = chosen.uuid if chosen else None
    facts = probe.read_platform("doctor", dict(os.environ), (), uuid).facts
    unit = probe.read_unit("local", chosen)
    findings = Findings(sys.version.split()[0], facts, unit, _packages())
    findings.devices = [asdict(each) | {"chosen": each == chosen} for each in devices]
    findings.missing += faults + (_compiler() if chosen else [])
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
        say("asking gptqmodel which backends run here; on a GPU some are compiled for that, once")
        os.environ.update(caches.kernel_folders(caches.pinned_kernels(places.scratch)))
        os.environ["GPTQMODEL_OFFLINE"] = "1"
        findings.backends = _backends()
    say("asking for image processors")
    findings.processors = image_processors()
    findings.contracts = {name: _contract(name, places) for name in list_contracts(places.search)}
    return findings


def _devices() -> tuple[list[Device], list[str]]:
    """The NVIDIA devices of this machine, and what stands between them and a replay."""
    try:
        found = [Device(**raw) for raw in devices_of_this_node()]
    except EvidenceError as error:
        return [], [f"NVIDIA devices that can be observed: {error.text}"]
    if not found and nvml.driver_is_loaded():
        return [], ["torch with CUDA: NVIDIA devices are here, and replays run on the CPU"]
    return found, []


def _chosen(devices: list[Device], wanted: str | None, faults: list[str]) -> Device | None:
    found = fitting(devices, wanted)
    if wanted not in (None, "cpu") and not found:
        faults.append(f"the device that FLEET_DEVICE names: {wanted}")
    return found[0] if found else None


def _compiler() -> list[str]:
    """Some backends compile their kernels at first use."""
    needed = {"nvcc": "the CUDA toolkit", "ninja": "pip install ninja"}
    return [
        f"{tool}, with which some backends compile their kernels: {how}"
        for tool, how in needed.items()
        if shutil.which(tool) is None
    ]


def _packages() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = ""
    return found


def prewarm(
    names: Sequence[str], places: Places, launcher: Launcher, say: Callable[[str], None]
) -> dict[str, Outcome]:
    """Compile what these contracts will use; contract -> what was compiled, or why not.

    Raises:
        UsageError: a contract that cannot be resolved, or cannot run here.
    """
    request = Request(tuple(names), "replay")
    planned = plan_request(request, places, say)
    contracts = {r.name: r for r in planned.named}
    campaign = Campaign(Landing(places.landing), launcher, contracts, places.scratch, on_event=say)
    preflight(campaign)
    claims: Claims = {r.name: (own_claim(r),) for r in planned.named}
    return warm(campaign, claims, every_engine=True)


def print_prewarmed(console: Console, found: dict[str, Outcome]) -> None:
    """For a person."""
    for name, outcome in found.items():
        if isinstance(outcome, str):
            console.print(f"{name}: not warmed: {outcome}", markup=False, soft_wrap=True)
        else:
            text = f"{outcome['compiled']} files compiled, {outcome['files']} in the cache"
            console.print(f"{name}: {text}, {outcome['seconds']:.1f} s", soft_wrap=True)
    if not found:
        console.print("nothing to compile: no contract with a pinned kernel cache")


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
    for each in findings.devices:
        used = f"{each['idle_bytes'] / 2**20:.0f} MiB in use"
        table.add_row("device" + (" *" if each["chosen"] else ""), f"{each['uuid']}, {used}")
    table.add_row("environment", ", ".join(findings.platform["environment"]) or "nothing set")
    console.print(table)
    for method, backends in findings.backends.items():
        can = [name for name, why in backends.items() if not why]
        console.print(f"{method} backends that run here: {', '.join(can) or 'none'}")
        for name, why in backends.items():
            if why:
                console.print(f"  {name}: {why}", markup=False, highlight=False, soft_wrap=True)
    can = [name for name, why in findings.processors.items() if not why]
    console.print(f"image processors that run here: {', '.join(can) or 'none'}")
    for name, why in findings.processors.items():
        if why:
            console.print(f"  {name}: {why}", markup=False, highlight=False, soft_wrap=True)
    for name, fault in findings.contracts.items():
        if fault:
            console.print(f"contract {name}: {fault}", markup=False, soft_wrap=True)
    for line in findings.missing:
        console.print(f"missing: {line}", style="yellow", markup=False, soft_wrap=True)
    if not findings.missing:
        console.print("nothing is missing")
