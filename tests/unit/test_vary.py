"""What a replay of a varied set takes: drawn from its attempt id, never what the contract says."""

from __future__ import annotations

import secrets
import tomllib
from typing import Any

import pytest

from fleet.contract.model import Contract
from fleet.contract.vary import (
    Own,
    batch_plan,
    cannot_vary,
    claim,
    comparable,
    draw,
    environment,
    in_words,
    own_mates,
    parse_claims,
    varied_contract,
)
from fleet.errors import UsageError
from tests.contract_text import contract_text

IDS = [f"s{i}" for i in range(10)]
OWN = Own(batch_size=1, num_threads=1, num_samples=10, cores=4)
NONCES = [f"{n:016x}" for n in range(40)]


def ran(varied: dict[str, Any], size: int = 1, ids: list[str] = IDS) -> list[tuple[int, ...]]:
    return [batch.positions for batch in batch_plan(ids, "current", size, varied)]


def test_the_reference_takes_the_contracts_own_values() -> None:
    assert draw(("batch", "memory", "order", "threads"), NONCES[0], 0, OWN) == {}
    assert ran({}) == [(i,) for i in range(10)]
    assert ran({}, 4) == [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9)]


def test_a_draw_is_the_same_for_the_same_attempt_and_another_for_another() -> None:
    names = ("order", "batch", "threads", "memory")
    draws = [draw(names, nonce, 1, OWN) for nonce in NONCES]
    assert draws == [draw(reversed(names), nonce, 2, OWN) for nonce in NONCES]
    assert len({d["order"] for d in draws}) == len(NONCES)
    assert len({d["memory"] for d in draws}) > 20


@pytest.mark.parametrize("own", [True, False])
def test_a_varied_cache_is_the_other_one(own: bool) -> None:
    values = Own(1, 1, 10, 4, use_cache=own)
    assert draw(("cache",), NONCES[0], 1, values) == {"cache": not own}
    assert draw(("cache",), NONCES[0], 0, values) == {}


@pytest.mark.parametrize(("own", "other"), [("pinned", "cold"), ("cold", "pinned")])
def test_a_varied_kernel_cache_is_the_other_one(own: str, other: str) -> None:
    values = Own(1, 1, 10, 4, kernel_cache=own)
    assert draw(("kernel_cache",), NONCES[0], 1, values) == {"kernel_cache": other}
    assert draw(("kernel_cache",), NONCES[0], 0, values) == {}


@pytest.mark.parametrize("cores", [0, 1, 3])
def test_there_are_from_one_neighbour_to_two_for_each_core(cores: int) -> None:
    own = Own(1, 1, 10, cores)
    found = {draw(("load",), nonce, 1, own)["load"] for nonce in NONCES}
    assert found == set(range(1, 2 * max(cores, 1) + 1))
    assert draw(("load",), NONCES[0], 0, own) == {}


@pytest.mark.parametrize("own_size", [1, 2, 3, 8, 10, 64])
@pytest.mark.parametrize("samples", [2, 3, 10])
def test_no_draw_is_the_contracts_own_value(own_size: int, samples: int) -> None:
    own = Own(own_size, num_threads=2, num_samples=samples, cores=4)
    ids = IDS[:samples]
    for nonce in NONCES:
        found = draw(("batch", "memory", "threads"), nonce, 1, own)
        assert found["threads"] in (1, 3, 4)
        assert 1 <= found["memory"] <= 254
        assert 1 <= found["batch"]["size"] <= samples
        assert ran(found, own_size, ids) != ran({}, own_size, ids)
        mates = [batch.positions for batch in batch_plan(ids, "current", own_size, found)]
        assert any(b != own_mates(p, own) for b in mates for p in b)


def test_one_core_still_has_another_number_of_threads() -> None:
    assert draw(("threads",), NONCES[0], 1, Own(1, 1, 5, cores=1)) == {"threads": 2}


@pytest.mark.parametrize("samples", [2, 3, 7])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_an_order_is_never_the_datasets_and_moves_whole_batches(samples: int, size: int) -> None:
    ids, own = IDS[:samples], Own(size, 1, samples, 2)
    if cannot_vary(("order",), own):
        assert samples <= size
        return
    for nonce in NONCES:
        order = ran(draw(("order",), nonce, 1, own), size, ids)
        assert order != ran({}, size, ids)
        assert sorted(order) == ran({}, size, ids)


def test_arms_run_in_orders_of_their_own_and_ordinals_stay_those_of_the_plan() -> None:
    varied = draw(("order",), NONCES[0], 1, OWN)
    one, two = (list(batch_plan(IDS, arm, 1, varied)) for arm in ("current", "controlled"))
    assert one != two
    assert all(batch.positions == (batch.ordinal,) for batch in one)


def test_a_varied_batch_holds_every_sample_once_and_its_rows_in_order() -> None:
    for nonce in NONCES:
        varied = draw(("batch",), nonce, 1, OWN)
        batches = ran(varied)
        assert sorted(p for b in batches for p in b) == list(range(10))
        assert all(list(b) == sorted(b) for b in batches)
        size = varied["batch"]["size"]
        assert sorted(map(len, batches)) == sorted(
            [10 % size] * (10 % size > 0) + [size] * (10 // size)
        )


def test_order_and_batch_together_do_both() -> None:
    for nonce in NONCES:
        varied = draw(("order", "batch"), nonce, 1, Own(1, 1, 3, 2))
        batches = batch_plan(IDS[:3], "current", 1, varied)
        assert varied["batch"]["size"] == 2
        assert [b.ordinal for b in batches] == [1, 0]


@pytest.mark.parametrize(
    ("vary", "own", "why"),
    [
        (("order",), Own(1, 1, 1, 4), "one batch"),
        (("order",), Own(8, 1, 5, 4), "one batch"),
        (("batch",), Own(1, 1, 1, 4), "no other batches"),
        (("batch", "order"), Own(1, 1, 2, 4), "no other batches"),
    ],
)
def test_what_cannot_be_varied_is_said_and_never_drawn(
    vary: tuple[str, ...], own: Own, why: str
) -> None:
    assert why in (cannot_vary(vary, own) or "")
    with pytest.raises(ValueError, match=why):
        draw(vary, secrets.token_hex(8), 1, own)


def test_the_varied_contract_differs_in_the_varied_keys_alone() -> None:
    tables = tomllib.loads(contract_text("five"))
    own = Contract.model_validate({k: v for k, v in tables.items() if k != "schema"})
    assert varied_contract(own, {}) == own
    changed = varied_contract(
        own, {"batch": {"size": 3, "seed": "0"}, "threads": 2, "order": "1", "memory": 9}
    )
    assert (changed.decoding.batch_size, changed.determinism.num_threads) == (3, 2)
    back = varied_contract(changed, {"batch": {"size": 1, "seed": "0"}, "threads": 1})
    assert back == own
    without = varied_contract(own, {"cache": False})
    assert (own.decoding.use_cache, without.decoding.use_cache) == (True, False)
    assert varied_contract(without, {"cache": True}) == own
    assert Own.of(without, 3, 1).use_cache is False
    pinned = varied_contract(own, {"kernel_cache": "pinned"})
    assert (own.determinism.kernel_cache, pinned.determinism.kernel_cache) == ("cold", "pinned")
    assert varied_contract(pinned, {"kernel_cache": "cold"}) == own
    assert Own.of(pinned, 3, 1).kernel_cache == "pinned"


def test_only_a_varied_memory_sets_a_variable_and_its_reference_fills_nothing() -> None:
    assert environment((), {}) == environment(("order",), {"order": "1"}) == {}
    assert environment(("memory",), {}) == {"MALLOC_PERTURB_": "0"}
    assert environment(("memory", "order"), {"memory": 165}) == {"MALLOC_PERTURB_": "165"}


def test_what_follows_from_the_threads_is_left_out_and_nothing_else() -> None:
    effective = {"torch.num_threads": 2, "env.OMP_NUM_THREADS": "2", "model.dtype": "bfloat16"}
    assert comparable(effective, ("threads",)) == {"model.dtype": "bfloat16"}
    assert comparable(effective, ("order", "batch", "memory")) == effective
    kernels = {"kernel_cache_at_load": "a", "kernel_cache_at_end": "b"}
    assert comparable(kernels, ("kernel_cache",)) == {}
    assert comparable(kernels, ("cache", "order")) == kernels
    rule = {"decoding.generation_config": {"use_cache": False, "do_sample": False}}
    assert comparable(rule, ("order",)) == rule
    assert comparable(rule, ("cache",)) == {"decoding.generation_config": {"do_sample": False}}
    assert rule["decoding.generation_config"]["use_cache"] is False


def test_claims_are_sorted_and_said_in_words() -> None:
    assert claim(["order", "batch", "order"]) == ("batch", "order")
    assert in_words(()) == "exact repeat"
    assert in_words(("order",)) == "varied order"
    assert in_words(("threads", "order", "batch")) == "varied batch, order and number of threads"


def test_the_command_line_says_one_claim_each_time() -> None:
    assert parse_claims(["order", "memory,order", "none"]) == (("order",), ("memory", "order"), ())


@pytest.mark.parametrize("texts", [[""], ["order,"], ["none,order"], ["a,b", "b,a"]])
def test_a_claim_that_says_nothing_or_is_said_twice_is_refused(texts: list[str]) -> None:
    with pytest.raises(UsageError) as error:
        parse_claims(texts)
    assert error.value.key == "--vary"
