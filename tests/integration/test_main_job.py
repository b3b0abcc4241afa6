"""The main job on real engines, through the command line, on local Ray."""

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
FEW = ("few-awq-torch", "few-awq-aten")

ASKED = [
    "contract",
    "execution_id",
    "platform",
    "verdict",
    "attained_grade",
    "required_grade",
    "scope",
    "vary",
    "traced",
    "layer",
    "layers",
    "reason",
    "arms",
    "records",
    "mismatches",
    "bounds",
    "power",
    "envelope",
    "attempts",
    "roots",
    "first_difference",
    "warnings",
]


def fleet(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """One command line, with its store and landing in ``folder``."""
    where = ["--store", str(folder / "fleet.duckdb"), "--landing", str(folder / "landing")]
    search = os.pathsep.join([str(folder / "configs"), str(ROOT / "configs")])
    command = [sys.executable, "-m", "fleet", *argv, *where, "--configs", search]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


def few_questions(folder: Path) -> None:
    """The two AWQ contracts over six questions: what they show takes no more."""
    lines = (ROOT / "configs" / "datasets" / "choices-24.jsonl").read_bytes().splitlines(True)[:6]
    write_dataset(folder / "configs", "few", b"".join(lines))
    for name in FEW:
        text = f'extends = "{name.replace("few", "tiny")}"\n[decoding]\nmax_new_tokens = 4\n'
        write_contract(folder / "configs", name, text + '[dataset]\nname = "few"\n')


def certified(
    folder: Path, *contracts: str, trace: str = "never"
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The JSON document of ``certify``, and its contracts by name."""
    run = fleet(folder, "certify", *contracts, "--trace", trace, "--json")
    assert run.returncode == 0, run.stdout + run.stderr
    document: dict[str, Any] = json.loads(run.stdout)
    assert [c["contract"] for c in document["contracts"]] == list(contracts)
    return document, {c["contract"]: c for c in document["contracts"]}


@pytest.mark.ray
@pytest.mark.torch
@pytest.mark.timeout(900)
def test_one_checkpoint_under_two_backends_is_two_sets_of_bits_and_the_controls_behave(
    tmp_path: Path,
) -> None:
    few_questions(tmp_path)
    document, found = certified(tmp_path, *FEW, "control-racy", trace="on-fail")
    for name in FEW:
        assert found[name]["verdict"] == "PASS"
        assert found[name]["attained_grade"] == "logits"
        assert found[name]["records"] == 12
        assert found[name]["mismatches"] == 0
        assert len(found[name]["roots"]["logits"]) == 1
    assert found[FEW[0]]["roots"]["logits"] != found[FEW[1]]["roots"]["logits"]
    racy = found["control-racy"]
    assert (racy["verdict"], racy["layer"], racy["layers"]) == ("FAIL", 3, [3])
    culprit = racy["culprit"]
    assert culprit["path"] == "model.layers.0.self_attn.k_proj"
    assert (culprit["kind"], culprit["source"], racy["fault"]) == ("race", "later", "race")
    assert [found[name]["culprit"] for name in FEW] == [None, None]
    assert racy["first_broken_grade"] == "logits"
    assert len(racy["roots"]["logits"]) == 2
    assert racy["first_difference"]["sample_id"]
    assert [c["contract"] for c in document["controls"]] == ["control-clean", "control-traced"]
    assert [c["mismatches"] for c in document["controls"]] == [[], []]
    _tracer_named_the_injected_fault(document["controls"][1])
    for contract in document["contracts"]:
        assert set(ASKED) <= set(contract)
    _rebuilt_store_says_the_same(tmp_path, found)


def _tracer_named_the_injected_fault(control: dict[str, Any]) -> None:
    culprit = control["culprit"]
    assert (control["verdict"], control["layer"], control["fault"]) == ("FAIL", 3, "race")
    assert (culprit["class"], culprit["kind"]) == ("RacyLinear", "race")
    assert culprit["unique"] > 1
    assert culprit["survives_to_logits"] is True


def _rebuilt_store_says_the_same(folder: Path, found: dict[str, dict[str, Any]]) -> None:
    (folder / "fleet.duckdb").unlink()
    (folder / "fleet.duckdb.snapshot").unlink()
    assert fleet(folder, "store", "rebuild").returncode == 0
    status = fleet(folder, "status", *FEW, "control-racy", "--json")
    assert status.returncode == 0, status.stdout + status.stderr
    for row in json.loads(status.stdout)["contracts"]:
        before = found[row["contract"]]
        assert (row["verdict"], row["roots"]) == (before["verdict"], before["roots"])


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_real_model_passes_quantised_and_not(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    names = ("smollm2-bf16", "smollm2-awq-aten", "tiny-awq-torch", "tiny-awq-aten")
    _, found = certified(tmp_path, *names)
    for contract in found.values():
        assert (contract["verdict"], contract["records"]) == ("PASS", 48)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_the_full_dataset_passes_quantised_and_not(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    _, found = certified(tmp_path, "smollm2-bf16-full", "smollm2-awq-aten-full")
    for contract in found.values():
        assert (contract["verdict"], contract["records"]) == ("PASS", 382)
