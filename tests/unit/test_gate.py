"""``fleet gate``: a policy held against evidence. Nothing that is short of its rule may hold."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from fleet.errors import PolicyError
from fleet.evidence.landing import Landing
from fleet.report.answers import Answers
from fleet.report.gate import GateAnswer, gate_of
from fleet.report.gate_view import print_gate, print_markdown
from fleet.schedule.gating import read_policy, scope_of
from fleet.store.open import open_reader
from tests import campaigns
from tests.campaigns import CONTROLS, FakeLauncher, certified, places_in
from tests.unit.screens import shown

DAY_S = 86400.0
RULE: dict[str, Any] = {
    "contracts": ["toy"],
    "platforms": [{"os": "Linux"}],
    "grade": "logits",
}


@pytest.fixture
def root(campaigned: Path, tmp_path: Path) -> Path:
    shutil.copytree(campaigned, tmp_path / "copy")
    return tmp_path / "copy"


def facts(root: Path) -> dict[str, Any]:
    """Of the one platform that this machine shows."""
    places = places_in(root)
    with open_reader(places.store) as store:
        answers = Answers(store, Landing.open(places.landing))
        (present,) = answers.present
        from fleet.store import queries

        found: dict[str, Any] = queries.platforms(store.con)[present]["facts"]
        return found


def toml(rule: dict[str, Any]) -> str:
    """JSON is TOML but for tables, which here hold strings only."""

    def value(item: Any) -> str:
        if isinstance(item, dict):
            return "{" + ", ".join(f"{k} = {value(v)}" for k, v in item.items()) + "}"
        if isinstance(item, list):
            return "[" + ", ".join(value(i) for i in item) + "]"
        return json.dumps(item)

    return "[[rules]]\n" + "".join(f"{key} = {value(item)}\n" for key, item in rule.items())


def gated(
    root: Path, mode: str = "block", later_s: float = 0.0, text: str = "", **changes: Any
) -> GateAnswer:
    rule = RULE | {"platforms": [{"cpu_model": facts(root)["cpu_model"]}]} | changes
    rule = {key: item for key, item in rule.items() if item is not None}
    path = root / "policy.toml"
    path.write_text(text or toml(rule))
    places = places_in(root)
    loaded = read_policy(str(path), places.search)
    with open_reader(places.store) as store:
        answers = Answers(store, Landing.open(places.landing))
        scopes = [scope_of(rule, answers, places.search) for rule in loaded.policy.rules]
        now_s = time.time() + later_s
        return gate_of(loaded, mode, scopes, answers, places.search, places.cache, now_s)


def result(answer: GateAnswer) -> tuple[str, int]:
    return answer.result, answer.exit_code()


def test_what_passes_with_enough_evidence_holds(root: Path) -> None:
    answer = gated(root, min_n=10, max_age_days=1, max_record_bound=0.3)
    assert result(answer) == ("held", 0)
    (check,) = answer.rules[0].checks
    assert (check.state, check.units, check.n) == ("PASS", 1, 10)
    document = json.loads(json.dumps(answer.to_json(), allow_nan=False))
    assert document["rules"][0]["checks"][0]["result"] == "held"


SHORT: list[tuple[dict[str, Any], str]] = [
    ({"min_units": 2}, "units = 1"),
    ({"min_n": 11}, "n = 10, 11 asked"),
    ({"max_record_bound": 0.01}, "per record"),
    ({"max_process_bound": 0.4}, "not bounded"),
    ({"scope": "same-class"}, "two units"),
    ({"grade": "modules"}, "no root at the grade modules"),
    ({"vary": ["order"]}, "never tested"),
    ({"vary": ["none", "order"]}, "never tested"),
    ({"platforms": [{"gpu_model": "NVIDIA H200"}]}, "no unit shows a platform with gpu_model"),
    ({"contracts": ["toy", "smollm2-bf16"]}, "never tested"),
    ({"platforms": None, "fleet": "one-machine"}, "never ran a replay"),
]


@pytest.mark.parametrize(("changes", "words"), SHORT, ids=[words for _, words in SHORT])
def test_whatever_is_short_is_not_covered_and_says_of_what(
    root: Path, changes: dict[str, Any], words: str
) -> None:
    answer = gated(root, **changes)
    assert result(answer) == ("not covered", 3)
    assert words in shown(print_gate, answer)
    assert gated(root, mode="warn", **changes).exit_code() == 0
    assert gated(root, mode="info", **changes).exit_code() == 0


def test_old_evidence_counts_no_unit_and_no_pass(root: Path) -> None:
    assert result(gated(root, max_age_days=2, later_s=DAY_S)) == ("held", 0)
    old = gated(root, max_age_days=2, later_s=3 * DAY_S)
    assert result(old) == ("not covered", 3)
    assert "units = 0 within that age, 1 asked" in old.rules[0].checks[0].words
    stale = gated(root, later_s=40 * DAY_S)
    assert (stale.rules[0].checks[0].state, stale.exit_code()) == ("STALE", 3)


def test_a_contract_that_changed_is_not_covered_by_what_it_was(root: Path) -> None:
    path = root / "configs" / "contracts" / "toy.toml"
    path.write_text(path.read_text().replace("max_new_tokens = 4", "max_new_tokens = 5"))
    answer = gated(root)
    assert result(answer) == ("not covered", 3)
    assert "changed since" in answer.rules[0].checks[0].words


def test_a_fail_fails_at_every_grade_that_it_breaks(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(_: object) -> None:
        monkeypatch.setattr("fleet.replay.engines.synthetic.LIKELY", b"ABCE .()")

    certified(root, launcher=FakeLauncher(script={5: change}))
    failed = gated(root, contracts=["toy", "other"])
    assert result(failed) == ("failed", 1)
    assert [check.result for check in failed.rules[0].checks] == ["failed", "held"]
    assert failed.rules[0].checks[0].state == "REGRESSED"
    assert gated(root, mode="warn").exit_code() == 0

    packages = campaigns._packages() | {"torch": {"version": "9.0", "digest": "x"}}
    monkeypatch.setattr(campaigns, "_packages", lambda: packages)
    certified(root, "other")
    successor = gated(root)
    assert result(successor) == ("not covered", 3), "the old platform is in the fleet no more"
    assert "FAIL on predecessor" in successor.rules[0].checks[0].words


def test_a_control_that_did_not_behave_lets_nothing_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    campaigns.write_configs(tmp_path / "configs")
    monkeypatch.setattr(os, "urandom", lambda n: bytes(n))
    certified(tmp_path, "toy")
    answer = gated(tmp_path)
    assert (answer.rules[0].checks[0].state, answer.exit_code()) == ("VOID", 3)


def test_wildcards_match_contracts_and_no_control(root: Path) -> None:
    names = {
        check.contract for check in gated(root, contracts=["o*", "toy", "t?y"]).rules[0].checks
    }
    assert names == {"other", "own", "toy"}
    everything = {check.contract for check in gated(root, contracts=["*"]).rules[0].checks}
    assert "toy" in everything and not everything & set(CONTROLS)


@pytest.mark.parametrize("glob", ["tyo", "nothing-*", CONTROLS[0], "control-*"])
def test_a_rule_about_nothing_or_a_control_is_a_usage_error(root: Path, glob: str) -> None:
    with pytest.raises(PolicyError, match="contracts"):
        gated(root, contracts=[glob])


def test_a_fleet_s_units_are_looked_up_and_must_be_what_their_node_says(root: Path) -> None:
    fleets = root / "configs" / "fleets"
    fleets.mkdir()
    text = '[night]\nbudget_minutes = 5\ncontracts = ["toy"]\n[[nodes]]\nlabel = "test-node"\n'
    (fleets / "mine.toml").write_text(text)
    assert result(gated(root, platforms=None, fleet="mine")) == ("held", 0)
    (fleets / "mine.toml").write_text(text + 'platform.cpu_model = "another"\n')
    answer = gated(root, platforms=None, fleet="mine")
    assert result(answer) == ("not covered", 3)
    assert "shows another platform: cpu_model" in answer.rules[0].checks[0].words
    (fleets / "mine.toml").write_text(text + '[[nodes]]\nlabel = "absent"\n')
    answer = gated(root, platforms=None, fleet="mine")
    assert [check.result for check in answer.rules[0].checks] == ["held", "not covered"]


def test_a_summary_for_ci_escapes_what_evidence_holds(root: Path) -> None:
    text = shown(print_markdown, gated(root, name="a | b", min_n=11), 60)
    assert "### a \\| b: not covered" in text
    (row,) = [line for line in text.splitlines() if line.startswith("| toy")]
    assert row.count(" | ") == 8 and "n = 10, 11 asked" in row
