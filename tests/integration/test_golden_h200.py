"""The evidence of a real GPU, judged again: the verdicts, culprits and counts that are recorded.

``tests/golden/h200-awq-sweep.tar.xz`` is the landing of one sweep on an NVIDIA H200; the JSON
beside it says what it shows. Nothing here needs a GPU: verdicts are functions of landed evidence.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fleet.contract.load import BUILTIN, load_contract
from tests.golden_summary import summary_of

GOLDEN = Path(__file__).parents[1] / "golden"
RECORDED: dict[str, Any] = json.loads((GOLDEN / "h200-awq-sweep.json").read_text())
README = (GOLDEN.parents[1] / "README.md").read_text()


@pytest.fixture(scope="module")
def derived(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    work = tmp_path_factory.mktemp("golden")
    archive = GOLDEN / "h200-awq-sweep.tar.xz"
    return json.loads(json.dumps(summary_of(archive, RECORDED["commit"], work)))  # type: ignore[no-any-return]


def test_the_archive_gives_the_recorded_verdicts(derived: dict[str, Any]) -> None:
    assert derived == RECORDED


def by_backend(name: str) -> dict[str, Any]:
    found: dict[str, Any] = {backend_of(e): e for e in RECORDED["contracts"]}[name]
    return found


def backend_of(entry: dict[str, Any]) -> str:
    """``NAME@BACKEND:DTYPE`` -> BACKEND."""
    return str(entry["contract"]).partition("@")[2].partition(":")[0]


def test_marlin_fails_where_two_other_backends_of_the_same_checkpoint_pass() -> None:
    marlin = by_backend("awq_marlin")
    assert (marlin["verdict"], marlin["layer"], marlin["fault"]) == ("FAIL", 3, "race")
    assert marlin["culprit"]["path"] == "model.layers.0.self_attn.k_proj"
    assert (marlin["culprit"]["unique"], marlin["culprit"]["repeats"]) == (200, 200)
    assert [each["path"] for each in marlin["also"]] == ["model.layers.0.self_attn.v_proj"]
    for name in ("awq_torch", "awq_gemm"):
        entry = by_backend(name)
        assert (entry["verdict"], entry["attained_grade"], entry["mismatches"]) == (
            "PASS",
            "logits",
            0,
        )
        assert (entry["records"], len(entry["logits_roots"])) == (382, 1)


def test_all_ran_on_one_device_and_the_controls_behaved() -> None:
    assert (len(RECORDED["units"]), len(RECORDED["platform_sha256"])) == (1, 1)
    assert RECORDED["states"] == ["COMPLETE"]
    assert set(RECORDED["controls_behave"].values()) == {True}


def test_the_readme_shows_these_figures() -> None:
    for entry in RECORDED["contracts"]:
        name = backend_of(entry)
        (line,) = [each for each in README.splitlines() if each.startswith(f"{name} ")]
        tokens = sum(int(grades["tokens"].partition("/")[0]) for grades in entry["exact"].values())
        logits = sum(int(grades["logits"].partition("/")[0]) for grades in entry["exact"].values())
        assert entry["verdict"] in line
        assert f"{logits}/382" in line
        assert f"{tokens}/382" in line
        assert f"{entry['tokens_per_s']:.3g}" in line
        if entry["culprit"]:
            assert entry["culprit"]["path"].rpartition(".")[2] in line
            assert f"{entry['culprit']['unique']} outputs in {entry['culprit']['repeats']}" in line


def test_an_altered_byte_of_the_evidence_is_no_pass(
    derived: dict[str, Any], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The shard of a replay that PASSed is changed in one byte: VOID, and nothing else moves."""
    import tarfile

    with tarfile.open(GOLDEN / "h200-awq-sweep.tar.xz") as opened:
        opened.extractall(tmp_path, filter="data")
    torch = by_backend("awq_torch")
    for manifest in sorted((tmp_path / "landing" / "attempts").glob("*/manifest.json")):
        body = json.loads(manifest.read_bytes())
        if body["execution_id"] == torch["execution_id"]:
            part = manifest.parent / body["parts"][0]["name"]
            data = bytearray(part.read_bytes())
            data[len(data) // 2] ^= 1
            part.write_bytes(bytes(data))
            break
    shutil.make_archive(str(tmp_path / "altered"), "tar", tmp_path, "landing")
    work = tmp_path_factory.mktemp("altered")
    found = summary_of(tmp_path / "altered.tar", "", work)["contracts"]
    altered = {e["contract"]: e["verdict"] for e in found}
    before = {e["contract"]: e["verdict"] for e in derived["contracts"]}
    assert altered == before | {torch["contract"]: "VOID"}


def test_the_contract_of_the_evidence_is_the_one_that_is_shipped() -> None:
    contract = load_contract("qwen2-7b-shapes-awq-full@awq_marlin", [BUILTIN]).contract
    assert (contract.decoding.max_new_tokens, contract.dataset.name) == (4, "choices-191")
