"""The command line as a person uses it: in a process of its own, in a folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def tree(root: Path) -> dict[str, bytes | None]:
    """Every file with its bytes, every folder with None."""
    return {str(p): p.read_bytes() if p.is_file() else None for p in sorted(root.rglob("*"))}


def fleet(root: Path, *argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """One command line in a process of its own."""
    given = {k: v for k, v in os.environ.items() if not k.startswith("FLEET_")}
    given |= {"PYTHONPATH": str(ROOT), "FLEET_CACHE": str(root / "cache")} | environment
    command = [sys.executable, "-m", "fleet", *argv]
    return subprocess.run(
        command, cwd=root, env=given, capture_output=True, text=True, check=False, timeout=120
    )
