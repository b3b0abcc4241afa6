"""The small GPTQ contracts: one sample, two fresh processes, each kernel.

A certification of both takes too long for every change.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fleet.contract.load import BUILTIN
from fleet.replay.checkpoint import default_cache
from fleet.schedule.certify import Request, plan_request, run_request
from fleet.schedule.places import Places
from fleet.store import queries
from fleet.store.open import open_reader
from tests.process_launcher import ProcessLauncher

NAMES = ("tiny-gptq-torch", "tiny-gptq-aten")


@pytest.mark.slow
@pytest.mark.torch
def test_each_gptq_kernel_repeats_its_bits_in_fresh_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``gptq_torch`` compiles its dequantisation anew in each process where dynamo may; that takes
    longer than the rest, and the contract certifies either way."""
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    cache = default_cache(os.environ)
    scratch = tmp_path / "scratch"
    places = Places((BUILTIN,), tmp_path / "fleet.duckdb", tmp_path / "landing", cache, scratch)
    request = Request(NAMES, "replay", samples=("q001",), arms=("current",))
    planned = plan_request(request, places, lambda _: None)
    launcher = ProcessLauncher(torch=True)
    campaign, _ = run_request(request, planned, places, launcher, lambda _: None)
    with open_reader(places.store) as store:
        landed = queries.summaries(store.con, campaign=campaign.id)
    assert [one.state for one in landed] == ["COMPLETE"] * 4
    assert [one.contract for one in landed] == [name for name in NAMES for _ in range(2)]
    roots = [one.roots["logits"] for one in landed]
    assert roots[0] == roots[1] != roots[2] == roots[3]
