"""Varied sets of replays: what is varied was varied, or there is no verdict."""

from __future__ import annotations

from tests.cases.expectations import expect_fail, expect_pass, expect_void
from tests.cases.harness import RECORDS, ContractSpec, Outcome, pair

ORDER = ContractSpec(extra='vary = ["order"]\n')
BATCH = ContractSpec(extra='vary = ["batch"]\n')
LARGE = ContractSpec(batch_size=4, extra='vary = ["batch", "order"]\n')
MEMORY = ContractSpec(extra='vary = ["memory"]\n')
LOAD = ContractSpec(extra='vary = ["load"]\n')
SHORT = "stress-not-applied"


@pair(spec=ORDER)
def test_a_contract_that_keeps_nothing_passes_in_another_order(outcome: Outcome) -> None:
    expect_pass(outcome, f"{RECORDS} records of 2 fresh replays", "under varied order")
    assert outcome.verdict.vary == ("order",)


@pair(spec=BATCH)
def test_a_contract_whose_rows_never_meet_passes_in_other_batches(outcome: Outcome) -> None:
    expect_pass(outcome, "under varied batch")
    assert outcome.verdict.warnings == ()
    assert len(outcome.verdict.envelope["decode_batch_sizes"]) > 1


@pair(spec=LARGE)
def test_two_things_are_varied_at_once_and_are_one_claim(outcome: Outcome) -> None:
    expect_pass(outcome, "under varied batch and order")
    assert outcome.verdict.vary == ("batch", "order")


@pair(spec=MEMORY)
def test_memory_is_filled_in_one_replay_and_left_alone_in_the_other(outcome: Outcome) -> None:
    expect_pass(outcome, "under varied memory contents")


@pair(spec=LOAD)
def test_a_contract_that_takes_no_notice_passes_beside_busy_neighbours(outcome: Outcome) -> None:
    expect_pass(outcome, "under varied load of the machine")


@pair({1: "neighbours_asleep"}, spec=LOAD)
def test_neighbours_that_do_nothing_are_void(outcome: Outcome) -> None:
    expect_void(outcome, SHORT, "load: neighbours burned ", " s of CPU while samples ran for ")


@pair({1: "one_neighbour_less"}, spec=LOAD)
def test_a_neighbour_too_few_is_void(outcome: Outcome) -> None:
    expect_void(outcome, SHORT, "load: ", " neighbours ran to the end, planned ")


@pair({1: "flipped_bit"}, spec=ORDER)
def test_a_difference_in_a_varied_set_is_a_fail_and_its_cause_undecided(outcome: Outcome) -> None:
    words = ("undecided: depends on the order of the samples, or a race",)
    expect_fail(outcome, (2, 3), *words, stage="logits", mismatches=1)


@pair({1: "nothing_varied"}, spec=ORDER)
def test_an_order_that_was_not_varied_is_void(outcome: Outcome) -> None:
    expect_void(outcome, SHORT, "order: no sample ran at another place")


@pair({1: "nothing_varied"}, spec=BATCH)
def test_batches_that_were_not_varied_are_void(outcome: Outcome) -> None:
    expect_void(outcome, SHORT, "batch: no batch of ", "sizes seen [1]")


@pair({1: "claimed_only"}, spec=ORDER)
def test_counters_do_not_stand_in_for_the_order_of_the_rows(outcome: Outcome) -> None:
    # which row is the first one out of order is drawn
    expect_void(outcome, SHORT, "planned row ('controlled', ", "landed ('controlled', ")


@pair({1: "claimed_only"}, spec=BATCH)
def test_counters_do_not_stand_in_for_the_batches_of_the_rows(outcome: Outcome) -> None:
    expect_void(outcome, SHORT, "planned row ('controlled', ", "landed ('controlled', ")


@pair({1: "another_order"}, spec=ORDER)
def test_an_order_that_nobody_drew_is_void(outcome: Outcome) -> None:
    expect_void(outcome, SHORT, "planned row ")


@pair({0: "another_order"}, spec=ORDER)
def test_a_reference_that_ran_in_another_order_is_void(outcome: Outcome) -> None:
    expect_void(outcome, "evidence-altered", "the rows do not give the manifest's roots")


@pair({1: "counted_more"}, spec=ORDER)
def test_counters_of_other_rows_are_void(outcome: Outcome) -> None:
    expect_void(outcome, "evidence-altered", "counters {'order': ", "rows say {'order': ")


@pair({1: "took_something_else"}, spec=ORDER)
def test_another_value_than_the_planned_one_is_void(outcome: Outcome) -> None:
    expect_void(outcome, "evidence-altered", "varied ['order'] {'order': '0123456789abcdef'}")


@pair({1: "said_nothing"}, spec=ORDER)
def test_a_replay_that_ran_as_an_exact_repeat_is_void(outcome: Outcome) -> None:
    expect_void(outcome, "evidence-altered", "varied [] {}, planned ['order'] {'order': ")


@pair({1: "memory_left_alone"}, spec=MEMORY)
def test_memory_that_holds_no_pattern_is_void(outcome: Outcome) -> None:
    """A small block may still hold it, from before glibc was told to stop."""
    expect_void(outcome, SHORT, "memory: ", " of 12 fresh blocks hold the pattern")


@pair(spec=MEMORY, extra_environment={1: {"MALLOC_PERTURB_": "0"}})
def test_a_pattern_that_the_process_was_not_given_is_void(outcome: Outcome) -> None:
    expect_void(outcome, "setting-not-in-force", "environment MALLOC_PERTURB_")


@pair(spec=MEMORY, extra_environment={0: {"MALLOC_PERTURB_": "77"}})
def test_a_reference_with_a_pattern_is_void(outcome: Outcome) -> None:
    expect_void(outcome, "setting-not-in-force", "environment MALLOC_PERTURB_: contract '0'")
