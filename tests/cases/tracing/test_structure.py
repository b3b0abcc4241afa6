"""Replays that call other modules than each other, and modules that are called past their hooks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fleet.judge.tracing.localise import localise
from tests.cases.tracing.faults import changed, decoder_layer, racy_sum, rewritten
from tests.cases.tracing.harness import Fault, Subject, nothing

LAYER = "model.layers.1"
NORM = f"{LAYER}.post_attention_layernorm"


def skips(layer: Any, x: torch.Tensor) -> torch.Tensor:
    return x


def calls_twice(layer: Any, x: torch.Tensor) -> torch.Tensor:
    layer.post_attention_layernorm(x)
    return layer.post_attention_layernorm(x)


def calls_past_hooks(layer: Any, x: torch.Tensor) -> torch.Tensor:
    return layer.post_attention_layernorm.forward(x)


def layer_that(normed: Any) -> Fault:
    return rewritten(LAYER, decoder_layer(normed=normed))


def test_a_skipped_module_is_structure_at_its_path(subject: Subject) -> None:
    study = subject.study(nothing, layer_that(skips))
    culprit = study.culprit
    assert (culprit.kind, culprit.path, culprit.step) == ("structure", NORM, 0)
    assert "is not seen" in culprit.words and "replays 1" in culprit.words
    assert culprit.survives_to_logits and study.found.target is None


def test_who_comes_first_does_not_change_which_module_is_named(llama: Subject) -> None:
    culprit = llama.study(layer_that(skips), nothing).culprit
    assert (culprit.kind, culprit.path) == ("structure", NORM)


def test_a_module_called_twice_is_structure_at_its_second_call(subject: Subject) -> None:
    culprit = subject.study(nothing, layer_that(calls_twice)).culprit
    assert (culprit.kind, culprit.path, culprit.occurrence) == ("structure", NORM, 1)
    assert "call 2, is called once more in replays 1" in culprit.words
    assert not culprit.survives_to_logits


@pytest.mark.parametrize("order", [(nothing, calls_past_hooks), (calls_past_hooks, nothing)])
def test_a_call_past_the_hooks_in_one_replay_is_structure(
    subject: Subject, order: tuple[Any, Any]
) -> None:
    pair = [nothing if how is nothing else layer_that(how) for how in order]
    culprit = subject.study(*pair).culprit
    assert (culprit.kind, culprit.path) == ("structure", NORM)
    assert not culprit.survives_to_logits


def test_a_race_past_the_hooks_is_a_gap_that_names_the_silent_module(subject: Subject) -> None:
    def fault(model: Any) -> None:
        changed(NORM, racy_sum)(model)
        layer_that(calls_past_hooks)(model)

    culprit = subject.study(fault, fault).culprit
    assert (culprit.kind, culprit.path) == ("gap", LAYER)
    assert culprit.gap == {"after": "self_attn", "before": "mlp"}
    assert "no hook saw in this call: post_attention_layernorm" in culprit.words


def test_a_replay_that_ends_early_accuses_no_module(llama: Subject) -> None:
    found = localise([llama.replay(steps=4), llama.replay(steps=6)])
    assert found.culprit is not None
    assert (found.culprit.kind, found.culprit.path) == ("structure", None)
    assert "replays 1 go on" in found.culprit.words


def test_a_replay_that_stops_early_is_the_one_that_ends(llama: Subject) -> None:
    found = localise([llama.replay(), llama.replay(), llama.replay(steps=4)])
    assert found.culprit is not None and found.culprit.path is None
    assert "replays 2 end here" in found.culprit.words
