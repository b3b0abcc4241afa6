"""What is stored and differs: weights, buffers, caches. A kernel that only reads it is accused of
nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.cases.tracing.faults import changed_at, faults, noise, racy_linear, rewritten
from tests.cases.tracing.harness import Fault, Subject, at_step, nothing
from tests.cases.tracing.state_faults import (
    changed_buffer,
    changed_buffer_at,
    flipped_cache_at,
    flipped_weight,
    flipped_weight_at,
    permuted_weight,
)

Subjects = Callable[[str], Subject]

UP = "model.layers.1.self_attn.v_proj"


def test_a_bit_flipped_after_loading_is_a_weight(subject: Subject) -> None:
    study = subject.study(nothing, flipped_weight(f"{UP}.weight"))
    culprit = study.culprit
    assert (culprit.kind, culprit.path, culprit.tensor) == ("weights", UP, f"{UP}.weight")
    assert culprit.classes == ((0,), (1,)) and culprit.survives_to_logits
    assert study.found.target is None


def test_a_bit_flipped_during_the_run_is_a_weight_at_that_step(subject: Subject) -> None:
    culprit = subject.study(nothing, flipped_weight_at(f"{UP}.weight", 3)).culprit
    assert (culprit.kind, culprit.path, culprit.tensor) == ("weights", UP, f"{UP}.weight")
    assert culprit.step == 3


def test_a_bias_flipped_during_the_run_is_a_weight(subjects: Subjects) -> None:
    culprit = subjects("qwen2").study(nothing, flipped_weight_at(f"{UP}.bias", 2)).culprit
    assert (culprit.kind, culprit.tensor, culprit.step) == ("weights", f"{UP}.bias", 2)


def test_a_weight_that_functional_code_reads_is_a_weight_too(subjects: Subjects) -> None:
    """The experts' matrices belong to a module that calls another one between them."""
    path = "model.layers.0.mlp.experts"

    def flip_all(model: nn.Module) -> None:
        def act(_: Any) -> None:
            model.get_parameter(f"{path}.down_proj").mul_(-1)

        at_step(model, 3, act)

    culprit = subjects("moe").study(nothing, flip_all).culprit
    assert (culprit.kind, culprit.path) == ("weights", path)
    assert (culprit.tensor, culprit.step) == (f"{path}.down_proj", 3)


@pytest.mark.parametrize("fault", [flipped_weight, lambda name: flipped_weight_at(name, 3)])
def test_a_flipped_bit_of_tied_weights_names_an_owner(
    subjects: Subjects, fault: Callable[[str], Fault]
) -> None:
    qwen2 = subjects("qwen2")
    head = "lm_head.weight"
    assert qwen2.model.get_parameter(head) is qwen2.model.get_parameter("model.embed_tokens.weight")
    culprit = qwen2.study(nothing, fault(head)).culprit
    assert culprit.kind == "weights"
    assert (culprit.path, culprit.tensor) in (
        ("lm_head", head),
        ("model.embed_tokens", "model.embed_tokens.weight"),
    )


def test_a_repack_that_differs_is_a_weight_at_load(subject: Subject) -> None:
    culprit = subject.study(nothing, permuted_weight(f"{UP}.weight")).culprit
    assert (culprit.kind, culprit.path, culprit.tensor) == ("weights", UP, f"{UP}.weight")


def test_a_race_is_not_excused_by_a_weight_that_both_replays_change(llama: Subject) -> None:
    fault = faults([racy_linear(UP), flipped_weight_at(f"{UP}.weight", 1)])
    culprit = llama.study(fault, fault).culprit
    assert (culprit.kind, culprit.path) == ("race", UP)


def test_a_race_in_one_replay_is_not_excused_by_a_weight_that_both_change(llama: Subject) -> None:
    both = flipped_weight_at(f"{UP}.weight", 1)
    study = llama.study(both, faults([both, changed_at(UP, 3, noise)]))
    assert (study.culprit.kind, study.culprit.path, study.culprit.step) == ("race", UP, 3)
    assert any("weights changed while a replay ran" in words for words in study.found.not_localised)


def test_a_buffer_that_differs_from_the_start_counts_as_weights(subject: Subject) -> None:
    culprit = subject.study(nothing, changed_buffer("model.rotary_emb.inv_freq")).culprit
    assert (culprit.kind, culprit.path) == ("weights", "model.rotary_emb")
    assert culprit.classes == ((0,), (1,))


def test_a_buffer_that_changes_during_the_run_counts_as_weights(subject: Subject) -> None:
    culprit = subject.study(nothing, changed_buffer_at("model.rotary_emb.inv_freq", 3)).culprit
    assert (culprit.kind, culprit.path, culprit.step) == ("weights", "model.rotary_emb", 3)


def test_a_tensor_that_every_replay_writes_accuses_nobody(llama: Subject) -> None:
    """Code between modules leaves a number of chance with a module that only keeps it."""

    def forward(self: Any, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        self.mlp.seen = noise(hidden_states)
        return type(self).forward(self, hidden_states, *args, **kwargs)

    fault = rewritten("model.layers.0", forward)
    study = llama.study(fault, fault)
    assert study.found.differs and study.found.culprit is None
    assert any("replays write to it" in words for words in study.found.not_localised)


@pytest.mark.parametrize("layer", [0, 1])
def test_a_flipped_bit_of_a_cache_names_its_first_reader(subject: Subject, layer: int) -> None:
    study = subject.study(nothing, flipped_cache_at(layer, 3))
    culprit = study.culprit
    assert (culprit.kind, culprit.step) == ("cache", 3)
    assert culprit.path == f"model.layers.{layer}.self_attn"
    assert study.found.target is None


def test_flipped_bits_in_every_layer_of_a_cache_name_no_reader(llama: Subject) -> None:
    culprit = llama.study(nothing, faults([flipped_cache_at(i, 3) for i in (0, 1)])).culprit
    assert (culprit.kind, culprit.path, culprit.step) == ("cache", None, 3)
