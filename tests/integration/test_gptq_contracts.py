"""The small GPTQ contracts through the command line: one sample, two fresh processes, each kernel.

A certification of both takes too long for every change.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.ray
@pytest.mark.torch
@pytest.mark.parametrize("backend", ["torch", "aten"])
def test_a_gptq_kernel_repeats_its_bits_in_fresh_processes(backend: str, tmp_path: Path) -> None:
    """``gptq_torch`` compiles its dequantisation anew in each process where dynamo may; that takes
    longer than the rest, and the contract certifies either way."""
    where = ["--store", "fleet.duckdb", "--landing", "landing", "--configs", str(ROOT / "configs")]
    one = ["replay", f"tiny-gptq-{backend}", "--sample", "q001", "--arm", "current", "--json"]
    run = subprocess.run(
        [sys.executable, "-m", "fleet", *one, *where],
        env={**os.environ, "TORCHDYNAMO_DISABLE": "1"},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    (pair,) = json.loads(run.stdout)["pairs"]
    assert (pair["contract"], pair["result"]) == (f"tiny-gptq-{backend}", "EQUAL")
    assert pair["comparison"]["counts"]["current"]["logits"] == [1, 1]
    assert pair["a"] != pair["b"]
