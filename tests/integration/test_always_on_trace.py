"""Replays that certify with every call traced: PASS at *modules*, and a FAIL that names itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fleet.contract.load import BUILTIN
from fleet.evidence.landing import Landing
from fleet.evidence.manifest import Manifest
from fleet.judge.verdict import Verdict
from fleet.report.answers import Answers
from fleet.schedule.certify import Planned, Request, ingest_and_publish, plan_request
from fleet.schedule.certify import run_request as run
from fleet.schedule.driver import Campaign
from fleet.schedule.places import Places
from fleet.schedule.plan import plan
from fleet.schedule.pruning import plan_prune, prune
from fleet.schedule.room import landed_bytes
from fleet.store.open import open_reader
from fleet.store.rebuild import rebuild
from tests.campaigns import places_in, questions, write_contract, write_dataset
from tests.process_launcher import ProcessLauncher

WHERE = "model.layers.1.mlp.down_proj"
TEXT = """extends = "control-clean"
[decoding]
max_new_tokens = 2
[dataset]
name = "five"
[arms.current]
template = "{{{{ question }}}}"
[arms.controlled]
template = "Choose. {{{{ question }}}}"
[control]
inject = "{kind}:{where}"
[require]
grade = "modules"
"""

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]


def certified(root: Path, kind: str, trace: str) -> tuple[Verdict, Places, Planned, str]:
    """One contract with that linear in it, certified alone: the controls are tested elsewhere."""
    write_dataset(root / "configs", "five", questions())
    text = (BUILTIN / "contracts" / "control-clean.toml").read_text().split("[expect]")[0]
    base = write_contract(root / "configs", "base", text)
    write_contract(
        root / "configs", "watched",
        TEXT.replace("control-clean", base.stem).format(kind=kind, where=WHERE),
    )  # fmt: skip
    places = places_in(root)
    places = Places(places.search, places.store, places.landing, _cache(), places.scratch)
    request = Request(("watched",), trace=trace)
    planned = plan_request(request, places, lambda _: None)
    mine = [slot for slot in planned.slots if slot.role == "named"]
    planned.controls, planned.slots = [], plan([("watched", 2)], [], {"watched": _work(mine)})
    campaign, _ = run(request, planned, places, ProcessLauncher(torch=True), lambda _: None)
    return verdict_of(places, planned, campaign.id), places, planned, campaign.id


def _work(slots: list[Any]) -> Any:
    assert [slot.work.trace.steps for slot in slots] == ["all", "all"]
    return slots[0].work


def _cache() -> Path:
    import os

    from fleet.replay.checkpoint import default_cache

    return default_cache(os.environ)


def verdict_of(places: Places, planned: Planned, campaign: str) -> Verdict:
    with open_reader(places.store) as store:
        answers = Answers(store, Landing.open(places.landing))
        return answers.verdict(campaign, planned.asked(planned.named)[0])


def test_a_clean_contract_passes_at_modules_and_an_altered_trace_voids_it(tmp_path: Path) -> None:
    verdict, places, planned, campaign = certified(tmp_path, "ordered_linear", "never")
    assert (verdict.verdict, verdict.attained_grade, verdict.traced) == ("PASS", "modules", True)
    assert verdict.reason.endswith("traced execution")
    assert len(verdict.roots["modules"]) == 1
    for path in places.landing.glob("attempts/*/manifest.json"):
        manifest = Manifest.from_bytes(path.read_bytes())
        assert manifest.volatile["digests"] == manifest.trace["digests"] == "host"
    places.store.unlink()
    rebuild(places.store, Landing.open(places.landing))
    ingest_and_publish(places.store, Landing.open(places.landing))
    assert verdict_of(places, planned, campaign) == verdict

    calls = next(places.landing.glob("attempts/*/trace-00000.parquet"))
    data = bytearray(calls.read_bytes())
    data[len(data) // 2] ^= 1
    calls.write_bytes(bytes(data))
    ingest_and_publish(places.store, Landing.open(places.landing))
    altered = verdict_of(places, planned, campaign)
    assert (altered.verdict, altered.code) == ("VOID", "evidence-altered")


@pytest.mark.slow
def test_a_failing_replay_names_its_first_divergence_from_its_own_calls(tmp_path: Path) -> None:
    verdict, places, planned, campaign = certified(tmp_path, "racy_linear", "always")
    assert (verdict.verdict, verdict.layer, verdict.fault) == ("FAIL", 3, "race")
    culprit = verdict.culprit
    assert culprit is not None
    assert (culprit["path"], culprit["class"]) == (WHERE, "RacyLinear")
    assert culprit["source"] == "failing"
    assert culprit["unique"] > 1  # proven by repeating the call in a further replay
    first = verdict.first_difference
    assert first is not None
    assert (culprit["sample_ids"][0], culprit["arm"]) == (first["sample_id"], first["arm"])
    assert verdict_of(places, planned, campaign) == verdict


@pytest.mark.slow
def test_traces_that_a_newer_campaign_repeats_are_pruned_and_the_grade_stays(
    tmp_path: Path,
) -> None:
    _, places, planned, older = certified(tmp_path, "ordered_linear", "always")
    landing = Landing.open(places.landing)
    campaign = Campaign(landing, ProcessLauncher(torch=True), {}, places.scratch)
    (named,) = planned.named
    campaign.contracts["watched"] = named
    task = campaign.task(planned.slots[0], named, "0" * 16)
    landed = [sum(p.stat().st_size for p in landing.tables(a)) for a in landing.attempts()]
    assert max(landed) <= landed_bytes(task, named, [], landing) <= 20 * max(landed)
    *_, newer = certified(tmp_path, "ordered_linear", "always")
    before = [verdict_of(places, planned, campaign) for campaign in (older, newer)]
    assert [v.verdict for v in before] == ["PASS", "PASS"]
    with open_reader(places.store) as store:
        found = plan_prune(store, landing, 0.0)
    assert len(found.attempts) == 2
    assert all(any("trace-" in file for file in d.files) for d in found.attempts)
    prune(landing, found, [], lambda _: None)
    rebuild(places.store, landing)
    ingest_and_publish(places.store, landing)
    assert [verdict_of(places, planned, campaign) for campaign in (older, newer)] == before
    assert {path.parent.name for path in places.landing.glob("attempts/*/*.parquet")} == {
        d.like for d in found.attempts
    } | {a["attempt"] for a in before[1].attempts if a["campaign"] == newer}
