"""Which layer a set of differing stages names."""

from __future__ import annotations

import pytest

from fleet.judge.stages import ORDER, STAGES, earliest, layer_words, localise


def test_stages_stand_in_data_flow_order() -> None:
    assert [s.name for s in STAGES] == sorted(ORDER, key=lambda name: ORDER[name])


@pytest.mark.parametrize(
    ("stage", "layer"),
    [
        ("sample", 4),
        ("raw_record", 1),
        ("prompt", 1),
        ("prompt_ids", 1),
        ("attention_mask", 1),
        ("checkpoint", 2),
        ("post_init_weights", 3),
        ("settings", 2),
        ("platform", 5),
        ("sampler", 2),
        ("output", 4),
        ("parser", 4),
        ("end_weights", 5),
    ],
)
def test_a_stage_alone_names_its_layer(stage: str, layer: int) -> None:
    assert localise([stage]) == (layer, (layer,))


def test_logits_alone_are_two_or_three_and_not_localised() -> None:
    assert localise(["logits"]) == (None, (2, 3))
    assert layer_words(None, (2, 3)) == "2 or 3, not localised"


def test_the_earliest_stage_names_the_layer() -> None:
    assert localise(["parser", "logits", "prompt"]) == (1, (1,))


def test_a_harmless_setting_does_not_outrank_logits() -> None:
    assert localise(["settings", "logits"]) == (None, (2, 3))
    assert earliest(["settings", "logits"]) == "logits"


def test_a_setting_beside_a_sampler_fault_is_the_same_layer() -> None:
    assert localise(["settings", "sampler"]) == (2, (2,))


def test_a_setting_before_a_parser_fault_is_one_more_candidate() -> None:
    assert localise(["settings", "parser"]) == (None, (2, 4))


def test_a_setting_cannot_explain_an_input() -> None:
    assert localise(["settings", "prompt_ids"]) == (1, (1,))


def test_a_checkpoint_that_differs_explains_the_weights_after_it() -> None:
    assert localise(["checkpoint", "post_init_weights", "logits"]) == (2, (2,))


def test_nothing_that_differs_names_nothing() -> None:
    assert localise([]) == (None, ())
    assert layer_words(None, ()) == "not localised"
