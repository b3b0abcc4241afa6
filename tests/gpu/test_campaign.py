"""Whole campaigns on a real device: what they prove about it, and that a race is found on it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fleet.evidence.stress import STREAM_SHARE
from fleet.replay.task import Device

PINNED = """extends = "tiny-awq-torch"
[determinism]
kernel_cache = "pinned"
"""


def fleet(root: Path, *argv: str) -> dict[str, Any]:
    """The document of one command line over the contract ``pinned``; its exit code as ``exit``."""
    contracts = root / "configs" / "contracts"
    contracts.mkdir(parents=True, exist_ok=True)
    (contracts / "pinned.toml").write_text(PINNED)
    run = subprocess.run(
        [sys.executable, "-m", "fleet", *argv, "--json", "--configs", str(root / "configs")],
        cwd=root, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode in (0, 1), run.stderr
    document: dict[str, Any] = json.loads(run.stdout)
    return document | {"exit": run.returncode}


def manifests(root: Path, contract: str) -> list[dict[str, Any]]:
    found = (json.loads(p.read_bytes()) for p in root.glob("var/landing/attempts/*/manifest.json"))
    return [each for each in found if each["contract"] == contract]


@pytest.fixture(scope="module")
def certified(work: Path) -> dict[str, Any]:
    return fleet(work, "certify", "pinned")


def test_a_contract_is_certified_on_the_device_and_the_controls_behave(
    certified: dict[str, Any],
) -> None:
    assert certified["exit"] == 0
    (entry,) = certified["contracts"]
    assert (entry["verdict"], entry["attained_grade"]) == ("PASS", "logits")
    assert [c["mismatches"] for c in certified["controls"]] == [[], [], []]


@pytest.mark.usefixtures("certified")
def test_both_replays_prove_that_the_device_was_theirs_alone(work: Path, device: Device) -> None:
    replays = manifests(work, "pinned")
    assert [m["unit"]["id"] for m in replays] == [f"gpu:{device.uuid}"] * 2
    for manifest in replays:
        free, seen = manifest["freshness"]["device"], manifest["volatile"]["device"]
        assert free["not_free"] is None
        assert free["seen_at_s"] <= manifest["freshness"]["device_first_used_after_s"]
        assert seen["samples"] > 0
        assert seen["ecc_new"]["uncorrected"] in (0, "not supported")
        assert manifest["volatile"]["peak_bytes"] > 0
        assert manifest["effective"]["model.device"] == "cuda"
        assert manifest["volatile"]["digests"] == "device"


@pytest.mark.usefixtures("certified")
def test_the_kernels_that_ran_are_named_and_the_same(work: Path) -> None:
    one, two = (m["census"]["executed"] for m in manifests(work, "pinned"))
    assert one["prefill"] and one["decode"]
    assert one == two
    assert not [name for phase in one.values() for name in phase if name.startswith("fleet_")]


@pytest.mark.usefixtures("certified")
def test_a_warm_kernel_cache_is_not_compiled_again(work: Path) -> None:
    first = fleet(work, "doctor", "--prewarm", "pinned")["prewarmed"]["pinned"]
    again = fleet(work, "doctor", "--prewarm", "pinned")["prewarmed"]["pinned"]
    assert again == {"compiled": 0, "files": first["files"], "seconds": 0.0}


def test_a_race_on_the_device_is_traced_to_its_module(work: Path) -> None:
    document = fleet(work, "trace", "control-racy", "--repeats", "50")
    (entry,) = document["contracts"]
    assert document["exit"] == 1
    assert entry["culprit"]["path"] == "model.layers.0.self_attn.k_proj"
    assert entry["culprit"]["kind"] == "race"


@pytest.mark.usefixtures("certified")
def test_load_is_varied_on_the_device_and_on_its_host(work: Path) -> None:
    document = fleet(work, "certify", "pinned", "--vary", "load")
    (entry,) = document["contracts"]
    assert (document["exit"], entry["verdict"], entry["vary"]) == (0, "PASS", ["load"])
    (varied,) = (m for m in manifests(work, "pinned") if m.get("varied"))
    load = varied["stress"]["load"]
    assert load["running"] == varied["varied"]["load"]
    assert load["device_launches"] > 0
    assert load["device_busy_ms"] / 1000 > STREAM_SHARE * load["device_wall_s"] > 0
