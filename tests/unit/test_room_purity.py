"""The pure rooms stay pure: importing all of them loads no heavy library."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = {
    "contract": ("torch", "ray", "duckdb", "transformers", "pyarrow", "numpy", "jinja2"),
    "evidence": ("torch", "ray", "duckdb", "transformers", "fsspec", "s3fs", "botocore"),
    "judge": ("torch", "ray", "duckdb", "transformers"),
}
PROGRAM = """
import importlib, json, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(json.dumps(sorted(sys.modules)))
"""


def modules_of(room: str) -> list[str]:
    paths = sorted((ROOT / "fleet" / room).rglob("*.py"))
    names = (path.relative_to(ROOT).with_suffix("").as_posix() for path in paths)
    return [name.replace("/", ".").removesuffix(".__init__") for name in names]


@pytest.mark.parametrize("room", [r for r in ROOMS if (ROOT / "fleet" / r).is_dir()])
def test_a_pure_room_loads_no_heavy_library(room: str) -> None:
    modules = modules_of(room)
    assert modules
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *modules],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(json.loads(done.stdout))
    assert set(modules) <= loaded
    assert not loaded & set(ROOMS[room])
