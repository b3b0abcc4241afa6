"""Layer 2: weights, settings, batch plan, sampler, stop rule."""

from __future__ import annotations

from tests.cases.expectations import expect_fail, expect_pass, expect_void, samples
from tests.cases.harness import RECORDS, ContractSpec, Outcome, pair

OF_CHECKPOINT = "weights-not-of-checkpoint"


@pair({1: "missing_weight"})
def test_a_missing_weight_is_void_and_named(outcome: Outcome) -> None:
    words = ("layers.3.mlp.down_proj.weight", "in the checkpoint and not loaded")
    expect_void(outcome, OF_CHECKPOINT, *words)


@pair({1: "reinitialised_weight"})
def test_a_reinitialised_weight_is_void_and_named(outcome: Outcome) -> None:
    expect_void(outcome, OF_CHECKPOINT, "lm_head.weight: differs from the checkpoint")


@pair({1: "unmapped_tensor"})
def test_a_tensor_that_the_checkpoint_lacks_is_void_and_named(outcome: Outcome) -> None:
    expect_void(outcome, OF_CHECKPOINT, "layers.0.adapter.weight: not in the checkpoint")


@pair({1: "weight_elsewhere"})
def test_a_tensor_off_the_device_is_void_and_named(outcome: Outcome) -> None:
    expect_void(outcome, "placement", "layers.1.mlp.up_proj.weight: not on the slot's device")


@pair(extra_environment={1: {"PYTHONHASHSEED": "7"}})
def test_a_hash_seed_given_wrongly_is_void_and_named(outcome: Outcome) -> None:
    words = ("environment PYTHONHASHSEED: contract '0', process '7'",)
    expect_void(outcome, "setting-not-in-force", *words)


@pair({1: "setting_moves"})
def test_a_setting_that_moves_at_sample_5_is_void_and_names_the_sample(outcome: Outcome) -> None:
    words = ("python_hash_seed at sample current/s05", "contract '0', in force '9'")
    expect_void(outcome, "setting-not-in-force", *words)


@pair({0: "undeclared_penalty", 1: "undeclared_penalty"})
def test_an_undeclared_decoding_value_is_void_although_both_replays_have_it(
    outcome: Outcome,
) -> None:
    words = ("decoding.repetition_penalty", "contract 1.0, in force 1.1")
    expect_void(outcome, "undeclared-decoding", *words)


@pair({1: "other_autotune_table"})
def test_an_undeclared_setting_with_equal_values_is_a_pass_with_a_warning(
    outcome: Outcome,
) -> None:
    expect_pass(outcome)
    warning = "undeclared effective settings differ between replays: autotune_table"
    assert outcome.verdict.warnings == (warning,)


@pair({1: "larger_batches"}, spec=ContractSpec(batch_size=2))
def test_batches_of_another_size_than_declared_are_void(outcome: Outcome) -> None:
    words = ("batch plan", "controlled/s02", "planned in batch 1, ran in batch 0")
    expect_void(outcome, "setting-not-in-force", *words)


@pair({1: "turned_batches"}, spec=ContractSpec(batch_size=2))
def test_another_order_inside_a_batch_is_a_candidate_and_outranks_no_kernel(
    outcome: Outcome,
) -> None:
    words = ("logits with equal inputs", "settings differ too, a candidate cause")
    expect_fail(outcome, (2, 3), *words, stage="logits", mismatches=1)
    assert outcome.verdict.stages["settings"] == 1


@pair({1: "second_choice_at_the_last_step"})
def test_another_token_from_equal_logits_is_the_sampler(outcome: Outcome) -> None:
    words = ("sampler: logits equal through step 3, token differs there", "sample s06")
    expect_fail(outcome, 2, *words, stage="sampler", mismatches=1, broken="tokens")
    cells = outcome.verdict.arms["current"]
    assert (cells["logits"]["exact"], cells["tokens"]["exact"]) == (10, 9)


@pair({1: "second_choice_at_step_1"})
def test_logits_after_another_token_follow_from_it_and_are_not_broken_first(
    outcome: Outcome,
) -> None:
    words = ("sampler: logits equal through step 1, token differs there",)
    expect_fail(outcome, 2, *words, stage="sampler", mismatches=1, broken="tokens")


@pair({1: "stops_at_step_1"})
def test_one_replay_that_stops_at_step_1_is_the_stop_rule(outcome: Outcome) -> None:
    words = ("stop rule: strict prefix",)
    expect_fail(outcome, 2, *words, stage="sampler", mismatches=RECORDS - 3, broken="tokens")
    assert outcome.verdict.power is not None
    assert outcome.verdict.power["ended_at_step_1"] == 3


@pair({0: "stops_at_step_1", 1: "stops_at_step_1"})
def test_two_replays_that_stop_at_step_1_are_a_pass_that_says_so(outcome: Outcome) -> None:
    expect_pass(outcome)
    power = outcome.verdict.power
    assert power is not None
    assert (power["ended_at_step_1"], power["share_ended_at_step_1"]) == (RECORDS, 1.0)
    assert "every record ended at step 1" in power["notes"]


@pair({1: "other_random_state"})
def test_another_random_state_alone_is_a_pass(outcome: Outcome) -> None:
    expect_pass(outcome)


@pair({0: "constant_output", 1: "constant_output"})
def test_constant_outputs_are_a_pass_with_low_power(outcome: Outcome) -> None:
    expect_pass(outcome, "one distinct output", low=True)
    assert samples(outcome.verdict) == []
