"""From names to a plan: everything that can be wrong is found before a process starts."""

from __future__ import annotations

import os
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fleet.contract.canonical import sha256, to_text
from fleet.contract.load import BUILTIN
from fleet.errors import ContractError, DatasetError, StoreError, UsageError
from fleet.evidence.landing import Landing
from fleet.replay import preflight
from fleet.replay.preflight import problems
from fleet.replay.task import ReplayTask
from fleet.schedule.certify import Request, plan_request, require_usable
from fleet.schedule.driver import Campaign
from fleet.schedule.one_sample import check_sample
from fleet.schedule.places import Places
from fleet.schedule.plan import CONTROLS, TRACED, controls_for
from fleet.schedule.resolve import Resolved, resolve_contract
from fleet.store.migrations import SCHEMA
from fleet.store.open import open_writer
from tests.campaigns import (
    CONTRACT,
    FakeLauncher,
    planned_in,
    write_configs,
    write_contract,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_configs(tmp_path / "configs")
    return tmp_path


def resolved(root: Path, name: str = "toy") -> Resolved:
    return resolve_contract(name, [root / "configs"], root / "cache", lambda _: None)


def test_a_resolved_contract_has_a_digest_of_everything_it_names(root: Path) -> None:
    found = resolved(root)
    assert sorted(found.digests) == [
        "chat_template",
        "checkpoint",
        "config",
        "dataset",
        "parser.controlled",
        "parser.current",
        "tokenizer",
    ]
    data = (root / "configs" / "datasets" / "five.jsonl").read_bytes()
    assert found.digests["dataset"] == to_text(sha256(data))
    assert found.checkpoint is None
    assert set(found.body()) == {"execution_part", "digests"}
    assert found.asked()["require"] == found.loaded.contract.require.model_dump(mode="json")


def test_resolving_twice_gives_one_id_and_writes_nothing(root: Path) -> None:
    before = sorted(root.rglob("*"))
    assert resolved(root).execution_id == resolved(root).execution_id
    assert sorted(root.rglob("*")) == before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("seed = 0\npython", "seed = 1\npython"),
        ("max_new_tokens = 4", "max_new_tokens = 5"),
        ("{{ question }}", "{{question }}"),
        ("[arms.controlled]", "[arms.other]"),
        ('parser = "letter"', 'parser = "number"'),
    ],
)
def test_what_can_change_a_bit_changes_the_id(root: Path, old: str, new: str) -> None:
    before = resolved(root).execution_id
    write_contract(root / "configs", "toy", CONTRACT.replace(old, new))
    assert resolved(root).execution_id != before


@pytest.mark.parametrize(
    ("old", "new"), [('grade = "logits"', 'grade = "tokens"'), ("replays = 2", "replays = 5")]
)
def test_what_is_required_of_the_evidence_does_not(root: Path, old: str, new: str) -> None:
    before = resolved(root).execution_id
    write_contract(root / "configs", "toy", CONTRACT.replace(old, new))
    assert resolved(root).execution_id == before


def test_a_template_is_rendered_before_anything_starts(root: Path) -> None:
    write_contract(root / "configs", "toy", CONTRACT.replace("{{ question }}", "{{ qestion }}"))
    with pytest.raises(ContractError, match="'qestion' is undefined at record s0"):
        resolved(root)


def test_a_parser_beside_the_contract_is_part_of_the_id(root: Path) -> None:
    parser = root / "configs" / "contracts" / "mine.py"
    source = (
        "def parse(text, record):\n    return text or None\n\n\n"
        "def is_correct(answer, record):\n    return answer == record['answer']\n"
    )
    parser.write_text(source)
    text = CONTRACT.replace('parser = "letter"', 'parser = "file:mine.py"')
    write_contract(root / "configs", "toy", text)
    before = resolved(root).execution_id
    parser.write_text(source + "# changed\n")
    assert resolved(root).execution_id != before


# the plan of a request


def test_every_campaign_carries_the_controls_of_its_engines(root: Path) -> None:
    _, planned, _ = planned_in(root)
    assert [r.name for r in planned.named] == ["toy"]
    assert tuple(r.name for r in planned.controls) == CONTROLS["synthetic"]
    assert [(s.role, s.contract, s.replay) for s in planned.slots] == [
        ("control", "control-racy-synthetic", 0),
        ("control", "control-racy-synthetic", 1),
        ("control", "control-clean-synthetic", 0),
        ("control", "control-clean-synthetic", 1),
        ("named", "toy", 0),
        ("named", "toy", 1),
    ]


def test_two_kinds_of_engine_have_two_pairs_of_controls() -> None:
    raw = tomllib.loads(CONTRACT)
    torch = SimpleNamespace(model=SimpleNamespace(engine="gptqmodel"))
    synthetic = SimpleNamespace(model=SimpleNamespace(engine=raw["model"]["engine"]))
    both: list[Any] = [synthetic, torch]
    assert controls_for(both) == [*CONTROLS["torch"], TRACED["torch"], *CONTROLS["synthetic"]]


def test_a_control_that_is_named_is_not_planned_twice(root: Path) -> None:
    _, planned, _ = planned_in(root, "control-racy-synthetic", "toy")
    assert [r.name for r in planned.controls] == ["control-clean-synthetic"]
    assert len(planned.slots) == 6


def test_one_sample_carries_no_controls(root: Path) -> None:
    _, planned, _ = planned_in(root, purpose="replay")
    assert (planned.controls, len(planned.slots)) == ([], 2)


def test_a_contract_given_twice_is_refused(root: Path) -> None:
    path = str(root / "configs" / "contracts" / "toy.toml")
    for names in (("toy", "toy"), ("toy", path)):
        with pytest.raises(ContractError, match="each contract once"):
            planned_in(root, *names)


def test_controls_are_the_products_own_whatever_the_config_path_holds(root: Path) -> None:
    write_contract(root / "configs", "control-racy-synthetic", CONTRACT)
    _, planned, _ = planned_in(root)
    assert {r.loaded.path.parents[1] for r in planned.controls} == {BUILTIN}


def test_another_contract_under_the_name_of_a_control_is_refused(root: Path) -> None:
    path = write_contract(root / "configs", "control-racy-synthetic", CONTRACT)
    with pytest.raises(ContractError, match="another contract of that name") as raised:
        planned_in(root, "control-racy-synthetic", "toy")
    assert raised.value.where == str(path)


@pytest.mark.parametrize("expect", ["", '[expect]\nverdict = "PASS"\n'])
def test_a_control_that_expects_nothing_or_the_opposite_is_refused(root: Path, expect: str) -> None:
    """Its execution id is the right one: an expectation is no part of it."""
    shipped = (BUILTIN / "contracts" / "control-racy-synthetic.toml").read_text()
    text = shipped.partition("[expect]")[0] + expect
    path = write_contract(root / "configs", "control-racy-synthetic", text)
    with pytest.raises(ContractError) as raised:
        planned_in(root, "control-racy-synthetic")
    assert (raised.value.where, raised.value.key) == (str(path), "expect.verdict")


def test_a_sample_or_an_arm_that_does_not_exist_is_named_with_those_that_do(root: Path) -> None:
    _, planned, _ = planned_in(root, purpose="replay")
    check_sample(planned, "s0", "current")
    with pytest.raises(UsageError, match=r"a sample id \(s0, s1, s2, ...\), got 's9'"):
        check_sample(planned, "s9", "current")
    with pytest.raises(UsageError, match="one of controlled, current, got 'thrid'"):
        check_sample(planned, "s0", "thrid")


def test_a_dataset_that_changed_is_found_when_the_plan_is_made(root: Path) -> None:
    with (root / "configs" / "datasets" / "five.jsonl").open("a") as file:
        file.write("\n")
    with pytest.raises(DatasetError, match="sha256"):
        planned_in(root)


# folders


def places(root: Path, store: str = "var/s.duckdb", landing: str = "var/landing") -> Places:
    return Places((root,), root / store, root / landing, root, root)


def test_folders_that_do_not_exist_yet_are_usable_and_stay_absent(root: Path) -> None:
    require_usable(places(root))
    assert not (root / "var").exists()


@pytest.mark.parametrize(("store", "landing"), [("file/s", "l"), ("s", "file/l"), ("s", "file")])
def test_a_place_below_a_file_is_no_place(root: Path, store: str, landing: str) -> None:
    (root / "file").write_text("mine")
    with pytest.raises(StoreError, match="expected a folder"):
        require_usable(places(root, store, landing))
    assert (root / "file").read_text() == "mine"
    assert not (root / "s").exists() and not (root / "l").exists()


def test_a_read_only_place_is_found_at_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # what a read-only mount answers
    with pytest.raises(StoreError, match="read-only"):
        require_usable(places(root))


def test_a_store_or_landing_that_is_newer_than_the_code_is_refused(root: Path) -> None:
    with open_writer(root / "newer.duckdb") as store:
        store.con.execute("UPDATE meta SET value = ? WHERE key = 'schema'", [str(SCHEMA + 1)])
    with pytest.raises(StoreError, match=f"at most {SCHEMA}, got {SCHEMA + 1}"):
        require_usable(places(root, store="newer.duckdb"))
    (root / "landing").mkdir()
    (root / "landing" / "FORMAT.json").write_text('{"format": 2}')
    with pytest.raises(StoreError, match="landing format 1, got 2"):
        require_usable(places(root, landing="landing"))


# preflight


def task(root: Path, **changes: Any) -> ReplayTask:
    _, planned, where = planned_in(root)
    campaign = Campaign(
        Landing(where.landing), FakeLauncher(), {"toy": planned.named[0]}, where.scratch
    )
    return replace(campaign.task(planned.slots[-1], planned.named[0], "0" * 16), **changes)


def test_a_contract_that_can_run_has_no_problem(root: Path) -> None:
    assert problems([task(root)]) == []


def test_a_model_that_would_have_to_be_split_is_refused_with_both_sizes(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = root / "model"
    folder.mkdir()
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(3 << 30)
    monkeypatch.setattr(
        preflight.psutil, "virtual_memory", lambda: SimpleNamespace(available=2 << 30)
    )
    (problem,) = problems([task(root, checkpoint=str(folder))])
    assert (problem["contract"], problem["key"]) == ("toy", "model.checkpoint")
    assert "never split or offloaded" in problem["expected"]
    assert problem["got"] == "3.0 GiB of weights, 2.0 GiB of memory free"


def test_pinned_content_that_changed_meanwhile_is_a_problem_and_no_traceback(root: Path) -> None:
    ready = task(root)
    with (root / "configs" / "datasets" / "five.jsonl").open("a") as file:
        file.write("\n")
    (problem,) = problems([ready])
    assert problem["key"] == "pinned-content-changed"


def test_a_request_with_no_contract_of_that_name_shows_near_names(root: Path) -> None:
    with pytest.raises(ContractError, match='did you mean "toy"') as raised:
        planned_in(root, "tyo")
    assert "toy" in raised.value.got
    with pytest.raises(ContractError):
        plan_request(Request(("../toy",)), places(root), lambda _: None)
