"""Read the platform and the unit without a model, and what the process was at its entry.

Knows no contract beyond the names of the variables it sets. An unreadable fact becomes a value that
equals no other attempt's, so it can never help a PASS.
"""

from __future__ import annotations

import hashlib
import platform as python_platform
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from fleet.errors import EvidenceError
from fleet.evidence import process
from fleet.evidence.manifest import Process
from fleet.evidence.platform import (
    FACTS,
    GPU_FACTS,
    NOT_APPLICABLE,
    PACKAGES,
    Platform,
    numerics_environment,
    record_digest_lines,
    unreadable,
)
from fleet.replay.gpu import facts
from fleet.replay.task import Device

MUST_NOT_BE_IMPORTED = ("torch", "transformers", "gptqmodel", "triton", "jax", "tensorflow")
CPUINFO = Path("/proc/cpuinfo")
MACHINE_ID = Path("/etc/machine-id")


@dataclass(frozen=True)
class AtEntry:
    """What the process was before it did anything: taken before any heavy import."""

    process: Process
    environment: dict[str, str]
    imported: tuple[str, ...]
    process_tree: tuple[int, ...]


def at_entry() -> AtEntry:
    """Take the entry facts of this process.

    Raises:
        EvidenceError: cannot-observe, where /proc does not tell.
    """
    return AtEntry(
        process=process.identity(),
        environment=process.given_environment(),
        imported=tuple(name for name in MUST_NOT_BE_IMPORTED if name in sys.modules),
        process_tree=tuple(process.process_tree()),
    )


def read_platform(
    attempt: str,
    environment: Mapping[str, str],
    set_by_contract: Iterable[str],
    device: str | None = None,
) -> Platform:
    """Every fact of the closed list, each read on its own.

    Args:
        attempt: makes an unreadable fact unique.
        environment: as the process was given it.
        set_by_contract: names of variables that the contract decides.
        device: UUID of the NVIDIA device that the process was given; None on the CPU, where the
            GPU facts are not applicable.
    """
    readers = _readers(environment, set_by_contract, device)
    found: dict[str, Any] = {}
    for name in FACTS:
        try:
            found[name] = readers[name]()
        except (OSError, LookupError, ValueError, AttributeError, EvidenceError) as error:
            found[name] = unreadable(attempt, f"{type(error).__name__}: {error}")
    return Platform(found)


def _readers(
    environment: Mapping[str, str], set_by_contract: Iterable[str], device: str | None
) -> dict[str, Callable[[], Any]]:
    readers: dict[str, Callable[[], Any]] = {name: lambda: NOT_APPLICABLE for name in GPU_FACTS}
    if device is not None:
        readers |= facts.readers(device)
    return readers | {
        "cpu_model": lambda: cpuinfo()["model name"],
        "cpu_isa": lambda: cpu_isa(cpuinfo()["flags"].split(), environment),
        "os": lambda: f"{python_platform.system()} {python_platform.machine()}",
        "glibc": lambda: " ".join(python_platform.libc_ver()),
        "python": python_platform.python_version,
        "packages": packages,
        "environment": lambda: numerics_environment(environment, set_by_contract),
    }


def cpuinfo() -> dict[str, str]:
    """The first processor's entry of /proc/cpuinfo."""
    first = CPUINFO.read_text().split("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def cpu_isa(flags: Iterable[str], environment: Mapping[str, str]) -> dict[str, str]:
    """The instruction set that ATen dispatches to, by its own rule, and all flags as a digest.

    The rule is aten/src/ATen/native/DispatchStub.cpp: the variable ATEN_CPU_CAPABILITY first, then
    what the CPU offers. What torch itself reports is read back after import, as *effective*.
    """
    have = set(flags)
    asked = environment.get("ATEN_CPU_CAPABILITY", "").lower()
    if asked in ("default", "avx2", "avx512"):
        level = asked
    elif {"avx512f", "avx512vl", "avx512bw", "avx512dq", "fma"} <= have:
        level = "avx512"
    else:
        level = "avx2" if {"avx2", "fma"} <= have else "default"
    return {
        "aten": level,
        "flags_sha256": hashlib.sha256(" ".join(sorted(have)).encode()).hexdigest(),
    }


def packages() -> dict[str, dict[str, str]]:
    """Version and content digest of every numerics-relevant package that is installed."""
    found: dict[str, dict[str, str]] = {}
    for dist in metadata.distributions():
        name = (dist.metadata["Name"] or "").lower().replace("_", "-")
        counts = name in PACKAGES or name.startswith("nvidia-")
        if counts and name not in found:  # of two on the path the first is the one imported
            lines = record_digest_lines(dist.read_text("RECORD") or "")
            digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
            found[name] = {"version": dist.version, "record_sha256": digest}
    return dict(sorted(found.items()))


def read_unit(node_label: str, device: Device | None = None) -> dict[str, str]:
    """The device as this process sees it: a GPU by its UUID, a CPU by machine and node label.

    A machine without a machine id (a container) is named by its host name.
    """
    try:
        machine = MACHINE_ID.read_text().strip()
    except OSError:
        machine = ""
    machine = machine or f"host:{socket.gethostname()}"
    return {
        "id": f"cpu:{machine}:{node_label}" if device is None else f"gpu:{device.uuid}",
        "kind": "cpu" if device is None else "gpu",
        "machine": machine,
        "node_label": node_label,
        "host": socket.gethostname(),
    }
