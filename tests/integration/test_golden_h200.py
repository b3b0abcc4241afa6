"""The evidence of real GPUs, judged again: the verdicts, culprits and counts that are recorded.

Each ``tests/golden/h200-*.tar.xz`` is a landing of an NVIDIA H200; the JSON beside it says what it
shows. ``awq-sweep``: one sweep. ``always-on``: a campaign of two contracts that were traced
throughout, then one of them untraced. ``vary``: two contracts, an exact repeat and six claims each.
``same-class``: the two of them on two devices of one host. ``vlm``: a vision-language model over
191 images, under two backends. Nothing here needs a GPU: verdicts are functions of landed evidence.
"""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from fleet.contract.canonical import from_text
from fleet.contract.load import BUILTIN, load_contract
from fleet.evidence.landing import Landing
from fleet.evidence.ledger import chain_folder
from fleet.report.answers import Answers, ControlsByCampaign, known_contracts
from fleet.report.logs import read_logs
from fleet.report.status import rows_of
from fleet.store import queries
from fleet.store.open import open_reader
from fleet.store.rebuild import rebuild
from tests import tampering
from tests.golden_summary import summary_of, unpacked
from tests.integration.command_line import fleet

GOLDEN = Path(__file__).parents[1] / "golden"
README = (GOLDEN.parents[1] / "README.md").read_text()
NAMES = ("h200-awq-sweep", "h200-always-on", "h200-vary", "h200-same-class", "h200-vlm")
RECORDED: dict[str, dict[str, Any]] = {
    name: json.loads((GOLDEN / f"{name}.json").read_text()) for name in NAMES
}
(SWEEP,) = RECORDED["h200-awq-sweep"]["campaigns"]
TRACED, UNTRACED = RECORDED["h200-always-on"]["campaigns"]
(VARIED,) = RECORDED["h200-vary"]["campaigns"]
(ON_TWO,) = RECORDED["h200-same-class"]["campaigns"]
(VLM,) = RECORDED["h200-vlm"]["campaigns"]
PASSES = "qwen2-7b-shapes-awq@awq_torch"
CULPRIT = "model.layers.0.self_attn.k_proj"


@pytest.fixture(scope="module")
def landings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Landing]:
    """Every archive, unpacked; whoever changes one copies it."""
    return {
        name: unpacked(GOLDEN / f"{name}.tar.xz", tmp_path_factory.mktemp(name)) for name in NAMES
    }


def judged(landing: Landing, commit: str, work: Path) -> dict[str, Any]:
    """The summary as it is after JSON."""
    summary = summary_of(landing, commit, work / "store.duckdb")
    return json.loads(json.dumps(summary))  # type: ignore[no-any-return]


def copied(landing: Landing, work: Path) -> Landing:
    return Landing.open(shutil.copytree(landing.root, work / "landing"))


def alter(path: Path) -> None:
    """Change one byte in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def verdicts(summary: dict[str, Any]) -> dict[tuple[str, str], str]:
    return {
        (campaign["campaign"], entry["contract"]): entry["verdict"]
        for campaign in summary["campaigns"]
        for entry in campaign["contracts"]
    }


def by_backend(campaign: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = {backend_of(e): e for e in campaign["contracts"]}[name]
    return found


def backend_of(entry: dict[str, Any]) -> str:
    """``NAME@BACKEND:DTYPE`` -> BACKEND."""
    return str(entry["contract"]).partition("@")[2].partition(":")[0]


@pytest.mark.parametrize("name", NAMES)
def test_the_archive_gives_the_recorded_summary(
    landings: dict[str, Landing], name: str, tmp_path: Path
) -> None:
    recorded = RECORDED[name]
    assert judged(landings[name], recorded["commit"], tmp_path) == recorded


@pytest.mark.parametrize("name", NAMES)
def test_all_ran_on_one_platform_and_the_controls_behaved(name: str) -> None:
    recorded = RECORDED[name]
    devices = 2 if name == "h200-same-class" else 1
    assert (len(recorded["units"]), len(recorded["platform_sha256"])) == (devices, 1)
    assert recorded["gpu_model"] == "NVIDIA H200"
    for campaign in recorded["campaigns"]:
        assert set(campaign["states"]) == {"COMPLETE"} | ({"VOID"} if campaign is VARIED else set())
        assert set(campaign["controls_behave"].values()) == {True}


def test_one_archive_holds_traces_of_each_format() -> None:
    assert [RECORDED[name]["trace_formats"] for name in NAMES] == [[1], [2], [2], [2], [2]]


def test_marlin_fails_where_two_other_backends_of_the_same_checkpoint_pass() -> None:
    marlin = by_backend(SWEEP, "awq_marlin")
    assert (marlin["verdict"], marlin["layer"], marlin["fault"]) == ("FAIL", 3, "race")
    assert marlin["culprit"]["path"] == CULPRIT
    assert marlin["culprit"]["source"] == "later"
    assert (marlin["culprit"]["unique"], marlin["culprit"]["repeats"]) == (200, 200)
    assert [each["path"] for each in marlin["also"]] == ["model.layers.0.self_attn.v_proj"]
    for name in ("awq_torch", "awq_gemm"):
        entry = by_backend(SWEEP, name)
        assert (entry["verdict"], entry["attained_grade"], entry["mismatches"]) == (
            "PASS",
            "logits",
            0,
        )
        assert (entry["records"], len(entry["logits_roots"])) == (382, 1)


def test_replays_traced_throughout_name_the_culprit_of_their_own_fail() -> None:
    marlin = by_backend(TRACED, "awq_marlin")
    assert (marlin["verdict"], marlin["layer"], marlin["fault"]) == ("FAIL", 3, "race")
    assert (len(marlin["logits_roots"]), len(marlin["modules_roots"])) == (2, 2)
    culprit = marlin["culprit"]
    assert (culprit["path"], culprit["class"]) == (CULPRIT, "AwqMarlinLinear")
    assert (culprit["source"], culprit["unique"], culprit["repeats"]) == ("failing", 200, 200)
    assert {side: len(set(two)) for side, two in culprit["digests"].items()} == {"in": 1, "out": 2}


def test_the_same_kernel_is_named_by_later_replays_and_by_the_failing_ones() -> None:
    sweep, traced = (by_backend(c, "awq_marlin") for c in (SWEEP, TRACED))
    for name in ("path", "class", "kind", "step", "dtype", "unique", "repeats"):
        assert sweep["culprit"][name] == traced["culprit"][name], name
    assert sweep["also"] == traced["also"]


def test_torch_passes_at_modules_and_untraced_replays_give_the_same_logits() -> None:
    traced, untraced = (by_backend(c, "awq_torch") for c in (TRACED, UNTRACED))
    assert traced["execution_id"] == untraced["execution_id"]
    assert (traced["verdict"], traced["attained_grade"]) == ("PASS", "modules")
    assert (untraced["verdict"], untraced["attained_grade"]) == ("PASS", "logits")
    assert (len(traced["modules_roots"]), untraced["modules_roots"]) == (1, [])
    assert traced["logits_roots"] == untraced["logits_roots"]
    assert len(traced["logits_roots"]) == 1
    assert traced["reason"].endswith("; an untraced replay has the same logits root")
    assert "traced" not in untraced["reason"]


def test_every_call_of_the_traced_replays_was_seen_and_digested_on_the_device() -> None:
    watched = [each for entry in TRACED["contracts"] for each in entry["traced"]]
    assert len(watched) == 4
    for each in watched:
        seen = each["coverage"]
        assert each["digests"] == {"calls": "device", "rows": "device"}
        assert (seen["calls"], seen["unknown"], seen["partly_unhashed"]) == (6144, 0, 0)
        assert (seen["fired"], seen["silent"], each["gap"]) == (seen["expected"], [], None)
    assert {each["doubt"] for each in by_backend(TRACED, "awq_torch")["traced"]} == {None}


def test_without_the_untraced_replays_the_same_pass_says_traced_execution(
    landings: dict[str, Landing], tmp_path: Path
) -> None:
    """The second campaign is taken away: what the first one said on its own when it ended."""
    landing = copied(landings["h200-always-on"], tmp_path)
    for manifest in landing.root.glob("attempts/*/manifest.json"):
        if json.loads(manifest.read_bytes())["campaign"] == UNTRACED["campaign"]:
            shutil.rmtree(manifest.parent)
    shutil.rmtree(landing.ledger / UNTRACED["campaign"])
    (alone,) = judged(landing, "", tmp_path)["campaigns"]
    torch = by_backend(alone, "awq_torch")
    assert torch["attained_grade"] == "modules"
    words, execution = torch["reason"].rsplit("; ", 1)
    assert execution == "traced execution"
    together = by_backend(TRACED, "awq_torch")
    assert together | {"reason": f"{words}; traced execution"} == torch
    assert by_backend(alone, "awq_marlin") == by_backend(TRACED, "awq_marlin")


def test_an_altered_byte_of_the_evidence_is_no_pass(
    landings: dict[str, Landing], tmp_path: Path
) -> None:
    """The shard of a replay that PASSed is changed in one byte: VOID, and nothing else moves."""
    landing = copied(landings["h200-awq-sweep"], tmp_path)
    torch = by_backend(SWEEP, "awq_torch")
    for manifest in sorted(landing.root.glob("attempts/*/manifest.json")):
        body = json.loads(manifest.read_bytes())
        if body["execution_id"] == torch["execution_id"]:
            alter(manifest.parent / body["parts"][0]["name"])
            break
    void = {(SWEEP["campaign"], torch["contract"]): "VOID"}
    recorded = verdicts(RECORDED["h200-awq-sweep"])
    assert verdicts(judged(landing, "", tmp_path)) == recorded | void


def test_an_altered_byte_of_a_trace_is_neither_a_pass_nor_a_fail(
    landings: dict[str, Landing], tmp_path: Path
) -> None:
    """One file of one trace of each contract is changed in one byte: both are VOID, and so is the
    untraced PASS of the same execution: what was altered may have held a difference."""
    landing = copied(landings["h200-always-on"], tmp_path)
    for entry in TRACED["contracts"]:
        alter(landing.attempt(entry["traced"][0]["attempt"]) / "trace-00002.parquet")
    recorded = verdicts(RECORDED["h200-always-on"])
    assert verdicts(judged(landing, "", tmp_path)) == dict.fromkeys(recorded, "VOID")


def test_the_readme_shows_the_figures_of_the_sweep() -> None:
    for entry in SWEEP["contracts"]:
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


def test_the_readme_shows_the_figures_of_the_always_on_trace() -> None:
    lines = {each.split()[0]: each for each in README.splitlines() if each.startswith("@awq_")}
    entries = {backend_of(entry): entry for entry in TRACED["contracts"]}
    marlin, torch = entries["awq_marlin"], entries["awq_torch"]
    told, culprit = lines["@awq_marlin"], marlin["culprit"]
    assert (marlin["verdict"], culprit["source"]) == ("FAIL", "failing")
    assert "FAIL" in told and "failing" in told
    assert culprit["path"].rpartition(".")[2] in told
    assert f"{culprit['unique']} outputs in {culprit['repeats']}" in told
    assert f"PASS  {torch['attained_grade']} {torch['records']}/" in lines["@awq_torch"]
    assert f"{torch['traced'][0]['coverage']['calls']} calls" in lines["@awq_torch"]
    (root,) = torch["logits_roots"]
    assert root.removeprefix("sha256:")[:12] in lines["@awq_torch"]
    seconds = [each["generate_s"] for each in torch["traced"]]
    assert [f"{each:.1f}" for each in seconds] == ["6.1", "6.1"]
    assert "traced 6.1 and 6.1 s" in (GOLDEN / "README.md").read_text()


def test_the_contract_of_the_evidence_is_the_one_that_is_shipped() -> None:
    contract = load_contract("qwen2-7b-shapes-awq-full@awq_marlin", [BUILTIN]).contract
    assert (contract.decoding.max_new_tokens, contract.dataset.name) == (4, "choices-191")


def test_status_shows_what_traced_replays_reach_beside_what_untraced_ones_do(
    landings: dict[str, Landing], tmp_path: Path
) -> None:
    places = ("--store", "store.duckdb", "--landing", str(landings["h200-always-on"].root))
    assert fleet(tmp_path, "store", "rebuild", *places).returncode == 0
    shown = json.loads(fleet(tmp_path, "status", "--json", *places).stdout)
    rows = {
        (row["contract"].partition("@")[2], row["state"], row["attained_grade"])
        for row in shown["contracts"]
        if "@" in row["contract"]
    }
    assert rows == {
        ("awq_marlin", "FAIL", "metric"),
        ("awq_torch", "PASS", "logits"),
        ("awq_torch", "PASS", "modules"),
    }


def claims(backend: str) -> dict[str, dict[str, Any]]:
    """What was varied -> what the campaign says of it."""
    return {
        "+".join(entry["vary"]): entry
        for entry in VARIED["contracts"]
        if backend_of(entry) == backend
    }


@pytest.mark.parametrize("backend", ["awq_torch", "awq_gemm"])
def test_what_passes_as_an_exact_repeat_is_asked_for_more(backend: str) -> None:
    found = claims(backend)
    (root,) = found[""]["logits_roots"]
    for vary in ("", "order", "memory", "load"):
        assert (found[vary]["verdict"], found[vary]["logits_roots"]) == ("PASS", [root])
    for vary, words in (
        ("batch", "shape-dependent, repeatable: all 3 replays with the contract's own batch agree"),
        (
            "cache",
            "depends on the key-value cache: all 3 replays with the contract's own use_cache",
        ),
    ):
        assert (found[vary]["verdict"], found[vary]["mismatches"]) == ("FAIL", 48)
        assert words in found[vary]["reason"]
        assert root in found[vary]["logits_roots"]


def test_kernels_compiled_anew_agree_where_there_are_any() -> None:
    compiled, shipped = claims("awq_gemm")["kernel_cache"], claims("awq_torch")["kernel_cache"]
    assert (compiled["verdict"], shipped["verdict"]) == ("PASS", "VOID")
    assert compiled["logits_roots"] == claims("awq_gemm")[""]["logits_roots"]
    assert "all kernels of this contract came compiled" in shipped["reason"]


@pytest.mark.parametrize("backend", ["awq_torch", "awq_gemm"])
def test_the_stress_on_a_device_was_there(backend: str) -> None:
    found = claims(backend)
    ((_, stress),) = found["load"]["varied"]
    load = stress["load"]
    assert load["device_launches"] > 0
    assert load["device_busy_ms"] / 1000 > 0.9 * load["device_wall_s"]
    ((varied, stress),) = found["memory"]["varied"]
    assert (stress["memory"]["device_blocks"], stress["memory"]["device_filled"]) == (5, 5)
    assert stress["memory"]["byte"] == varied["memory"]


@pytest.mark.parametrize("backend", ["awq_torch", "awq_gemm"])
def test_two_devices_of_one_host_agree_with_each_other_and_with_another_host(backend: str) -> None:
    entry = by_backend(ON_TWO, backend)
    assert (entry["verdict"], entry["scope"], entry["units"]) == ("PASS", "same-class", 2)
    assert entry["logits_roots"] == claims(backend)[""]["logits_roots"]


@pytest.mark.parametrize("backend", ["awq_torch", "awq_gemm"])
def test_the_readme_says_of_each_claim_what_the_evidence_says(backend: str) -> None:
    (line,) = [each for each in README.splitlines() if each.startswith(f"H200 {backend} ")]
    shown = line.split()[2:10]
    order = ("", "order", "memory", "load", None, "batch", "cache", "kernel_cache")
    found = claims(backend)
    for word, vary in zip(shown, order, strict=True):
        if vary is not None:
            entry = found[vary]
            assert word == (
                str(entry["mismatches"]) if entry["verdict"] == "FAIL" else entry["verdict"]
            )


def passing(landing: Landing, work: Path) -> set[str]:
    """Contracts that PASS by all evidence, to a store that never saw the landing."""
    rebuild(work / "fresh.duckdb", landing)
    with open_reader(work / "fresh.duckdb") as store:
        answers = Answers(store, landing)
        known = [asked for asked in known_contracts(store) if asked.expect is None]
        controls = ControlsByCampaign(answers, known_contracts(store))
        facts = queries.platforms(store.con)
        found = {
            asked.name
            for asked in known
            for row in rows_of(answers, asked, controls, facts, 0.0)
            if row.verdict is not None and row.verdict.verdict == "PASS"
        }
    (work / "fresh.duckdb").unlink()
    return found


def files_of_every_kind(landing: Landing, attempt: str) -> list[str]:
    """Of a traced replay: rows, manifest, trace; its contract; some of its campaign's ledger."""
    own = [p for p in landing.attempt(attempt).iterdir() if p.name not in tampering.HARMLESS]
    chain = chain_folder(landing, tampering.campaign_of(landing, attempt))
    body = json.loads(landing.manifest(attempt).read_bytes())
    contract = landing.contract(from_text(body["execution_id"]))
    files = [*own, contract, *sorted(chain.iterdir())[1:30:10]]
    return [str(path.relative_to(landing.root)) for path in files]


@pytest.mark.slow
def test_no_pass_of_real_evidence_outlives_a_change_of_it(
    landings: dict[str, Landing], tmp_path: Path
) -> None:
    landing, chance = copied(landings["h200-always-on"], tmp_path), random.Random(8)
    assert passing(landing, tmp_path) == {PASSES}
    traced = next(
        s for s in landing.attempts()
        if (m := json.loads(landing.manifest(s).read_bytes()))["contract"] == PASSES
        and m["purpose"] == "certify" and m["traced"]
    )  # fmt: skip
    files = files_of_every_kind(landing, traced)
    assert {Path(f).name.split("-")[0] for f in files} >= {"part", "trace", "manifest.json"}
    for file in files:
        flip, *_ = tampering.of_bytes(landing.root, file, chance, 1)
        with tampering.undone(landing.root):
            flip.do(landing.root)
            assert passing(landing, tmp_path) == set(), flip
    for name in ("stdout.txt", "stderr.txt"):
        path = landing.attempt(traced) / name
        with tampering.undone(landing.root):
            path.write_bytes(path.read_bytes() + b"!")
            assert passing(landing, tmp_path) == {PASSES}, tampering.HARMLESS[name]
            assert read_logs(landing, traced).altered == (path.stem,)


def test_a_vision_language_model_parts_where_the_incident_did(landings: dict[str, Landing]) -> None:
    """Every image and all that was made of it is equal; one projection of the language model races
    under one backend, and the score hides it: 191 of 191 right on both sides."""
    torch, marlin = by_backend(VLM, "awq_torch"), by_backend(VLM, "awq_marlin")
    assert (torch["verdict"], torch["records"], torch["mismatches"]) == ("PASS", 382, 0)
    assert (marlin["verdict"], marlin["layer"], marlin["fault"]) == ("FAIL", 3, "race")
    culprit = marlin["culprit"]
    assert culprit["path"] == "model.language_model.layers.0.self_attn.k_proj"
    assert (culprit["class"], culprit["shape"]) == ("AwqMarlinLinear", "1,135,3584")
    assert (culprit["unique"], culprit["repeats"]) == (200, 200)
    exact = marlin["exact"]["current"]
    assert [exact[g] for g in ("metric", "prediction", "tokens", "logits")] == [
        "191/191", "177/191", "128/191", "0/191",
    ]  # fmt: skip
