"""From a FAIL to its cause through the command line, on local Ray and a small bf16 model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest

ROOT = Path(__file__).parents[2]
WHERE = "model.layers.1.mlp.down_proj"
RACY = f"""extends = "control-racy"
[decoding]
max_new_tokens = 2
[arms.current]
template = "{{{{ question }}}}"
[control]
inject = "racy_linear:{WHERE}"
[expect]
verdict = "FAIL"
"""

pytestmark = [pytest.mark.ray, pytest.mark.torch, pytest.mark.timeout(600)]


def fleet(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """One command line over a config folder with the contract ``mine``, in ``folder``."""
    contracts = folder / "configs" / "contracts"
    contracts.mkdir(parents=True, exist_ok=True)
    (contracts / "mine.toml").write_text(RACY)
    return subprocess.run(
        [sys.executable, "-m", "fleet", *argv, "--configs", f"{folder}/configs"],
        capture_output=True, text=True, check=False, cwd=folder, env=os.environ | {"COLUMNS": "80"},
    )  # fmt: skip


def entry_of(run: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    document = json.loads(run.stdout)
    assert set(document) == {"schema", "campaign", "contracts", "controls"}
    (entry,) = document["contracts"]
    found: dict[str, Any] = entry
    return found


@pytest.mark.slow
def test_a_trace_names_module_kind_and_line_and_status_knows(tmp_path: Path) -> None:
    run = fleet(tmp_path, "trace", "mine", "--zoom", "--repeats", "40", "--json")
    assert run.returncode == 1, run.stderr
    entry = entry_of(run)
    culprit = entry["culprit"]
    assert (culprit["path"], culprit["class"], culprit["kind"]) == (WHERE, "RacyLinear", "race")
    assert (culprit["dtype"], culprit["step"], culprit["source"]) == ("bfloat16", 0, "later")
    assert culprit["survives_to_logits"] is True
    assert 1 < culprit["unique"] <= culprit["repeats"] == 40
    assert culprit["bound"] is None
    assert "fleet/replay/inject.py" in culprit["zoom"]["where"]
    assert entry["coverage"][0]["fired"] == entry["coverage"][0]["expected"]
    assert entry["calls"]["UNKNOWN"] == entry["calls"]["UNALIGNED"] == 0
    _the_evidence_is_landed(tmp_path, entry["attempts"])
    _the_store_knows_which_attempts_are_traced(tmp_path)
    _status_knows_the_culprit(tmp_path)


def _the_evidence_is_landed(folder: Path, attempts: list[str]) -> None:
    for attempt in attempts:
        names = {p.name for p in (folder / "var" / "landing" / "attempts" / attempt).iterdir()}
        assert {"trace-00000.parquet", "trace-modules.parquet", "trace-weights.parquet"} <= names


def _the_store_knows_which_attempts_are_traced(folder: Path) -> None:
    with duckdb.connect(str(folder / "var" / "fleet.duckdb.snapshot"), read_only=True) as con:
        found = con.execute("SELECT t.traced FROM traces JOIN attempts t ON t.key = traces.attempt")
        assert len(rows := found.fetchall()) >= 3
        assert set(rows) == {(True,)}


def _status_knows_the_culprit(folder: Path) -> None:
    run = fleet(folder, "status", "mine", "--json")
    assert run.returncode == 0, run.stdout + run.stderr  # a control, and it did what it must
    entry = entry_of(run)
    assert (entry["state"], entry["traced"], entry["layer"]) == ("FAIL", True, 3)
    assert entry["culprit"]["path"] == WHERE
