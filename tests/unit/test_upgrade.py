"""``fleet upgrade-check`` over whole campaigns: what each stack's replays find decides the word."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleet.contract.stack import load_stack
from fleet.errors import UsageError
from fleet.evidence.landing import Landing
from fleet.evidence.ledger import campaigns
from fleet.evidence.upgrades import read_upgrades
from fleet.job import _contract as in_verdict_file
from fleet.replay.engines.protocol import Generation, Prepared, Settings
from fleet.replay.engines.synthetic import BOS, SyntheticEngine
from fleet.report.answers import Answers
from fleet.report.diff import print_diff, stack_diff
from fleet.report.filters import Filters
from fleet.report.history import history_of, print_history
from fleet.report.upgrade import UpgradeAnswer
from fleet.report.upgrade_view import print_markdown, print_upgrade, print_upgrade_plan
from fleet.schedule import upgrade
from fleet.schedule.upgrade import UpgradeRequest, plan_document, plan_upgrade, run_upgrade
from fleet.store import queries
from fleet.store.open import open_reader
from fleet.store.rebuild import rebuild
from tests.campaigns import QUICK, certified, places_in, write_configs
from tests.two_stacks import StackLauncher, World, write_stack
from tests.unit.screens import shown

NEWER = {"numpy": "99.0"}
HERE = World()
ASKS = upgrade.require_usable


@pytest.fixture(scope="session")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def make(root: Path, cache: Path, patched: pytest.MonkeyPatch, ask: bool = False) -> None:
    """Two stacks and a contract; asking their environments takes seconds."""
    patched.setenv("FLEET_CACHE", str(cache))
    patched.setattr(upgrade, "require_usable", ASKS if ask else lambda loaded, cache: None)
    write_configs(root / "configs")
    write_stack(root, "old")
    write_stack(root, "new", **NEWER)


@pytest.fixture
def root(
    tmp_path: Path, _cache: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Path:
    make(tmp_path, _cache, monkeypatch, ask="environment" in request.node.name)
    return tmp_path


def compared(root: Path, new: World, old: World = HERE, **asked: Any) -> UpgradeAnswer:
    places = places_in(root)
    request = UpgradeRequest("old", "new", ("toy",), limits=QUICK, **asked)
    plan = plan_upgrade(request, places, lambda _: None)
    launcher = StackLauncher(worlds={"old": old, "new": new})
    return run_upgrade(request, plan, places, launcher, lambda _: None)


def word(answer: UpgradeAnswer) -> tuple[str, int]:
    (entry,) = answer.entries
    return entry.moved.in_words(), answer.exit_code()


QUICK_CASES = {
    "kept": (HERE, World(NEWER), "KEPT(logits)", 0),
    "another stack than was frozen": (HERE, HERE, "NOT_COVERED", 3),
}
CASES = {
    "regressed": (HERE, World(NEWER, racy=True), "REGRESSED", 1),
    "fixed": (World(racy=True), World(NEWER), "FIXED", 0),
    "failing still": (World(racy=True), World(NEWER, racy=True), "STILL_FAIL", 1),
}


@pytest.mark.parametrize("name", QUICK_CASES)
def test_what_the_replays_of_both_stacks_show_is_the_answer(root: Path, name: str) -> None:
    old, new, expected, code = QUICK_CASES[name]
    answer = compared(root, new, old)
    entry = answer.entries[0]
    assert word(answer) == (expected, code), entry.moved.reason
    if expected == "NOT_COVERED":
        assert "numpy" in entry.new.reason and "frozen 99.0" in entry.new.reason


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_stack_that_fails_is_no_change_of_bits(root: Path, name: str) -> None:
    old, new, expected, code = CASES[name]
    answer = compared(root, new, old)
    assert word(answer) == (expected, code), answer.entries[0].moved.reason


OWN_PREPARE, OWN_SETTINGS = SyntheticEngine.prepare, SyntheticEngine.settings
OWN_GENERATE = SyntheticEngine.generate


def two_bos(self: SyntheticEngine, *args: Any) -> list[Prepared]:
    """A version of a library that adds the beginning once more."""
    made = OWN_PREPARE(self, *args)
    return [
        replace(p, prompt_ids=(BOS, *p.prompt_ids), attention_mask=(1, *p.attention_mask))
        for p in made
    ]


def other_template(self: SyntheticEngine, arm: str, records: Any, prompts: Any, now: Any) -> Any:
    """One that renders a template without its last line end."""
    return OWN_PREPARE(self, arm, records, [f"{prompt} " for prompt in prompts], now)


def other_default(self: SyntheticEngine) -> Settings:
    """One whose default of an undeclared setting is another."""
    found = OWN_SETTINGS(self)
    return replace(found, effective=dict(found.effective) | {"attention.resolved": "eager"})


def other_text(self: SyntheticEngine, batch: Any) -> list[Generation]:
    """One that decodes the same tokens into another text."""
    return [replace(made, text=f" {made.text}") for made in OWN_GENERATE(self, batch)]


STARTS: dict[str, tuple[World, str, int | None, str]] = {
    "template": (World(NEWER, patches={"prepare": other_template}), "prompt", 1, "character"),
    "tokenizer": (World(NEWER, patches={"prepare": two_bos}), "prompt_ids", 1, "id 256 more"),
    "default": (
        World(NEWER, offset=0.5, patches={"settings": other_default}), "logits", None,
        "attention.resolved",
    ),
    "weights": (
        World(NEWER, offset=0.5, patches={"weights": lambda self: b"w" * 32}), "post_init_weights",
        None, "weights after initialisation",
    ),
    "decoding": (World(NEWER, patches={"generate": other_text}), "output", 4, "raw answer"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", STARTS)
def test_a_change_starts_at_the_earliest_stage_that_differs(root: Path, name: str) -> None:
    new, stage, layer, words = STARTS[name]
    answer = compared(root, new)
    (entry,) = answer.entries
    assert entry.moved.word == "CHANGED" and entry.start is not None, entry.moved.reason
    assert (entry.start.stage, entry.start.layer) == (stage, layer)
    assert words in shown(print_upgrade, answer, 400)
    assert words in shown(print_markdown, answer, 400)


Changed = tuple[Path, UpgradeAnswer]


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory, _cache: Path) -> Iterator[Changed]:
    """Two stacks whose logits differ, compared once; to be read."""
    root = tmp_path_factory.mktemp("changed")
    with pytest.MonkeyPatch.context() as patched:
        make(root, _cache, patched)
        yield root, compared(root, World(NEWER, offset=0.5))


def test_a_change_says_where_it_starts_what_differs_and_what_could_explain_it(
    changed: Changed,
) -> None:
    _, answer = changed
    assert word(answer) == ("CHANGED(logits)", 1)
    (entry,) = answer.entries
    assert entry.start is not None and entry.start.stage == "logits"
    assert (entry.start.layer, entry.start.layers) == (None, (2, 3))
    assert [each.name for each in answer.candidates] == ["numpy"]
    document = json.loads(json.dumps(answer.to_json()))
    told = document["contracts"][0]
    assert in_verdict_file(told)["verdict"] == "CHANGED"
    assert in_verdict_file(told)["grade"] == "logits" and in_verdict_file(told)["reason"]
    assert told["differing"]["tokens"] == {"controlled": [0, 5], "current": [0, 5]}
    assert set(told["metric"]["current"]) == {"base", "new"}
    assert told["same_unit"] is True and told["base"]["platform"] != told["new"]["platform"]


def test_a_person_and_a_pull_request_are_told_the_same(changed: Changed) -> None:
    _, answer = changed
    text = shown(print_upgrade, answer, 120)
    assert "CHANGED(logits)" in text and "numpy" in text and "not localised" in text
    table = shown(print_markdown, answer, 120)
    assert "| toy | CHANGED(logits) |" in table and "old to new" in table
    warned = replace(answer, mode="warn")
    assert warned.exit_code() == 0 and "blocks nothing" in shown(print_upgrade, warned, 120)


def test_the_history_shows_it_and_a_rebuild_keeps_it(changed: Changed) -> None:
    root, answer = changed
    places = places_in(root)
    landing = Landing.open(places.landing)
    (kept,) = read_upgrades(landing)
    assert kept.id == answer.upgrade.id and kept.contracts == answer.upgrade.contracts
    assert kept.id not in campaigns(landing)
    other = root / "other.duckdb"
    rebuild(other, landing)
    for store in (places.store, other):
        with open_reader(store) as opened:
            found = history_of(
                Answers(opened, landing), "toy", places.search, places.cache, Filters()
            )
        assert [each.entries[0].moved.in_words() for each in found.upgrades] == ["CHANGED(logits)"]
        assert "upgrade old -> new: CHANGED(logits)" in shown(print_history, found, 120)


def test_a_valid_pass_of_a_stack_may_be_reused_and_of_no_other(changed: Changed) -> None:
    root, answer = changed
    copied = root.parent / "reused"
    shutil.copytree(root, copied, dirs_exist_ok=True)
    again = compared(copied, World(NEWER, offset=0.5), reuse=True)
    assert again.upgrade.base == answer.upgrade.base and again.upgrade.new == answer.upgrade.new
    assert word(again) == ("CHANGED(logits)", 1) and again.upgrade.id != answer.upgrade.id
    write_stack(copied, "old", pillow="99.0")
    other = compared(copied, World(NEWER, offset=0.5), World({"pillow": "99.0"}), reuse=True)
    assert other.upgrade.base.campaign != answer.upgrade.base.campaign
    assert other.upgrade.new == answer.upgrade.new


def test_both_stacks_run_on_one_unit_each_with_its_own_controls(changed: Changed) -> None:
    root, answer = changed
    both = (answer.upgrade.base.campaign, answer.upgrade.new.campaign)
    assert len(set(both)) == 2
    with open_reader(places_in(root).store) as store:
        rows = store.con.execute("SELECT campaign, contract FROM controls").fetchall()
        units = store.con.execute("SELECT DISTINCT unit FROM attempts").fetchall()
    assert {campaign for campaign, _ in rows} == set(both) and len(units) == 1


def test_a_stack_that_is_tried_is_not_what_its_unit_shows(changed: Changed) -> None:
    root, _ = changed
    copied = root.parent / "deployed"
    shutil.copytree(root, copied, dirs_exist_ok=True)
    with open_reader(places_in(copied).store) as store:
        (tried,) = queries.newest_platforms(store.con).values()
    certified(copied, "toy")
    with open_reader(places_in(copied).store) as store:
        (own,) = queries.newest_platforms(store.con).values()
        told = queries.shown_platforms(store.con)
    assert own[0] != tried[0] and [platform for _, platform, _ in told] == [own[0]]


def test_two_stacks_are_compared_with_what_ran_on_both(changed: Changed) -> None:
    root, _ = changed
    places = places_in(root)
    old, new = (load_stack(name, places.search, None) for name in ("old", "new"))
    bare = stack_diff(old, new, None)
    numpy = old.stack.packages["numpy"].version
    assert bare.fields == {"package.numpy": (numpy, "99.0")} and bare.exit_code() == 3
    assert "no contract ran on both stacks" in shown(print_diff, bare, 120)
    with open_reader(places.store) as store:
        found = stack_diff(old, new, Answers(store, Landing.open(places.landing)))
        same = stack_diff(old, old, Answers(store, Landing.open(places.landing)))
    assert {p.contract: p.result for p in found.pairs}["toy"] == "DIFFERS"
    assert found.exit_code() == 1 and "99.0" in shown(print_diff, found, 120)
    assert same.fields == {} and {p.result for p in same.pairs} == {"NO_EVIDENCE"}


def test_a_dry_run_says_what_would_run_and_how_long_it_took_before(changed: Changed) -> None:
    root, _ = changed
    places = places_in(root)
    request = UpgradeRequest("old", "new")  # all that the store knows
    plan = plan_upgrade(request, places, lambda _: None)
    document = plan_document(request, plan, places)
    assert document["seconds"] > 0
    counts = {row["contract"]: row["replays"] for row in document["stacks"][0]["replays"]}
    assert counts["toy"] == 2 and len(document["stacks"]) == 2
    assert "in all about" in shown(print_upgrade_plan, document, 120)


def test_without_evidence_a_contract_has_to_be_named(root: Path) -> None:
    with pytest.raises(UsageError, match="none known"):
        plan_upgrade(UpgradeRequest("old", "new"), places_in(root), lambda _: None)
    named = UpgradeRequest("old", "new", ("toy",))
    plan = plan_upgrade(named, places_in(root), lambda _: None)
    document = plan_document(named, plan, places_in(root))
    assert document["seconds"] is None and "not known" in shown(print_upgrade_plan, document, 120)


def test_an_environment_that_cannot_be_used_is_told_before_anything_runs(root: Path) -> None:
    (root / "new-python").unlink()
    with pytest.raises(UsageError, match="a Python that runs"):
        compared(root, World(NEWER))
    shutil.copy("/bin/false", root / "new-python")
    with pytest.raises(UsageError, match="a Python that answers"):
        compared(root, World(NEWER))
    assert not (root / "var").exists()
