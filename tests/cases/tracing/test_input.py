"""The model's own input differs: no module is accused of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from fleet.judge.tracing.localise import localise
from tests.cases.tracing.harness import PROMPT, Subject, at_step, nothing

OTHERS = {
    "one id": (*PROMPT[:4], 99, *PROMPT[5:]),
    "another prompt": tuple(range(40, 40 + len(PROMPT))),
    "a longer prompt": tuple(range(5, 20)),
    "a shorter prompt": PROMPT[:5],
    "a single id": (7,),
}


@pytest.mark.parametrize("other", OTHERS)
def test_another_prompt_accuses_no_module(subject: Subject, other: str) -> None:
    found = localise([subject.clean(), subject.replay(prompts=(OTHERS[other],))])
    assert found.culprit is not None and found.target is None
    assert (found.culprit.kind, found.culprit.path, found.culprit.step) == ("input", None, 0)
    assert found.culprit.class_name == "" and found.culprit.survives_to_logits


def test_another_token_after_equal_logits_is_an_input_of_that_step(subject: Subject) -> None:
    """As if the sampler had taken another token."""

    def other_token(kwargs: Mapping[str, Any]) -> None:
        kwargs["input_ids"].add_(1)

    culprit = subject.study(nothing, lambda model: at_step(model, 3, other_token)).culprit
    assert (culprit.kind, culprit.path, culprit.step) == ("input", None, 3)
    assert "all logits before it agree" in culprit.words


def test_only_the_batch_whose_input_differs_departs(llama: Subject) -> None:
    other = OTHERS["one id"]
    found = localise([llama.clean(prompts=(PROMPT, PROMPT)), llama.replay(prompts=(PROMPT, other))])
    assert [d.group for d in found.departures] == [("arm", 1)]
    assert found.culprit is not None and (found.culprit.kind, found.culprit.batch) == ("input", 1)


@pytest.mark.parametrize("order", ["3", "5"])
def test_a_step_after_untraced_ones_is_not_localised(llama: Subject, order: str) -> None:
    other = llama.replay(prompts=(OTHERS["one id"],), order=order)
    found = localise([llama.clean(order=order), other])
    assert found.differs and found.culprit is None and found.target is None
    assert any("no step before it is traced" in words for words in found.not_localised)
