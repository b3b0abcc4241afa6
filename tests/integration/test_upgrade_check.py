"""``fleet upgrade-check`` between stacks of the package registry, on a CPU: what the README shows.

Needs the network and, for the two versions of torch, gigabytes; each comparison takes minutes.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fleet.replay.software import canonical
from fleet.schedule.mixtures import uv
from tests.integration.command_line import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.torch, pytest.mark.timeout(7200)]

BFLOAT16, FLOAT16 = "tiny-awq-aten", "tiny-awq-aten@awq_torch_aten:float16"

TORCH = "torch==2.13.0"
OLD = (TORCH, "transformers==5.17.0", "gptqmodel==7.6.0")
BASE = (TORCH, "transformers==5.24.0", "gptqmodel==7.6.0")


def given() -> dict[str, str]:
    """Where pip finds packages beside the registry, uv does."""
    found = dict(os.environ)
    for ours, theirs in (("UV_FIND_LINKS", "PIP_FIND_LINKS"), ("SSL_CERT_FILE", "PIP_CERT")):
        if theirs in found:
            found.setdefault(ours, found[theirs])
    return found


def resolver(*argv: str) -> None:
    subprocess.run([uv(), *argv], env=given(), check=True, capture_output=True, text=True)


def environment(folder: Path, pins: tuple[str, ...], *after: str) -> Path:
    """What fleet needs, as tested, but for these; ``after``: put in without what it declares."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    chosen = {canonical(re.split("[=<>]", pin)[0]) for pin in pins}
    moving = {*chosen, "huggingface-hub", "tokenizers", "safetensors"}
    lines = (ROOT / "constraints-cpu.txt").read_text().splitlines()
    tested = [x for x in lines if canonical(x.partition("==")[0]) not in moving]
    constraints = folder.with_suffix(".txt")
    constraints.write_text("\n".join(tested) + "\n")
    declared = project["dependencies"]
    needed = [r for r in declared if canonical(re.split("[=<>]", r)[0]) not in chosen]
    python = str(folder / "bin" / "python")
    resolver("venv", "--python", sys.executable, str(folder))
    resolver("pip", "install", "--python", python, "-c", str(constraints), *needed, *pins)
    for pin in after:
        resolver("pip", "install", "--python", python, "--no-deps", pin)
    return folder / "bin" / "python"


def run(root: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """A command line with the cache of demo checkpoints that there is."""
    around = given() | {"PYTHONPATH": str(ROOT), "FLEET_CONFIGS": str(root / "configs")}
    command = [sys.executable, "-m", "fleet", *argv]
    return subprocess.run(
        command, cwd=root, env=around, capture_output=True, text=True, check=False, timeout=7000
    )


def frozen(root: Path, name: str, python: Path) -> None:
    file = f"configs/stacks/{name}.toml"
    done = run(root, "stack", "freeze", "--python", str(python), "--output", file)
    assert done.returncode == 0, done.stderr


def compared(root: Path, *argv: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit code, and the answer for each contract."""
    done = run(root, "upgrade-check", *argv, "--reuse", "--json")
    assert done.returncode in (0, 1), done.stderr
    told = json.loads(done.stdout)["contracts"]
    return done.returncode, {entry["contract"]: entry for entry in told}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three stacks; what is certified on one of them is reused by the next comparison."""
    made = tmp_path_factory.mktemp("registry")
    (made / "configs").mkdir()
    frozen(made, "transformers-5.17", environment(made / "old", OLD))
    frozen(made, "base", environment(made / "base", BASE))
    frozen(made, "gptqmodel-7.7", environment(made / "new", BASE, "gptqmodel==7.7.0"))
    return made


def test_two_versions_of_gptqmodel_keep_bfloat16_and_change_float16(root: Path) -> None:
    both = ("--contract", BFLOAT16, "--contract", FLOAT16)
    code, told = compared(root, "base", "gptqmodel-7.7", *both)
    assert code == 1
    assert (told[BFLOAT16]["verdict"], told[BFLOAT16]["attained_grade"]) == ("KEPT", "logits")
    changed = told[FLOAT16]
    assert (changed["verdict"], changed["attained_grade"]) == ("CHANGED", "prediction")
    assert changed["start"]["stage"] == "post_init_weights"
    assert changed["culprit"]["tensor"].endswith("qzeros")
    assert changed["culprit"]["class"] == "TorchAtenAwqLinear"


def test_the_change_is_bisected_to_one_package_of_several(root: Path) -> None:
    asked = ("--contract", FLOAT16, "--bisect")
    code, told = compared(root, "transformers-5.17", "gptqmodel-7.7", *asked)
    found = told[FLOAT16]["bisection"]
    assert (code, found["moves"], found["before"]) == (1, ["gptqmodel"], ["transformers"])
    # gptqmodel 7.7.0 takes no transformers before 5.20.2, so it cannot be shown alone
    assert found["alone"] is None and found["steps"][-1]["seen"] == "refused"
    assert "transformers>=5.20.2" in found["steps"][-1]["words"]
    assert {"base", "changed"} <= {step["seen"] for step in found["steps"]}


def test_two_versions_of_transformers_keep_their_bits(root: Path) -> None:
    code, told = compared(root, "transformers-5.17", "base", "--contract", FLOAT16)
    assert (code, told[FLOAT16]["verdict"], told[FLOAT16]["attained_grade"]) == (
        0,
        "KEPT",
        "logits",
    )


def test_two_versions_of_torch_keep_tokens_and_change_logits(root: Path) -> None:
    pins = ("torch==2.14.1", *BASE[1:])
    frozen(root, "torch-2.14", environment(root / "torch", pins))
    code, told = compared(root, "base", "torch-2.14", "--contract", FLOAT16)
    changed = told[FLOAT16]
    assert (code, changed["verdict"], changed["attained_grade"]) == (1, "CHANGED", "logits")
    assert changed["differing"]["tokens"] == {"controlled": [0, 24], "current": [0, 24]}
    culprit = changed["culprit"]
    assert (culprit["path"], culprit["class"]) == ("lm_head", "Linear")
    # one operation of one input, each stack's own in every repeat: torch's kernel, not the code
    assert (culprit["zoom"]["name"], culprit["zoom"]["how"]) == ("aten.linear.default", "output")
    assert changed["start"]["layer"] == 3 and culprit["repeats"] == 400
