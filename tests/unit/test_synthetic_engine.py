"""The synthetic engine: equal bits everywhere, through the same protocol as a real engine."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from typing import Any

import pytest

from fleet.contract.load import load_contract
from fleet.contract.model import Contract
from fleet.errors import ContractError
from fleet.evidence.digests import tensor_digest
from fleet.replay.engines.protocol import Generation
from fleet.replay.engines.synthetic import BOS, EOS, SyntheticEngine, observe
from tests.campaigns import CONTRACT, ORDERED, RACY, write_contract

NOW = datetime(2026, 1, 1, tzinfo=UTC)
GOLDEN = ["f5949c43a58eea07", "136a074c45caa342"]
"""First digits of the logits digests of "What is 1?", step by step, on every machine."""


def engine(text: str = CONTRACT, **decoding: Any) -> SyntheticEngine:
    raw = tomllib.loads(text)
    raw.pop("schema")
    raw["decoding"] |= decoding
    return SyntheticEngine(Contract.model_validate(raw))


def generated(made: SyntheticEngine, prompts: list[str]) -> list[Generation]:
    records = [{"id": str(i)} for i in range(len(prompts))]
    return made.generate(made.prepare("current", records, prompts, NOW))


def test_bits_are_a_function_of_the_prompt_alone() -> None:
    one, two = engine(), engine()
    random.seed(1)
    first = generated(one, ["What is 1?", "What is 2?"])
    random.seed(2)
    assert generated(two, ["What is 1?", "What is 2?"]) == first
    assert generated(two, ["What is 2?"]) == first[1:]
    assert first[0] != first[1]


def test_the_first_logits_are_the_golden_ones() -> None:
    (made,) = generated(engine(), ["What is 1?"])
    assert [step.logits_sha256.hex()[:16] for step in made.steps] == GOLDEN
    assert len(made.token_ids) == len(made.steps)


def test_generation_ends_with_the_first_eos_or_at_the_limit() -> None:
    made = generated(engine(max_new_tokens=4), [f"question {i}" for i in range(20)])
    for g in made:
        assert (g.stop == "eos") == (g.token_ids[-1] == EOS)
        assert EOS not in g.token_ids[:-1] and BOS not in g.token_ids
        assert g.stop == "eos" or len(g.token_ids) == 4
    assert {g.stop for g in made} == {"eos", "length"}


def test_the_racy_twin_never_repeats_itself_and_the_ordered_one_does() -> None:
    racy, ordered = engine(CONTRACT + RACY), engine(CONTRACT + ORDERED)
    one, two = generated(racy, ["x"]), generated(racy, ["x"])
    assert one[0].steps[0].logits_sha256 != two[0].steps[0].logits_sha256
    assert generated(ordered, ["x"]) == generated(engine(), ["x"])


def test_a_step_shows_the_largest_logits_with_ties_by_lower_id() -> None:
    step = observe([1.0, 3.0, -2.0, 3.0, 0.5, 0.25, 0.0, -1.0, 2.0, -0.0])
    assert step.top_ids == (1, 3, 8, 0, 4, 5, 6, 9)
    assert (step.margin_logits, step.margin_ulps) == (0.0, 0)
    assert step.top_bits[0] == struct.unpack("<I", struct.pack("<f", 3.0))[0]
    packed = struct.pack("<10f", 1.0, 3.0, -2.0, 3.0, 0.5, 0.25, 0.0, -1.0, 2.0, -0.0)
    assert step.logits_sha256 == tensor_digest("float32", (10,), packed)


@pytest.mark.parametrize(
    ("a", "b", "ulps"),
    [(2.0, 1.0, 2**23), (1.0 + 2**-23, 1.0, 1), (-1.0, -2.0, 2**23), (2**-149, -(2**-149), 2)],
)
def test_a_margin_in_units_of_the_last_place_grows_with_the_value(
    a: float, b: float, ulps: int
) -> None:
    assert observe([a, b]).margin_ulps == ulps


def test_settings_are_read_back_and_a_hash_seed_that_is_not_in_force_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = engine()
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    settings = made.settings()
    assert all(settings.effective[key] == wanted for key, wanted in settings.required.items())
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    assert made.settings().effective["python_hash_seed"] == "1"


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('dtype = "float32"', 'dtype = "bfloat16"', "model.dtype"),
        ("do_sample = false", "do_sample = true\ntemperature = 1.0\ntop_k = 5\ntop_p = 1.0",
         "decoding.do_sample"),
        ('engine = "synthetic"', 'engine = "transformers"', "model.engine"),
        ('"demo:synthetic"', '"demo:tiny-llama"', "model.engine"),
    ],
)  # fmt: skip
def test_what_the_engine_cannot_do_is_refused_with_the_contract(
    tmp_path: Any, old: str, new: str, key: str
) -> None:
    path = write_contract(tmp_path, "wrong", CONTRACT.replace(old, new))
    with pytest.raises(ContractError) as raised:
        load_contract(str(path), [tmp_path])
    assert (raised.value.where, raised.value.key) == (str(path), key)


def test_a_synthetic_replay_needs_no_torch() -> None:
    program = (
        "import sys, fleet.replay.run, fleet.replay.engines.synthetic;"
        "print([m for m in ('torch', 'ray', 'duckdb', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
