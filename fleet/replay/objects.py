"""Compiled code that this process has loaded and that came with no package: kernels built here.

The version of a package does not say what a compiler made of its sources on this machine, so each
shared object that was built here is named with the digest of its bytes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from fleet.evidence.landing import file_sha256
from fleet.replay.caches import KERNEL_FOLDERS

MAPS = Path("/proc/self/maps")


def built_here(environment: Mapping[str, str]) -> dict[str, str]:
    """File name -> digest of every shared object mapped from a kernel folder, or from a cache that
    the contract did not name (which is why it is looked for too).

    Args:
        environment: names the kernel folders.
    """
    folders = [environment[name] for name in KERNEL_FOLDERS if environment.get(name)]
    folders.append(str(Path.home() / ".cache"))
    mapped = {line.split(maxsplit=5)[5] for line in MAPS.read_text().splitlines() if ".so" in line}
    return {
        Path(path).name: file_sha256(Path(path))
        for path in sorted(mapped)
        if path.startswith(tuple(f"{folder}{os.sep}" for folder in folders))
    }
