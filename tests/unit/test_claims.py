"""Which claims a campaign makes, and what is refused before any process starts."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from fleet.contract.model import Contract
from fleet.contract.refuse import refuse_unavailable, refuse_vary
from fleet.contract.vary import VARIES
from fleet.errors import ContractError, UsageError
from fleet.evidence.landing import Landing
from fleet.evidence.ledger import campaigns, read_chain
from tests.campaigns import (
    ORDERED,
    FakeLauncher,
    certified,
    places_in,
    planned_in,
    write_configs,
    write_contract,
)
from tests.contract_text import contract_text


def contract(extra: str = "", **table: object) -> Contract:
    tables = tomllib.loads(contract_text("five", extra=extra))
    del tables["schema"]
    for name, changes in table.items():
        tables[name] |= changes
    return Contract.model_validate(tables)


TORCH = {"checkpoint": "demo:tiny-llama-bf16", "engine": "transformers", "dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("vary", "expected", "got"),
    [
        (("moon",), "some of batch, cache, kernel_cache, load, memory, order, threads", '"moon"'),
        (("order", "order"), "each name once", '"order" twice'),
        (("cache",), "the engine has no key-value cache", "not supported by this version"),
        (("threads",), "the engine has no threads", "not supported"),
        (("kernel_cache",), "the engine has no compiled kernels", "not supported"),
    ],
)
def test_what_cannot_be_varied_is_refused(vary: tuple[str, ...], expected: str, got: str) -> None:
    with pytest.raises(ContractError) as error:
        refuse_vary(contract(), vary, "here")
    assert error.value.key == "require.vary"
    assert expected in error.value.expected
    assert got in error.value.got


def test_every_known_name_can_be_varied_where_there_are_threads() -> None:
    refuse_vary(contract(model=TORCH), tuple(VARIES), "here")
    refuse_vary(contract(), ("batch", "load", "memory", "order"), "here")
    refuse_vary(contract(), (), "here")


def test_one_new_token_is_made_without_a_cache_either_way() -> None:
    one = contract(model=TORCH, decoding={"max_new_tokens": 1})
    refuse_vary(one, ("order",), "here")
    with pytest.raises(ContractError) as error:
        refuse_vary(one, ("cache",), "here")
    assert error.value.key == "decoding.max_new_tokens"
    refuse_vary(contract(model=TORCH, decoding={"max_new_tokens": 2}), ("cache",), "here")


def test_a_control_and_the_grade_modules_are_not_varied() -> None:
    expects = contract(ORDERED + '[expect]\nverdict = "PASS"\n')
    modules = contract(model=TORCH, require={"grade": "modules"})
    for one, key in ((expects, "require.vary"), (modules, "require.grade")):
        refuse_unavailable(one, "here")
        with pytest.raises(ContractError) as error:
            refuse_vary(one, ("order",), "here")
        assert error.value.key == key


@pytest.mark.parametrize(
    "kind", ["batch", "carrying", "threaded", "crowded", "uninitialized", "compiled", "recompiled"]
)
def test_an_engine_without_linears_takes_no_fault_of_one(kind: str) -> None:
    with pytest.raises(ContractError) as error:
        refuse_unavailable(contract(f'[control]\ninject = "{kind}_linear:layers.0"\n'), "here")
    assert error.value.key == "control.inject"


def test_each_claim_gets_its_replays_and_controls_stay_exact(tmp_path: Path) -> None:
    write_configs(tmp_path / "configs")
    claims = ((), ("order",), ("batch", "order"))
    _, planned, _ = planned_in(tmp_path, claims=claims)
    mine = [s for s in planned.slots if s.role == "named"]
    assert [(s.vary, s.replay) for s in mine] == [(c, i) for c in claims for i in (0, 1)]
    assert {s.vary for s in planned.slots if s.role == "control"} == {()}
    assert [a.require.vary for a in planned.asked(planned.named)] == list(claims)
    assert mine[-1].to_json()["vary"] == ["batch", "order"]


def test_the_contracts_own_claim_holds_unless_the_command_line_says_otherwise(
    tmp_path: Path,
) -> None:
    configs = write_configs(tmp_path / "configs")
    write_contract(configs, "mine", contract_text("five", extra='vary = ["order", "memory"]\n'))
    _, planned, _ = planned_in(tmp_path, "mine", "toy")
    assert planned.claims == {"mine": (("memory", "order"),), "toy": ((),)}
    _, planned, _ = planned_in(tmp_path, "mine", "toy", claims=((),))
    assert planned.claims == {"mine": ((),), "toy": ((),)}
    for purpose in ("screen", "replay", "trace"):
        _, planned, _ = planned_in(tmp_path, "mine", purpose=purpose)
        assert {s.vary for s in planned.slots} == {()}


def test_what_this_dataset_cannot_vary_and_a_trace_beside_it_are_refused(tmp_path: Path) -> None:
    configs = write_configs(tmp_path / "configs")
    write_contract(configs, "whole", contract_text("five", batch_size=5))
    with pytest.raises(ContractError) as error:
        planned_in(tmp_path, "whole", claims=(("order",),))
    assert "one batch" in error.value.got
    with pytest.raises(UsageError) as refused:
        planned_in(tmp_path, "toy", trace="always", claims=(("order",),))
    assert refused.value.key == "--trace"


def test_one_campaign_gives_each_claim_its_own_verdict(tmp_path: Path) -> None:
    write_configs(tmp_path / "configs")
    answer = certified(tmp_path, "toy", claims=((), ("order",), ("batch",)))
    assert [v.vary for v in answer.contracts] == [(), ("order",), ("batch",)]
    assert [v.verdict for v in answer.contracts] == ["PASS"] * 3
    words = ["exact repeat", "under varied order", "under varied batch"]
    assert all(v.reason.endswith(w) for v, w in zip(answer.contracts, words, strict=True))
    assert len({tuple(v.roots["logits"]) for v in answer.contracts}) == 1
    assert answer.exit_code() == 0


def test_the_ledger_plans_the_drawn_values_and_the_reference_has_none(tmp_path: Path) -> None:
    write_configs(tmp_path / "configs")
    launcher = FakeLauncher()
    certified(tmp_path, "toy", launcher=launcher, claims=(("batch", "order"),))
    landing = Landing.open(places_in(tmp_path).landing)
    (campaign,) = campaigns(landing)
    bodies = {e.attempt: e.body for e in read_chain(landing, campaign) if e.kind == "planned"}
    reference, varied = launcher.tasks[-2:]
    assert (reference.vary, reference.varied) == (("batch", "order"), {})
    assert varied.varied["batch"]["size"] in (2, 3, 4)
    for task in (reference, varied):
        body = bodies[task.attempt]
        assert (body["vary"], body["varied"]) == (["batch", "order"], task.varied)
        assert body["own"]["batch_size"] == body["batch_size"] == 1
        assert task.contract["decoding"]["batch_size"] == 1
    exact = [b for b in bodies.values() if not b["vary"]]
    assert exact
    assert all({"varied", "own"}.isdisjoint(body) for body in exact)


def test_memory_that_was_not_filled_is_void_and_says_so(tmp_path: Path) -> None:
    """The fake launcher sets the variable in a process that runs already: too late for glibc."""
    write_configs(tmp_path / "configs")
    (verdict,) = certified(tmp_path, "toy", claims=(("memory",),)).contracts
    assert (verdict.verdict, verdict.code) == ("VOID", "stress-not-applied")
    assert "of 12 fresh blocks hold the pattern" in verdict.reason


def test_a_declared_bound_is_reached_by_each_claim_with_one_reference_each(tmp_path: Path) -> None:
    write_configs(tmp_path / "configs")
    launcher = FakeLauncher()
    claims = ((), ("order",))
    answer = certified(tmp_path, "toy", launcher=launcher, claims=claims, process_bound=0.4)
    assert [v.verdict for v in answer.contracts] == ["PASS", "PASS"]
    assert [v.bounds["replays"] for v in answer.contracts] == [7, 7]
    mine = [t for t in launcher.tasks if t.contract_name == "toy"]
    ordered = [t for t in mine if t.vary]
    assert (len(mine), len(ordered)) == (14, 7)
    assert [bool(t.varied) for t in ordered] == [False] + [True] * 6
    assert len({t.varied["order"] for t in ordered[1:]}) == 6
