"""More than two replays: who agrees, who departs, where."""

from __future__ import annotations

import torch

from fleet.judge.tracing.culprit import Localisation
from fleet.judge.tracing.localise import localise
from tests.cases.tracing.faults import changed, changed_at
from tests.cases.tracing.harness import PROMPT, Fault, Subject, nothing
from tests.cases.tracing.state_faults import flipped_weight

PATH = "model.layers.0.self_attn.k_proj"


def seven(subject: Subject, fault: Fault) -> Localisation:
    """Seven replays, number 4 with a fault."""
    return localise([subject.replay(fault) if i == 4 else subject.clean() for i in range(7)])


def test_of_seven_replays_the_fourth_alone_departs(subject: Subject) -> None:
    found = seven(subject, changed_at(PATH, 3, torch.neg))
    assert [(d.classes, d.call.step, d.call.path) for d in found.departures] == [
        (((0, 1, 2, 3, 5, 6), (4,)), 3, PATH)
    ]
    assert found.culprit is not None
    assert (found.culprit.path, found.culprit.step) == (PATH, 3)
    assert found.culprit.classes == ((0, 1, 2, 3, 5, 6), (4,))
    assert found.culprit.survives_to_logits


def test_two_replays_that_depart_elsewhere_are_told_apart(llama: Subject) -> None:
    later = "model.layers.1.self_attn.o_proj"
    faults = [
        nothing, changed_at(later, 4, torch.neg), nothing, changed_at(PATH, 2, torch.neg), nothing,
    ]  # fmt: skip
    found = localise([llama.replay(fault) for fault in faults])
    assert [(d.classes, d.call.step, d.call.path) for d in found.departures] == [
        (((0, 1, 2, 4), (3,)), 2, PATH),
        (((0, 2, 4), (1,)), 4, later),
    ]


def test_what_healed_in_one_replay_does_not_survive_because_another_differs(
    llama: Subject,
) -> None:
    """Replay 1 differs at a place that the next module forgets, replay 2 for good."""

    def forgets(model: torch.nn.Module) -> None:
        changed("model.layers.0.self_attn.o_proj", torch.zeros_like)(model)

    def heals(model: torch.nn.Module) -> None:
        forgets(model)
        changed_at("model.layers.0.self_attn.q_proj", 1, torch.neg)(model)

    def lasts(model: torch.nn.Module) -> None:
        forgets(model)
        changed_at("lm_head", 4, torch.neg)(model)

    found = localise([llama.replay(fault) for fault in (forgets, heals, lasts)])
    assert [(d.call.path, d.healed, d.lasting) for d in found.departures] == [
        ("model.layers.0.self_attn.q_proj", (1,), ()),
        ("lm_head", (), (2,)),
    ]
    assert found.culprit is not None and found.culprit.path == "lm_head"


def test_one_flipped_weight_of_seven_is_classed_at_load(llama: Subject) -> None:
    fault = flipped_weight(f"{PATH}.weight")
    found = seven(llama, fault)
    assert found.culprit is not None
    assert (found.culprit.kind, found.culprit.classes) == ("weights", ((0, 1, 2, 3, 5, 6), (4,)))


def test_every_batch_is_compared_from_its_beginning(llama: Subject) -> None:
    prompts = (PROMPT, PROMPT[:6], PROMPT[3:])
    fault = changed_at("lm_head", 7, torch.neg)
    found = localise([llama.clean(prompts=prompts), llama.replay(fault, prompts=prompts)])
    assert [d.group for d in found.departures] == [("arm", 1)]
    assert found.culprit is not None
    assert (found.culprit.batch, found.culprit.step, found.culprit.sample_ids) == (1, 1, ("s1",))
