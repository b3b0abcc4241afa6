"""The transformers engine on a small bf16 model: equal bits twice, and every fault is seen."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fleet.errors import AttemptFailed, AttemptVoid, CheckpointError, ContractError
from fleet.replay import determinism
from fleet.replay.checkpoint_tensors import tensor_digests
from fleet.replay.engines.cached_steps import HANDED_AS
from fleet.replay.engines.logits import steps_of
from fleet.replay.engines.transformers import TransformersEngine
from fleet.replay.engines.weights import tensors_of
from fleet.replay.host_digest import host_digest
from fleet.replay.tensor_digests import Shared
from tests.integration.engine_cases import (
    NOW,
    contract,
    edit,
    load,
    not_in_force,
    one_by_one,
    prepared,
)
from tests.unit.test_device_digest_jobs import CPU, FakeDriver, opened

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("settings_in_force")]

Demo = Callable[[str], Path]
Q_PROJ = "model.layers.0.self_attn.q_proj"


@pytest.fixture
def folder(demo: Demo) -> Path:
    return demo("tiny-llama-bf16")


def engine_of(folder: Path, **changes: dict) -> TransformersEngine:
    engine = TransformersEngine(contract(**changes), folder)
    load(engine, folder)
    return engine


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_two_engines_give_the_same_bits(folder: Path, dtype: str) -> None:
    runs = []
    for _ in range(2):
        engine = engine_of(folder, model={"dtype": dtype})
        runs.append((engine.weights(), engine.rng(), one_by_one(engine, prepared(engine))))
    assert runs[0] == runs[1]
    assert len({g.token_ids for g in runs[0][2]}) > 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_every_tensor_maps_to_the_checkpoint_in_any_dtype(folder: Path, dtype: str) -> None:
    census = load(TransformersEngine(contract(model={"dtype": dtype}), folder), folder)
    assert (census.unmapped, census.altered, census.missing, census.off_device) == ([], [], [], [])
    assert all(name.endswith("inv_freq") for name in census.computed)
    assert (census.training, census.requires_grad) == ([], [])
    assert census.classes["Linear"] == 15


@pytest.mark.parametrize("name", ["tiny-qwen2-bf16", "tiny-moe-bf16"])
def test_the_other_families_map_to_their_checkpoint_and_repeat(demo: Demo, name: str) -> None:
    runs = []
    for _ in range(2):
        engine = TransformersEngine(contract(), demo(name))
        census = load(engine, demo(name))
        assert (census.unmapped, census.altered, census.missing) == ([], [], [])
        assert (census.repacked, census.off_device) == ([], [])
        assert all(name.endswith("inv_freq") for name in census.computed)
        runs.append(one_by_one(engine, prepared(engine)))
        assert not_in_force(engine) == []
    assert runs[0] == runs[1]
    assert len({g.token_ids for g in runs[0]}) == len(runs[0])
    assert {step.nonfinite for g in runs[0] for step in g.steps} == {0}


def test_the_output_head_of_qwen2_is_its_embeddings_and_its_biases_count(demo: Demo) -> None:
    folder = demo("tiny-qwen2-bf16")
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    engine = engine_of(folder)
    places = {name: tensor.data_ptr() for name, tensor in tensors_of(engine.model()).items()}
    assert places["lm_head.weight"] == places["model.embed_tokens.weight"]
    sample = prepared(engine)[:1]
    for kind in "qkv":
        before = engine.generate(sample)
        engine.model().get_submodule(f"model.layers.0.self_attn.{kind}_proj").bias.zero_()
        assert engine.generate(sample) != before


def test_every_expert_of_the_mixture_is_asked_two_per_token(demo: Demo) -> None:
    engine = engine_of(demo("tiny-moe-bf16"))
    samples = prepared(engine)
    for layer in (0, 1):
        asked: list[torch.Tensor] = []
        router = engine.model().get_submodule(f"model.layers.{layer}.mlp.gate")
        with router.register_forward_hook(lambda _, __, out, asked=asked: asked.append(out[2])):
            one_by_one(engine, samples)
        assert {choice.shape[-1] for choice in asked} == {2}
        assert set(torch.cat(asked).unique().tolist()) == {0, 1, 2, 3}


def test_one_changed_expert_is_altered(demo: Demo) -> None:
    name = "model.layers.1.mlp.experts.down_proj"

    class Careless(TransformersEngine):
        def _load_model(self):
            model, missing = super()._load_model()
            model.get_parameter(name).data[3].neg_()
            return model, missing

    folder = demo("tiny-moe-bf16")
    assert load(Careless(contract(), folder), folder).altered == [name]


def test_all_settings_are_in_force_before_and_after_generation(folder: Path) -> None:
    engine = engine_of(folder)
    assert not_in_force(engine) == []
    one_by_one(engine, prepared(engine))
    assert not_in_force(engine) == []
    settings = engine.settings()
    assert settings.effective["decoding.processors"] == []
    assert settings.effective["decoding.stop"] == [
        {"class": "MaxLengthCriteria", "max_new_tokens": 6},
        {"class": "EosTokenCriteria", "eos_token_id": [1]},
    ]
    json.dumps(settings.effective, allow_nan=False)


def test_a_setting_changed_behind_our_back_is_seen(folder: Path) -> None:
    engine = engine_of(folder)
    torch.set_num_threads(2)
    torch.backends.cuda.enable_flash_sdp(True)
    torch.backends.cuda.matmul.allow_tf32 = True
    assert not_in_force(engine) == [
        "torch.num_threads",
        "torch.sdpa_kernels",
        "fp32_precision.cuda.matmul",
    ]


def test_step_logits_are_the_last_position_of_a_plain_forward(folder: Path) -> None:
    engine = engine_of(folder)
    sample = prepared(engine)[2]
    first, second = engine.generate([sample])[0].steps[:2]
    token = first.top_ids[0]
    with torch.inference_mode():
        alone = engine.model()(torch.tensor([sample.prompt_ids])).logits[0, -1, :]
    assert alone.dtype == torch.bfloat16
    assert first.logits_sha256 == host_digest(alone)
    assert first == steps_of(alone[None])[0]
    assert engine.generate([sample])[0].token_ids[0] == token
    assert second.logits_sha256 != first.logits_sha256


def test_a_device_that_digests_gives_the_same_weights_and_steps(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = engine_of(folder)
    same = wanted.weights()
    driver = FakeDriver()
    shared = Shared(opened(driver), "device")
    monkeypatch.setattr("fleet.replay.tensor_digests._OPENED", {CPU: shared})
    here = engine_of(folder)
    assert here.weights() == same
    weighed = len(driver.launches)
    samples = prepared(here)
    made = here.generate(samples)
    num_launches = len(driver.launches)
    monkeypatch.undo()
    assert made == wanted.generate(samples)
    assert 0 < weighed < num_launches


@pytest.mark.parametrize("use_cache", [True, False])
def test_steps_with_a_key_value_cache_and_without_one_are_told_apart(
    folder: Path, use_cache: bool
) -> None:
    engine = engine_of(folder, decoding={"use_cache": use_cache, "batch_size": 2})
    samples = prepared(engine)
    made = [engine.generate(samples[:3]), engine.generate(samples[3:])]
    steps = sum(max(len(g.steps) for g in batch) - 1 for batch in made)
    there, absent = ("cached", "uncached") if use_cache else ("uncached", "cached")
    assert engine.decode_steps() == {there: steps, absent: 0, "unclear": 0}
    assert steps > 1
    assert not_in_force(engine) == []


def test_a_cache_that_is_not_handed_on_is_no_cache(folder: Path) -> None:
    """Asked for and read back, and the model is given everything again."""
    engine = engine_of(folder)
    model = engine.model()
    model.register_forward_pre_hook(
        lambda _, args, kwargs: (args, {k: v for k, v in kwargs.items() if k not in HANDED_AS}),
        with_kwargs=True,
    )
    engine.generate(prepared(engine)[:1])
    found = engine.decode_steps()
    assert not_in_force(engine) == []
    assert found["cached"] == 0
    assert found["unclear"] + found["uncached"] > 0


def test_a_batch_is_padded_and_its_rows_are_complete(folder: Path) -> None:
    engine = engine_of(folder, decoding={"batch_size": 4})
    samples = prepared(engine)
    assert len({len(s.prompt_ids) for s in samples}) == 4
    for generation in engine.generate(samples):
        assert len(generation.steps) == len(generation.token_ids) == 6
        assert generation.stop == "length"


def test_a_row_ends_with_its_first_stop_token_and_the_others_go_on(folder: Path) -> None:
    plain = engine_of(folder)
    samples = prepared(plain)[1:3]
    free = plain.generate(samples)
    stop = free[0].token_ids[2]
    assert stop not in free[1].token_ids
    rule = {"batch_size": 2, "stop_token_ids": [stop]}
    engine = engine_of(folder, decoding=rule)
    short, full = engine.generate(samples)
    assert short.token_ids == free[0].token_ids[: free[0].token_ids.index(stop) + 1]
    assert (short.stop, len(short.steps)) == ("eos", len(short.token_ids))
    assert (full.stop, full.token_ids) == ("length", free[1].token_ids)
    assert not_in_force(engine) == []


def test_the_top_8_begin_with_the_greedy_token(folder: Path) -> None:
    engine = engine_of(folder)
    for generation in one_by_one(engine, prepared(engine)):
        assert tuple(s.top_ids[0] for s in generation.steps) == generation.token_ids
        assert all(len(s.top_ids) == len(s.top_bits) == 8 for s in generation.steps)
        assert all(s.margin_ulps >= 0 and s.nonfinite == 0 for s in generation.steps)


def test_a_generation_config_never_fills_a_gap_and_is_named(folder: Path, edited: Path) -> None:
    asked = {"repetition_penalty": 1.3, "do_sample": True, "eos_token_id": [1, 7], "top_k": 3}
    (edited / "generation_config.json").write_text(json.dumps(asked))
    plain, engine = engine_of(folder), engine_of(edited)
    samples = prepared(plain)
    assert one_by_one(engine, samples) == one_by_one(plain, samples)
    assert not_in_force(engine) == []
    assert [w.split(",")[0] for w in engine.warnings()] == [
        "generation_config.json asks for do_sample True",
        "generation_config.json asks for repetition_penalty 1.3",
        "generation_config.json asks for eos_token_id [1",
    ]
    assert plain.warnings() == []


def test_a_processor_from_nowhere_is_an_undeclared_decoding_rule(folder: Path) -> None:
    engine = engine_of(folder)
    engine.model().generation_config.suppress_tokens = [5]
    one_by_one(engine, prepared(engine)[:1])
    assert not_in_force(engine) == ["decoding.processors", "decoding.generation_config"]


def test_declared_sampling_is_what_was_in_force(folder: Path) -> None:
    rule = {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.9}
    engine = engine_of(folder, decoding=rule | {"repetition_penalty": 1.1})
    samples = prepared(engine)
    before = engine.rng()
    first = one_by_one(engine, samples)
    assert engine.rng() != before
    assert not_in_force(engine) == []
    determinism.seed_all(0)
    assert engine.rng() == before
    assert one_by_one(engine, samples) == first


def test_a_tensor_that_the_checkpoint_lacks_is_unmapped(edited: Path) -> None:
    edit(edited, lambda tensors: tensors.pop(f"{Q_PROJ}.weight"))
    census = load(TransformersEngine(contract(), edited), edited)
    assert census.unmapped == [f"{Q_PROJ}.weight"]


def test_a_tensor_of_another_shape_is_a_load_error(edited: Path) -> None:
    small = torch.ones(3, dtype=torch.bfloat16)
    edit(edited, lambda tensors: tensors.update({"model.norm.weight": small}))
    with pytest.raises(AttemptFailed, match="load-error"):
        load(TransformersEngine(contract(), edited), edited)


def test_a_tensor_that_nothing_loads_is_missing(edited: Path) -> None:
    extra = "model.layers.0.self_attn.extra.weight"
    edit(edited, lambda tensors: tensors.update({extra: torch.ones(3)}))
    assert load(TransformersEngine(contract(), edited), edited).missing == [extra]


def test_a_tensor_initialised_again_after_loading_is_altered(folder: Path) -> None:
    class Forgetful(TransformersEngine):
        def _load_model(self):
            model, missing = super()._load_model()
            torch.nn.init.normal_(model.get_submodule(Q_PROJ).weight)
            return model, missing

    assert load(Forgetful(contract(), folder), folder).altered == [f"{Q_PROJ}.weight"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_weights_that_changed_on_disk_before_they_were_loaded_are_not_the_pinned_ones(
    edited: Path, dtype: str
) -> None:
    pinned = tensor_digests(edited)
    edit(edited, lambda tensors: tensors["model.norm.weight"].add_(1))
    engine = TransformersEngine(contract(model={"dtype": dtype}), edited)
    if dtype == "bfloat16":
        assert engine.load(pinned).altered == ["model.norm.weight"]
    else:  # compared after a cast, which the bytes on disk are needed for
        with pytest.raises(AttemptVoid, match=r"model\.norm\.weight: not the pinned one"):
            engine.load(pinned)


def test_a_tensor_that_came_to_the_disk_after_the_pin_is_no_pinned_one(edited: Path) -> None:
    pinned = tensor_digests(edited)
    edit(edited, lambda tensors: tensors.update(extra=torch.ones(3)))
    with pytest.raises(AttemptVoid, match="checkpoint tensor extra: not the pinned one"):
        TransformersEngine(contract(), edited).load(pinned)


def test_one_flipped_weight_bit_changes_the_weights_digest(folder: Path) -> None:
    engine = engine_of(folder)
    before = engine.weights()
    bits = engine.model().get_submodule(Q_PROJ).weight.view(torch.int16)
    bits[0, 0] ^= 1
    assert engine.weights() != before
    bits[0, 0] ^= 1
    assert engine.weights() == before


def test_the_racy_control_differs_from_itself_and_the_ordered_one_does_not(folder: Path) -> None:
    digests = {}
    for kind in ("racy_linear", "ordered_linear"):
        engine = engine_of(folder, control={"inject": f"{kind}:{Q_PROJ}"})
        sample = prepared(engine)[:1]
        runs = [engine.generate(sample)[0].steps[0].logits_sha256 for _ in range(20)]
        digests[kind] = len(set(runs))
    assert digests["racy_linear"] > 1
    assert digests["ordered_linear"] == 1


def test_a_control_that_names_no_linear_names_the_near_ones(folder: Path) -> None:
    engine = TransformersEngine(
        contract(control={"inject": "racy_linear:model.layers.0.self_attn.q_prj"}), folder
    )
    with pytest.raises(ContractError, match=r"for example: .*layers\.0\.self_attn\.q_proj"):
        load(engine, folder)


def test_a_chat_arm_needs_a_chat_template(folder: Path) -> None:
    arms = {"current": {"template": "x", "parser": "letter"}}
    engine = TransformersEngine(contract(arms=arms), folder)
    with pytest.raises(ContractError, match=r"arms\.current\.chat"):
        prepared(engine)


def test_a_chat_template_reads_the_frozen_clock_only(edited: Path) -> None:
    each = "{% for m in messages %}{{ m.role }}:{{ m.content }}|{% endfor %}"
    template = "{{ strftime_now('%Y') }}|" + each
    (edited / "chat_template.jinja").write_text(template)
    arms = {"current": {"template": "x", "parser": "letter", "system": "be brief"}}
    engine = TransformersEngine(contract(arms=arms), edited)
    texts = [
        engine.prepare("current", [{"id": "a"}], ["hi"], now)[0].prompt_text
        for now in (NOW, datetime(1999, 5, 5, tzinfo=UTC))
    ]
    assert texts == ["2026|system:be brief|user:hi|", "1999|system:be brief|user:hi|"]


def test_a_prompt_without_tokens_ends_the_attempt(edited: Path) -> None:
    (edited / "chat_template.jinja").write_text("{{ '' }}")
    arms = {"current": {"template": "x", "parser": "letter"}}
    engine = TransformersEngine(contract(arms=arms), edited)
    with pytest.raises(AttemptVoid, match="no token at all"):
        prepared(engine)


def test_a_quantised_checkpoint_is_refused_by_this_engine(demo: Demo) -> None:
    with pytest.raises(ContractError, match="gptqmodel"):
        TransformersEngine(contract(), demo("tiny-llama-awq"))


def test_a_folder_without_a_tokenizer_is_one_clear_message(edited: Path) -> None:
    (edited / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        TransformersEngine(contract(), edited)
