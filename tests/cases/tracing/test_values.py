"""Differences that norms, comparisons of values and logits do not show."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from fleet.judge.bounds import record_bound
from fleet.judge.tracing.localise import localise
from tests.cases.tracing.faults import changed, changed_at, faults, noise, racy_linear
from tests.cases.tracing.harness import Subject

PATH = "model.layers.1.self_attn.o_proj"
NAN, OTHER_NAN = 0x7FC1, 0x7FC2


def equal_norms(y: torch.Tensor, order: Sequence[int] = (0, 1)) -> torch.Tensor:
    """Two columns of one norm, in this order."""
    y[..., 1] = -y[..., 0]
    y[..., [0, 1]] = y[..., list(order)].clone()
    return y


def permuted(y: torch.Tensor) -> torch.Tensor:
    return equal_norms(y, (1, 0))


def nan(y: torch.Tensor) -> torch.Tensor:
    y.view(torch.int16)[..., 0] = NAN
    return y


def other_nan(y: torch.Tensor) -> torch.Tensor:
    y.view(torch.int16)[..., 0] = OTHER_NAN
    return y


def zero(y: torch.Tensor) -> torch.Tensor:
    y[..., 0] = 0.0
    return y


def minus_zero(y: torch.Tensor) -> torch.Tensor:
    y[..., 0] = -0.0
    return y


PAIRS = {
    "two columns of one norm": (equal_norms, permuted),
    "a NaN of other bits": (nan, other_nan),
    "a zero of other sign": (zero, minus_zero),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_what_a_norm_does_not_see_is_named(subject: Subject, pair: str) -> None:
    both = [changed(PATH, change) for change in PAIRS[pair]]
    culprit = subject.study(*both, repeats=10).culprit
    assert (culprit.path, culprit.kind) == (PATH, "undecided")
    assert (culprit.unique, culprit.repeats, culprit.bound) == (1, 20, record_bound(20))
    # What follows forgets the sign of a zero and the bits of a NaN.
    assert culprit.survives_to_logits == (pair == "two columns of one norm")


@pytest.mark.parametrize("change", [nan, minus_zero])
def test_equal_bits_are_equal_whatever_a_comparison_of_values_says(
    llama: Subject, change: object
) -> None:
    """NaN is unequal to itself."""
    fault = changed(PATH, change)  # type: ignore[arg-type]
    assert not localise([llama.replay(fault), llama.replay(fault)]).differs


def test_a_race_that_is_multiplied_away_is_named_and_does_not_survive(subject: Subject) -> None:
    """Queries differ, and nothing of attention gets past its last module."""
    q = "model.layers.1.self_attn.q_proj"
    fault = faults([racy_linear(q), changed(PATH, torch.zeros_like)])
    study = subject.study(fault, fault)
    culprit = study.culprit
    assert (culprit.kind, culprit.path) == ("race", q)
    assert not culprit.survives_to_logits
    assert all(d.lasting == () for d in study.found.departures)


def test_a_race_that_stays_in_the_cache_is_named_and_does_not_survive(llama: Subject) -> None:
    v = "model.layers.1.self_attn.v_proj"
    fault = faults([racy_linear(v), changed(PATH, torch.zeros_like)])
    culprit = llama.study(fault, fault).culprit
    assert (culprit.kind, culprit.path, culprit.survives_to_logits) == ("race", v, False)


def test_a_difference_that_heals_does_not_hide_the_one_that_reaches_the_logits(
    subject: Subject,
) -> None:
    q = "model.layers.0.self_attn.q_proj"
    healing = [racy_linear(q), changed("model.layers.0.self_attn.o_proj", torch.zeros_like)]
    fault = faults([*healing, changed_at(PATH, 3, noise)])
    study = subject.study(fault, fault)
    culprit = study.culprit
    assert (culprit.kind, culprit.path, culprit.step) == ("race", PATH, 3)
    assert culprit.survives_to_logits
    assert study.found.departures[0].call.path == q
    assert q in {entry["path"] for entry in study.found.also}
