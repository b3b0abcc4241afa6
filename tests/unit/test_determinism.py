"""Settings are put in force and read back from torch and the operating system, never echoed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from fleet.replay import determinism
from tests.integration.engine_cases import contract

pytestmark = pytest.mark.torch

STRICT = contract()
OTHER = contract(
    determinism={
        "seed": 7,
        "deterministic_algorithms": "warn",
        "fill_uninitialized_memory": False,
        "cudnn_benchmark": True,
        "cudnn_deterministic": False,
        "allow_tf32": True,
        "num_threads": 2,
    },
    attention={"sdpa_kernels": ["math", "flash"]},
)

READ_BACKS = """
import json, sys, warnings
warnings.simplefilter("error")
from fleet.contract.model import Contract
from fleet.replay import determinism
contracts = [Contract.model_validate_json(line, strict=False) for line in sys.stdin]
seen = []
for contract in contracts:
    determinism.apply(contract)
    seen.append(determinism.read_back(contract))
import torch
torch.backends.cudnn.allow_tf32  # third parties may read the old flag: it must not raise
print(json.dumps(seen))
"""


def read_backs(contracts: list[Any], environment: dict[str, str]) -> list[tuple[dict, dict]]:
    """(effective, required) after applying each contract in turn, in one fresh process."""
    done = subprocess.run(
        [sys.executable, "-c", READ_BACKS],
        input="\n".join(c.model_dump_json(exclude_none=True) for c in contracts),
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return [tuple(pair) for pair in json.loads(done.stdout)]


def mismatches(pair: tuple[dict, dict]) -> list[str]:
    effective, required = pair
    return [key for key, value in required.items() if effective[key] != value]


def test_everything_a_contract_asks_for_is_in_force_in_a_fresh_process() -> None:
    strict, other, again = read_backs([STRICT, OTHER, STRICT], determinism.environment(STRICT))
    assert mismatches(strict) == []
    # OTHER allows TF32 and two threads, which this environment was not made for.
    pools = ("OMP", "MKL", "OPENBLAS")
    assert mismatches(other) == [f"env.{pool}_NUM_THREADS" for pool in pools]
    assert mismatches(again) == []
    assert strict[0] == again[0]


def test_a_process_started_without_the_environment_is_found_out() -> None:
    bare = {name: "" for name in determinism.environment(STRICT)} | {"OMP_NUM_THREADS": "1"}
    (pair,) = read_backs([STRICT], bare)
    assert {"python.hash_seed", "env.CUBLAS_WORKSPACE_CONFIG"} < set(mismatches(pair))


def test_a_hash_seed_set_after_the_start_is_not_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    at_start = os.environ.get("PYTHONHASHSEED")
    monkeypatch.setenv("PYTHONHASHSEED", "4242")
    effective, _ = determinism.read_back(STRICT)
    assert effective["env.PYTHONHASHSEED"] == "4242"
    assert effective["python.hash_seed"] == at_start


def test_the_environment_needs_no_torch() -> None:
    code = "import fleet.replay.determinism, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_synthetic_engine_is_seeded_without_torch() -> None:
    code = (
        "import sys, random; from fleet.replay.determinism import seed_all; "
        "seed_all(3, 'synthetic'); a = random.random(); seed_all(3, 'synthetic'); "
        "sys.exit('torch' in sys.modules or random.random() != a)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_tf32_is_overridden_only_where_the_contract_forbids_it() -> None:
    assert determinism.environment(STRICT)["NVIDIA_TF32_OVERRIDE"] == "0"
    assert "NVIDIA_TF32_OVERRIDE" not in determinism.environment(OTHER)


def test_seeds_reach_every_generator() -> None:
    import random

    import numpy
    import torch

    draws = []
    for _ in range(2):
        determinism.seed_all(2**70 + 5)
        draws.append((random.random(), numpy.random.random(), torch.rand(1).item()))
    assert draws[0] == draws[1]
