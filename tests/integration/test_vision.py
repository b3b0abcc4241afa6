"""A vision-language model from its contract to its verdict, and two image processors held against
each other. The controls are tested elsewhere."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from rich.console import Console

from fleet.contract.load import BUILTIN
from fleet.evidence.images import DIGEST_COLUMNS
from fleet.evidence.landing import Landing, file_sha256
from fleet.judge.verdict import Verdict
from fleet.replay.checkpoint import default_cache
from fleet.replay.preflight import problems
from fleet.report.answers import Answers
from fleet.report.diff import compare, print_diff
from fleet.schedule.certify import Places, Request, plan_request, run_request
from fleet.schedule.driver import SLOT_ZERO, Campaign
from fleet.schedule.plan import plan
from fleet.store import queries
from fleet.store.open import open_reader
from tests.campaigns import write_contract
from tests.process_launcher import ROOT, ProcessLauncher

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]

DATASETS = BUILTIN / "datasets"
K_PROJ = "model.language_model.layers.0.self_attn.k_proj"
OWN = {
    "slow": '[model]\nprocessor = "slow"\n',
    "fast": '[model]\nprocessor = "fast"\n',
    "modules": '[require]\ngrade = "modules"\n',
    "racy": f'[control]\ninject = "racy_linear:{K_PROJ}"\n[require]\ngrade = "modules"\n',
}


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """Contracts over three of the shipped images, each in two arms of two tokens."""
    base = (BUILTIN / "contracts" / "tiny-qwen2-vl.toml").read_text()
    write_contract(tmp_path / "configs", "base", base)
    for name, text in OWN.items():
        rest = '[decoding]\nmax_new_tokens = 2\n[dataset]\nname = "three"\n'
        write_contract(tmp_path / "configs", name, f'extends = "base"\n{rest}{text}')
    folder = tmp_path / "configs" / "datasets"
    (folder / "shapes-191").mkdir(parents=True)
    lines = (DATASETS / "shapes-24.jsonl").read_text().splitlines()[:3]
    for line in lines:
        name = json.loads(line)["images"][0]["file"]
        shutil.copy(DATASETS / name, folder / name)
    (folder / "three.jsonl").write_text("\n".join(lines) + "\n")
    repin(folder)
    cache = default_cache(os.environ)
    search = (tmp_path / "configs", BUILTIN)
    store, landing = tmp_path / "fleet.duckdb", tmp_path / "landing"
    return Places(search, store, landing, cache, tmp_path / "scratch")


def repin(folder: Path) -> None:
    digest = file_sha256(folder / "three.jsonl")
    (folder / "three.toml").write_text(f'file = "three.jsonl"\nsha256 = "{digest}"\n')


def certified(places: Places, counts: Mapping[str, int], path: Sequence[str] = ()) -> list[Verdict]:
    """So many replays of each, with ``path`` before what they import, and what is said of them."""
    planned = plan_request(Request(tuple(counts)), places, lambda _: None)
    works = {slot.contract: slot.work for slot in planned.slots}
    planned.controls = []
    named = {name: works[name] for name in counts}
    planned.slots = plan(list(counts.items()), [], named)
    request = Request(tuple(counts))
    given = {"PYTHONPATH": os.pathsep.join([*path, str(ROOT)])}
    each = dict.fromkeys(range(sum(counts.values())), given)
    launcher = ProcessLauncher(torch=True, extra_environment=each)
    campaign, _ = run_request(request, planned, places, launcher, lambda _: None)
    with open_reader(places.store) as store:
        answers = Answers(store, Landing.open(places.landing))
        return [answers.verdict(campaign.id, asked) for asked in planned.asked(planned.named)]


def problem(places: Places, name: str) -> dict[str, str]:
    """What the node says of the contract, before anything is planned."""
    (resolved,) = plan_request(Request((name,)), places, lambda _: None).named
    launcher = ProcessLauncher(torch=True)
    campaign = Campaign(Landing(places.landing), launcher, {name: resolved}, places.scratch)
    (found,) = problems([campaign.task(SLOT_ZERO, resolved, "0" * 16)])
    return found


def test_both_arms_of_a_small_vision_model_pass_at_modules(places: Places) -> None:
    (verdict,) = certified(places, {"modules": 2})
    assert (verdict.verdict, verdict.reason.partition(",")[0]) == (
        "PASS",
        "PASS: 6 records of 2 fresh replays agree at the grade modules",
    )
    for arm in ("current", "controlled"):
        told = verdict.arms[arm]["modules"]
        assert (told["verdict"], told["exact"], told["total"]) == ("PASS", 3, 3)
    with open_reader(places.store) as store:
        rows = store.con.execute(
            f"SELECT count(*), {', '.join(f'count(DISTINCT {c})' for c in DIGEST_COLUMNS)} "
            "FROM records"
        ).fetchone()
        summaries = queries.summaries(store.con, contract="modules")
    assert rows is not None
    assert rows[:4] == (12, 3, 3, 3)
    assert {s.effective["processor.image_class"] for s in summaries} == {"Qwen2VLImageProcessorPil"}
    assert all(
        set(DIGEST_COLUMNS) <= arm.columns.keys() for s in summaries for arm in s.arms.values()
    )


@pytest.mark.slow
def test_a_racy_k_proj_of_the_language_model_is_named(places: Places) -> None:
    (verdict,) = certified(places, {"racy": 2})
    assert verdict.verdict == "FAIL"
    assert verdict.layer == 3
    assert verdict.culprit is not None
    assert (verdict.culprit["path"], verdict.culprit["class"]) == (K_PROJ, "RacyLinear")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_191_images_pass_in_both_arms(places: Places) -> None:
    (verdict,) = certified(places, {"tiny-qwen2-vl-full": 2})
    assert verdict.verdict == "PASS"
    told = {arm: cells["logits"] for arm, cells in verdict.arms.items()}
    assert {arm: (cells["exact"], cells["total"]) for arm, cells in told.items()} == {
        "current": (191, 191),
        "controlled": (191, 191),
    }


def torchvision_path() -> Sequence[str]:
    """What a process needs on its path to have torchvision; nothing where it simply is there."""
    if importlib.util.find_spec("torchvision") is not None:
        return ()
    beside = Path(sys.prefix) / "torchvision"
    if not beside.is_dir():
        pytest.skip("torchvision is neither installed nor beside the environment (make install)")
    return str(ROOT / "tests" / "torchvision_on_cpu"), str(beside)


def test_two_image_processors_differ_where_images_are_resized_and_normalised(
    places: Places,
) -> None:
    certified(places, {"slow": 1, "fast": 1}, torchvision_path())
    with open_reader(places.store) as store:
        diff = compare(Answers(store, Landing.open(places.landing)), "slow", "fast")
    (pair,) = diff.pairs
    assert (diff.exit_code(), pair.result) == (1, "DIFFERS")
    assert pair.comparison is not None
    kinds = pair.comparison.kinds
    assert {kind.stage for kind in kinds} == {"image_processed"}
    for arm in ("controlled", "current"):
        assert sum(kind.rows for kind in kinds if kind.arm == arm) == 3
    assert pair.fields["contract.model.processor"] == ("slow", "fast")
    classes = ("Qwen2VLImageProcessorPil", "Qwen2VLImageProcessor")
    assert pair.fields["effective.processor.image_class"] == classes
    assert not any(key.startswith("platform.") for key in pair.fields)
    out = io.StringIO()
    print_diff(Console(file=out, width=400), diff)
    told = out.getvalue()
    assert "records of arm current differ first at image_processed" in told
    assert "decoded images equal, pixel_values differs; processors Qwen2VLImageProcessorPil" in told
    assert "no kernel is to blame" in pair.words


def test_a_fast_processor_without_torchvision_is_refused_before_anything_starts(
    places: Places,
) -> None:
    if importlib.util.find_spec("torchvision") is not None:
        pytest.skip("torchvision is installed: nothing falls back")
    found = problem(places, "fast")
    assert found["key"] == "model.processor"
    assert found["expected"] == 'the image processor "fast" (torchvision)'
    assert found["got"].startswith("Qwen2VLImageProcessorPil (pil)")
    assert 'write processor = "slow"' in found["fix"]


def test_a_corrupt_image_is_refused_before_anything_starts(places: Places) -> None:
    folder = places.search[0] / "datasets"
    lines = (folder / "three.jsonl").read_text().splitlines()
    record = json.loads(lines[1])
    file = folder / record["images"][0]["file"]
    file.write_bytes(file.read_bytes()[:200])
    record["images"][0]["sha256"] = file_sha256(file)
    (folder / "three.jsonl").write_text("\n".join([lines[0], json.dumps(record), lines[2]]) + "\n")
    repin(folder)
    found = problem(places, "slow")
    assert found["key"] == "record s002: images"
    assert found["expected"] == "an image that Pillow can decode"
