"""The required negative: replays without a fault never part, and nobody is accused."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from fleet.judge.tracing.localise import localise
from tests.cases.tracing.conftest import CHECKPOINTS
from tests.cases.tracing.harness import PROMPT, Subject, target_of

SETS = 20


@pytest.mark.parametrize("number", range(SETS))
def test_clean_replays_never_part(subjects: Callable[[str], Subject], number: int) -> None:
    draw = random.Random(number)
    subject = subjects(draw.choice(list(CHECKPOINTS)))
    prompts = [
        [draw.randrange(3, 512) for _ in range(draw.randrange(1, 24))]
        for _ in range(draw.randrange(1, 3))
    ]
    replays = [
        subject.replay(prompts=prompts, steps=3) for _ in range(draw.choice((2, 2, 2, 3, 5)))
    ]
    found = localise(replays)
    assert found.departures == () and found.culprit is None and found.target is None
    assert not found.differs and found.also == () and found.not_localised == ()
    assert {word for word, n in found.counts.items() if n} == {"SAME->SAME"}
    for one in found.coverage:
        assert one["fired"] == one["expected"] and one["silent"] == []
        assert one["unknown"] == one["partly_unhashed"] == one["never_returned"] == 0


@pytest.mark.parametrize(
    "path",
    ["", "model.layers.1", "model.layers.0.self_attn", "model.rotary_emb"],
)
def test_a_clean_call_repeats_to_the_bit_and_leaves_the_run_as_it_was(
    subject: Subject, path: str
) -> None:
    plain = subject.clean(steps=4)
    call = next(c for c in plain.calls if (c.path, c.step) == (path, 2))
    repeated = subject.replay(steps=4, target=target_of(call), repeats=5)
    assert [(r["repeats"], r["unique"], r["trouble"]) for r in repeated.repeats] == [(5, 1, "")]
    assert repeated.repeats[0]["first"] is None and repeated.repeats[0]["executed_sha256"]
    assert not localise([plain, repeated]).differs


def test_one_trace_alone_is_no_comparison(llama: Subject) -> None:
    with pytest.raises(ValueError, match="takes two traces"):
        localise([llama.replay(prompts=(PROMPT[:2],), steps=1)])
