"""What a whole fleet may lose, and what it may be made of: Ray's head in mid-night, and two nodes
that compute differently under one torch contract, each on its own share of one host."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from fleet.contract.load import BUILTIN
from tests.integration.fault_fleet import NIGHT_ID, fault_fleet

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

HEAD_LOST_S = 150.0
"""Ray lets a driver whose control store is gone look for it for 60 s, then ends it."""


def test_a_night_whose_head_dies_ends_and_a_new_cluster_goes_on_with_it(tmp_path: Path) -> None:
    with fault_fleet(tmp_path, left={}) as rack:
        rack.contract("toy")
        rack.fleet_of(left=("toy",))
        rack.hold("left", "toy")
        with rack.night() as child:
            rack.until_held("left", "toy")
            lost = rack.open_attempt("left", "toy")
            (gcs,) = rack.nodes["left"].all_processes["gcs_server"]
            os.kill(gcs.process.pid, signal.SIGKILL)
            out, err = child.communicate(timeout=HEAD_LOST_S)
        assert (child.returncode, out) == (3, "")  # no verdict of half a night
        assert "without a word" in err and "--campaign-id" in err
        rack.until_no_process(lost)
        rack.anew("left")
        with rack.night() as child:
            answer = rack.told(child, 0)
        assert [v["verdict"] for v in answer["contracts"]] == ["PASS"]
        first, *others = rack.attempts("left", "toy")
        assert first[:2] in ((0, "LOST"), (0, "FAILED"))
        assert others == [(0, "COMPLETE", None), (1, "COMPLETE", None)]
        assert rack.rows(lost) == []
        rack.sound()


def test_two_nodes_that_compute_differently_are_two_platforms_of_one_torch_contract(
    tmp_path: Path,
) -> None:
    """``tiny-awq-aten`` in bf16: other bits without the vector instructions. Each node PASSes by
    itself, nothing FAILs, and what separates the two is named."""
    with fault_fleet(tmp_path, left={}, right={"ATEN_CPU_CAPABILITY": "default"}) as rack:
        for folder in ("contracts", "datasets"):
            shutil.copytree(BUILTIN / folder, rack.root / "configs" / folder, dirs_exist_ok=True)
        rack.fleet_of(left=("tiny-awq-aten",), right=("tiny-awq-aten",))
        for budget in ("600", "601"):  # nobody knows of two classes before the first night
            with rack.night("--budget", budget, "--campaign-id", f"{NIGHT_ID}{budget}") as child:
                out, err = child.communicate(timeout=600)
            assert child.returncode in (0, 3), (out[-2000:], err[-2000:])
            if not any(
                item["role"] == "named"
                for item in rack.ask("campaign", "rack", "--dry-run")["plan"]
            ):
                break
        rows = [row for row in rack.sound().values() if row["contract"] == "tiny-awq-aten"]
        assert [row["verdict"] for row in rows] == ["PASS", "PASS"]
        roots = {json.dumps(row["roots"]["logits"]) for row in rows}
        assert len(roots) == len({row["platform"] for row in rows}) == 2
        told: list[Any] = [row["platforms_apart"] for row in rows]
        assert all("ATEN_CPU_CAPABILITY" in json.dumps(apart) for apart in told)
