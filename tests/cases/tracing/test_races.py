"""Races: proven by repeats of one frozen input in one process, and placed where they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fleet.judge.bounds import record_bound
from tests.cases.tracing.faults import (
    changed,
    changed_at,
    changed_sometimes,
    decoder_layer,
    faults,
    noise,
    racy_attention,
    racy_linear,
    racy_rotary,
    racy_sum,
    rewritten,
)
from tests.cases.tracing.harness import Subject

O_PROJ = "model.layers.1.self_attn.o_proj"


def test_a_racy_linear_is_a_race_at_its_own_path(subject: Subject) -> None:
    culprit = subject.study(racy_linear(O_PROJ), racy_linear(O_PROJ)).culprit
    assert (culprit.kind, culprit.path) == ("race", O_PROJ)
    assert culprit.unique > 1 and culprit.survives_to_logits and culprit.bound is None
    assert culprit.ancestors[0] == "model.layers.1.self_attn"


def test_unrepeated_it_is_not_yet_called_a_race(llama: Subject) -> None:
    culprit = llama.study(racy_linear(O_PROJ), racy_linear(O_PROJ), repeats=0).culprit
    assert (culprit.kind, culprit.path, culprit.repeats) == ("undecided", O_PROJ, 0)


def test_looking_inside_a_race_names_its_operation_and_line(llama: Subject) -> None:
    culprit = llama.study(racy_linear(O_PROJ), racy_linear(O_PROJ), repeats=5, zoom=True).culprit
    assert culprit.zoom is not None and culprit.zoom["name"] == "aten.add.Tensor"
    assert "in forward: total = total + products[index]" in culprit.zoom["where"]


def test_a_racy_head_is_named_although_nothing_runs_after_it(subject: Subject) -> None:
    culprit = subject.study(racy_linear("lm_head"), racy_linear("lm_head")).culprit
    assert (culprit.kind, culprit.path, culprit.survives_to_logits) == ("race", "lm_head", True)


def test_a_racy_attention_function_is_a_gap_before_o_proj(subject: Subject) -> None:
    fault = racy_attention("model.layers.1.self_attn")
    culprit = subject.study(fault, fault).culprit
    assert (culprit.kind, culprit.path) == ("gap", "model.layers.1.self_attn")
    assert culprit.gap == {"after": "v_proj", "before": "o_proj"}
    assert culprit.unique > 1 and culprit.survives_to_logits


def test_a_racy_rotary_application_is_a_gap_before_o_proj(subject: Subject) -> None:
    fault = racy_rotary("model.layers.0.self_attn")
    culprit = subject.study(fault, fault).culprit
    assert (culprit.kind, culprit.path) == ("gap", "model.layers.0.self_attn")
    assert culprit.gap == {"after": "v_proj", "before": "o_proj"}
    assert culprit.unique > 1


def test_a_racy_first_sum_is_a_gap_between_attention_and_norm(subject: Subject) -> None:
    fault = rewritten("model.layers.0", decoder_layer(first=racy_sum))
    culprit = subject.study(fault, fault).culprit
    assert (culprit.kind, culprit.path) == ("gap", "model.layers.0")
    assert culprit.gap == {"after": "self_attn", "before": "post_attention_layernorm"}
    assert culprit.unique > 1


def test_a_racy_last_sum_is_a_gap_before_the_layer_ends(subject: Subject) -> None:
    fault = rewritten("model.layers.0", decoder_layer(second=racy_sum))
    culprit = subject.study(fault, fault).culprit
    assert (culprit.kind, culprit.path) == ("gap", "model.layers.0")
    assert culprit.gap == {"after": "mlp", "before": "its end"}
    assert culprit.unique > 1


def test_two_racy_gaps_of_one_layer_never_prove_each_other(llama: Subject) -> None:
    fault = rewritten("model.layers.0", decoder_layer(racy_sum, racy_sum))
    culprit = llama.study(fault, fault).culprit
    assert (culprit.kind, culprit.path) == ("gap", "model.layers.0")
    if culprit.gap == {"after": "mlp", "before": "its end"}:
        assert culprit.unique == 0 and "part first at" in culprit.words
    else:
        assert culprit.unique > 1


def test_code_that_writes_into_a_clean_output_accuses_no_module(subject: Subject) -> None:
    def normed(layer: Any, x: torch.Tensor) -> torch.Tensor:
        scaled = layer.post_attention_layernorm(x)
        return scaled.copy_(racy_sum(scaled))

    fault = rewritten("model.layers.1", decoder_layer(normed=normed))
    culprit = subject.study(fault, fault).culprit
    assert (culprit.kind, culprit.path) == ("gap", "model.layers.1")
    assert culprit.gap == {"after": "post_attention_layernorm", "before": "mlp"}


def test_a_module_that_writes_into_its_argument_is_a_race_itself(subject: Subject) -> None:
    """What it returns is the same every time."""
    path = "model.layers.1.post_attention_layernorm"

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        scaled: torch.Tensor = type(self).forward(self, x)
        x.copy_(racy_sum(x))
        return scaled

    culprit = subject.study(rewritten(path, forward), rewritten(path, forward)).culprit
    assert (culprit.kind, culprit.path) == ("race", path)
    assert culprit.unique > 1 and culprit.survives_to_logits


def test_a_racy_expert_mixture_is_a_gap_inside_the_experts(
    subjects: Callable[[str], Subject],
) -> None:
    path = "model.layers.0.mlp.experts"
    culprit = subjects("moe").study(changed(path, racy_sum), changed(path, racy_sum)).culprit
    assert (culprit.kind, culprit.path) == ("gap", path)
    assert culprit.gap == {"after": "act_fn", "before": "its end"}
    assert culprit.unique > 1


def test_a_rare_race_is_placed_and_called_a_race_or_bounded(llama: Subject) -> None:
    """A pair of 60 steps shows nothing with probability 0.99 ** 120 = 0.3; 14 pairs in a row show
    nothing with probability 5e-8."""
    path = "model.layers.0.self_attn.v_proj"
    fault = changed_sometimes(path, 100, noise)
    pairs = (llama.study(fault, fault, steps=60, repeats=100) for _ in range(14))
    study = next(s for s in pairs if s.found.differs)
    assert study.culprit.path == path
    if study.culprit.kind == "race":
        assert study.culprit.unique > 1
    else:
        assert study.culprit.kind == "undecided"
        assert study.culprit.bound == record_bound(100)


def test_a_fault_of_one_decode_step_is_placed_at_that_step(subject: Subject) -> None:
    fault = changed_at(O_PROJ, 5, noise)
    culprit = subject.study(fault, fault).culprit
    assert (culprit.kind, culprit.path, culprit.step) == ("race", O_PROJ, 5)


def test_of_two_parallel_races_one_is_named_and_the_other_listed(subject: Subject) -> None:
    q, v = (f"model.layers.0.self_attn.{name}_proj" for name in "qv")
    fault = faults([changed(q, noise), changed(v, noise)])
    study = subject.study(fault, fault)
    assert study.culprit.kind == "race" and study.culprit.path in (q, v)
    others = {q, v} - {study.culprit.path}
    assert others <= {str(entry["path"]) for entry in study.found.also}


def test_of_races_in_two_layers_the_first_is_named(subject: Subject) -> None:
    deep, early = O_PROJ, "model.layers.0.self_attn.k_proj"
    fault = faults([racy_linear(deep), changed(early, noise)])
    culprit = subject.study(fault, fault).culprit
    assert (culprit.kind, culprit.path) == ("race", early)
