"""``fleet sweep`` through the command line, on local Ray and a small AWQ checkpoint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.campaigns import write_contract, write_dataset

ROOT = Path(__file__).parents[2]
NAMES = "awq_torch,awq_torch_aten,awq_marlin"
FEW = """extends = "tiny-awq-torch"
[decoding]
max_new_tokens = 4
[dataset]
name = "few"
"""
RACY = '[control]\ninject = "racy_linear:lm_head"\n'
FIGURES = ("tokens_per_s", "load_s")

pytestmark = [pytest.mark.ray, pytest.mark.torch, pytest.mark.timeout(600)]


def fleet(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """One command line over the contracts ``few`` and ``racy``, three questions each."""
    lines = (ROOT / "configs" / "datasets" / "choices-24.jsonl").read_bytes().splitlines(True)[:3]
    write_dataset(folder / "configs", "few", b"".join(lines))
    write_contract(folder / "configs", "few", FEW)
    write_contract(folder / "configs", "racy", FEW + RACY)
    search = os.pathsep.join([f"{folder}/configs", str(ROOT / "configs")])
    return subprocess.run(
        [sys.executable, "-m", "fleet", *argv, "--configs", search],
        capture_output=True, text=True, check=False, cwd=folder, env=os.environ | {"COLUMNS": "80"},
    )  # fmt: skip


def document_of(run: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(run.stdout)
    assert set(document) == {"schema", "campaign", "base", "contracts", "controls", "fastest"}
    return document


@pytest.mark.slow
def test_two_backends_pass_and_the_fastest_is_named(tmp_path: Path) -> None:
    run = fleet(tmp_path, "sweep", "few", "--backends", NAMES, "--no-screen", "--json")
    assert run.returncode == 0, run.stdout + run.stderr
    document = document_of(run)
    *ran, marlin = document["contracts"]
    assert (marlin["contract"], marlin["runnable"], marlin["verdict"]) == (
        "few@awq_marlin", False, None,
    )  # fmt: skip
    assert "CUDA" in marlin["reason"]
    assert {e["contract"] for e in ran} == {"few@awq_torch", "few@awq_torch_aten"}
    for entry in ran:
        assert (entry["verdict"], entry["grade"], entry["dtype"]) == ("PASS", "logits", "bfloat16")
        assert all(entry[name] > 0 for name in FIGURES)
        assert sum(entry["kernels"].values()) == 14
    assert ran[0]["tokens_per_s"] >= ran[1]["tokens_per_s"]
    assert document["fastest"]["contract"] == ran[0]["contract"]
    assert len(document["controls"]) == 3
    assert all(control["behaves"] for control in document["controls"])
    _status_knows_the_variants(tmp_path)


def _status_knows_the_variants(folder: Path) -> None:
    run = fleet(folder, "status", "few@awq_torch", "few@awq_torch_aten")
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("PASS") == 2
    assert fleet(folder, "status", "few@auto").returncode == 2


@pytest.mark.slow
def test_what_differs_at_the_screen_fails_with_the_screens_own_culprit(tmp_path: Path) -> None:
    run = fleet(tmp_path, "sweep", "racy", "--backends", "awq_torch", "--json")
    assert run.returncode == 1, run.stdout + run.stderr
    document = document_of(run)
    (entry,) = document["contracts"]
    assert (entry["screen"], entry["verdict"]) == ("DIFFERENT", "FAIL")
    assert (entry["culprit"]["path"], entry["fault"]) == ("lm_head", "race")
    assert entry["campaigns"]["screen"] == document["campaign"]
    assert entry["campaigns"]["certify"] is entry["campaigns"]["trace"] is None
    assert (entry["measured_in"], document["fastest"]) == ("screen", None)


def test_a_dry_run_asks_the_node_and_writes_nothing(tmp_path: Path) -> None:
    run = fleet(tmp_path, "sweep", "few", "--backends", "awq_torch,awq_marlin", "--dry-run")
    assert run.returncode == 0, run.stdout + run.stderr
    assert "  few@awq_torch in bfloat16" in run.stdout
    assert "  awq_marlin: " in run.stdout
    assert not (tmp_path / "var").exists()
