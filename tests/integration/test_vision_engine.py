"""Vision-language models: what is fed to them is what was digested, and what they make of it is
what the model makes by itself."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from PIL import Image

from fleet.contract.canonical import sha256, to_text
from fleet.errors import AttemptVoid, CheckpointError, ContractError, DatasetError
from fleet.evidence.digests import ids_bytes
from fleet.replay.engines import pictures
from fleet.replay.engines.causal import CausalEngine
from fleet.replay.engines.logits import step_of
from fleet.replay.engines.protocol import Prepared
from fleet.replay.engines.registry import make_engine
from fleet.replay.trace.digesting import TensorDigests
from fleet.replay.trace.tracer import Tracer
from tests.integration.engine_cases import NOW, contract, load, not_in_force, one_by_one

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("settings_in_force"),
    pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning"),
]

Demo = Callable[[str], Path]
DATASETS = Path(__file__).parents[2] / "configs" / "datasets"
QWEN, LLAVA, AWQ = "tiny-qwen2-vl-bf16", "tiny-llava-bf16", "tiny-qwen2-vl-awq"
FAMILIES = (QWEN, LLAVA, AWQ)
K_PROJ = "model.language_model.layers.0.self_attn.k_proj"
"""The incident's own name for it."""


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Three records and their images, to be changed."""
    lines = (DATASETS / "shapes-24.jsonl").read_text().splitlines()[:3]
    (tmp_path / "shapes-191").mkdir()
    for line in lines:
        name = json.loads(line)["images"][0]["file"]
        shutil.copy(DATASETS / name, tmp_path / name)
    (tmp_path / "three.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path / "three.jsonl"


def records(dataset: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in dataset.read_text().splitlines()]


def tables(name: str, **model: Any) -> dict[str, dict[str, Any]]:
    own = {"checkpoint": f"demo:{name}", "kind": "vision", "processor": "slow"} | model
    arms = {"current": {"template": "{{ question }}", "parser": "letter", "chat": True}}
    found: dict[str, dict[str, Any]] = {"model": own, "arms": arms}
    if name == AWQ:
        own["engine"] = "gptqmodel"
        found["quantization"] = {
            "method": "awq", "bits": 4, "group_size": 64, "backend": "awq_torch"
        }  # fmt: skip
    return found


def made(name: str, folder: Path, dataset: Path, **changes: Any) -> CausalEngine:
    rule = tables(name)
    rule |= {key: rule.get(key, {}) | table for key, table in changes.items()}
    engine = make_engine(contract(**rule), folder, dataset)
    assert isinstance(engine, CausalEngine)
    return engine


def prepared(engine: CausalEngine, dataset: Path) -> list[Prepared]:
    asked = records(dataset)
    prompts = [f"{each['question']} {each['choices']}" for each in asked]
    return engine.prepare("current", asked, prompts, NOW)


def processor(engine: CausalEngine) -> Any:
    assert engine._pictures is not None
    return engine._pictures._processor


def own_inputs(engine: CausalEngine, dataset: Path, samples: list[Prepared]) -> Any:
    """The processor called as its users call it, for all samples at once."""
    by_id = {each["id"]: each for each in records(dataset)}
    files = [dataset.parent / by_id[p.sample_id]["images"][0]["file"] for p in samples]
    own = processor(engine)
    own.tokenizer.padding_side = "left"
    return own(
        text=[p.prompt_text for p in samples],
        images=[Image.open(file) for file in files],
        padding=True,
        return_tensors="pt",
        add_special_tokens=False,
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_generates_what_its_model_generates_alone(
    name: str, demo: Demo, dataset: Path
) -> None:
    folder = demo(name)
    engine = made(name, folder, dataset)
    samples = prepared(engine, dataset)
    census = load(engine, folder)
    assert (census.unmapped, census.altered, census.missing) == ([], [], [])
    assert all(path.startswith("model.language_model.layers.") for path in census.kernels)
    assert len(census.kernels) == (14 if name == AWQ else 0)
    every = one_by_one(engine, samples)
    steps = engine.decode_steps()
    assert (steps["unclear"], steps["uncached"]) == (0, 0)
    for sample, mine in zip(samples, every, strict=True):
        given = own_inputs(engine, dataset, [sample])
        assert tuple(given["input_ids"][0].tolist()) == sample.prompt_ids
        with torch.inference_mode():
            theirs = engine.model().generate(**given, do_sample=False, max_new_tokens=6)  # type: ignore[operator]
            logits = engine.model()(**given).logits[0, -1]
        assert tuple(theirs[0, len(sample.prompt_ids) :].tolist()) == mine.token_ids
        assert step_of(logits).logits_sha256 == mine.steps[0].logits_sha256
        assert logits.dtype == torch.bfloat16
    assert not_in_force(engine) == []
    assert {t.dtype for n, t in engine.model().named_parameters() if "vis" in n} == {torch.bfloat16}


@pytest.mark.parametrize("name", [QWEN, LLAVA])
def test_a_padded_batch_of_images_is_what_the_processor_would_pad(
    name: str, demo: Demo, dataset: Path
) -> None:
    engine = made(name, demo(name), dataset, decoding={"batch_size": 3})
    samples = prepared(engine, dataset)
    assert len({len(p.prompt_ids) for p in samples}) == 3
    load(engine, demo(name))
    mine = engine.generate(samples)
    with torch.inference_mode():
        given = own_inputs(engine, dataset, samples)
        theirs = engine.model().generate(**given, do_sample=False, max_new_tokens=6)  # type: ignore[operator]
    width = given["input_ids"].shape[1]
    assert [m.token_ids for m in mine] == [tuple(row[width:].tolist()) for row in theirs]
    assert len({m.token_ids for m in mine}) == 3


def test_an_answer_depends_on_the_image(demo: Demo, dataset: Path) -> None:
    engine = made(QWEN, demo(QWEN), dataset)
    asked = [each | {"id": f"x{n}"} for n, each in enumerate(records(dataset))]
    samples = engine.prepare("current", asked, ["What is it?"] * 3, NOW)
    assert len({p.prompt_ids for p in samples}) == 1
    load(engine, demo(QWEN))
    first = {one.steps[0].logits_sha256 for one in one_by_one(engine, samples)}
    assert len(first) == 3


def test_evidence_names_file_pixels_processor_and_versions(demo: Demo, dataset: Path) -> None:
    engine = made(QWEN, demo(QWEN), dataset)
    sample = prepared(engine, dataset)[0]
    evidence = sample.images
    assert evidence is not None
    file = dataset.parent / records(dataset)[0]["images"][0]["file"]
    (picture,) = evidence.pictures
    assert picture.sha256 == sha256(file.read_bytes()).hex()
    assert (picture.mode, picture.width, picture.height) == ("RGB", 160, 160)
    assert evidence.outputs["pixel_values"].shape == (256, 1176)
    assert evidence.outputs["image_grid_thw"].shape == (1, 3)
    assert evidence.places["mm_token_type_ids"].shape == (1, len(sample.prompt_ids))
    assert evidence.processor["class"] == "Qwen2VLImageProcessorPil"
    assert f"transformers {transformers.__version__}" in evidence.processor["version"]
    load(engine, demo(QWEN))
    facts = engine.settings().effective
    assert facts["processor.backend"] == "pil"
    assert facts["processor.class"] == "Qwen2VLProcessor"
    assert facts["model.attention_of_parts"] == ["sdpa"]


def test_no_pixel_is_held_between_preparing_and_running(demo: Demo, dataset: Path) -> None:
    engine = made(QWEN, demo(QWEN), dataset)
    samples = prepared(engine, dataset)
    assert engine._pictures is not None
    held = [engine._pictures.__dict__, *(vars(p) for p in samples)]
    assert not any(isinstance(v, torch.Tensor) for each in held for v in each.values())
    again = prepared(engine, dataset)
    assert all(a is b for a, b in zip(samples, again, strict=True))


# What contradicts the contract, or cannot be read


def test_an_image_that_changed_before_its_batch_is_void(demo: Demo, dataset: Path) -> None:
    engine = made(QWEN, demo(QWEN), dataset)
    samples = prepared(engine, dataset)
    load(engine, demo(QWEN))
    file = dataset.parent / records(dataset)[0]["images"][0]["file"]
    shutil.copy(dataset.parent / records(dataset)[1]["images"][0]["file"], file)
    with pytest.raises(AttemptVoid) as caught:
        engine.generate(samples[:1])
    assert caught.value.code == "pinned-content-changed"
    assert "s001" in str(caught.value)


def test_a_processor_that_gives_other_pixels_the_second_time_is_void(
    demo: Demo, dataset: Path
) -> None:
    engine = made(QWEN, demo(QWEN), dataset)
    samples = prepared(engine, dataset)
    load(engine, demo(QWEN))
    processor(engine).image_processor.rescale_factor = 1 / 256
    with pytest.raises(AttemptVoid) as caught:
        engine.generate(samples[:1])
    assert caught.value.code == "inputs-changed"


def test_a_fast_processor_that_resolves_slow_is_void(
    demo: Demo, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers falls back without an error: requested is not effective."""
    load_any = transformers.AutoImageProcessor.from_pretrained

    def without_torchvision(folder: Any, **kwargs: Any) -> Any:
        return load_any(folder, **kwargs | {"backend": "pil"})

    monkeypatch.setattr(transformers.AutoImageProcessor, "from_pretrained", without_torchvision)
    engine = made(QWEN, demo(QWEN), dataset, model={"processor": "fast"})
    with pytest.raises(AttemptVoid) as caught:
        prepared(engine, dataset)
    assert caught.value.code == "setting-not-in-force"
    assert "contract 'fast' (torchvision), in force Qwen2VLImageProcessorPil (pil)" in str(
        caught.value
    )


def test_a_torchvision_that_cannot_be_imported_is_said_plainly(
    demo: Demo, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr(transformers.AutoImageProcessor, "from_pretrained", broken)
    with pytest.raises(pictures.CannotRunError, match=r"contract: model\.processor"):
        made(QWEN, demo(QWEN), dataset, model={"processor": "fast"})


def test_a_prompt_without_a_place_for_its_image_is_refused(demo: Demo, dataset: Path) -> None:
    plain = {"current": {"template": "{{ question }}", "parser": "letter", "chat": False}}
    engine = made(QWEN, demo(QWEN), dataset, arms=plain)
    with pytest.raises(ContractError) as caught:
        prepared(engine, dataset)
    assert caught.value.key == "arms.current.template"
    assert "1 times <|image_pad|>" in caught.value.expected
    with pytest.raises(ContractError, match="2 times in the prompt"):
        engine.prepare("current", records(dataset)[:1], ["<|image_pad|>" * 2], NOW)
    places = engine.prepare("current", records(dataset)[:1], ["<|image_pad|> What?"], NOW)
    assert places[0].prompt_ids.count(5) == 64


def test_a_broken_image_is_named_before_any_weight(demo: Demo, dataset: Path) -> None:
    asked = records(dataset)
    asked[1]["images"][0]["sha256"] = to_text(sha256(b"half"))
    (dataset.parent / asked[1]["images"][0]["file"]).write_bytes(b"half")
    engine = made(QWEN, demo(QWEN), dataset)
    with pytest.raises(DatasetError, match="record s002: images"):
        engine.prepare("current", asked, ["?"] * 3, NOW)


def test_a_text_checkpoint_has_no_processor(demo: Demo, dataset: Path) -> None:
    with pytest.raises(CheckpointError, match="a vision-language model"):
        made("tiny-llama-bf16", demo("tiny-llama-bf16"), dataset)


def test_ids_and_mask_stay_evidence_of_their_own(demo: Demo, dataset: Path) -> None:
    engine = made(QWEN, demo(QWEN), dataset)
    sample = prepared(engine, dataset)[0]
    assert sample.images is not None
    assert not {"input_ids", "attention_mask"} & {*sample.images.outputs, *sample.images.places}
    assert len(ids_bytes(sample.prompt_ids)) == 8 * len(sample.attention_mask)


# The trace


def traced(engine: CausalEngine, samples: list[Prepared]) -> list[Any]:
    calls: list[Any] = []
    tracer = Tracer(engine.model(), (), calls.append, "prefill", TensorDigests())
    tracer.attach()
    tracer.start_batch("current", 0, [p.sample_id for p in samples])
    engine.generate(samples)
    tracer.end_batch()
    tracer.detach()
    return calls


def test_a_trace_sees_every_module_of_tower_merger_and_language_model(
    demo: Demo, dataset: Path
) -> None:
    """As many modules as the incident's trace had, under the names that it had."""
    name = f"{QWEN}?layers=14&blocks=13"
    engine = made(QWEN, demo(name), dataset)
    samples = prepared(engine, dataset)
    load(engine, demo(name))
    calls = traced(engine, samples[:1])
    paths = {call.path for call in calls}
    assert len(paths) >= 316
    assert {
        K_PROJ,
        "model.visual",
        "model.visual.blocks.12.attn.qkv",
        "model.visual.merger",
    } <= paths
    assert all(call.in_sha256 for call in calls)
    own = {path for path, _ in engine.model().named_modules()}
    assert own - paths == {"model.language_model.layers", "model.visual.blocks"}  # lists


def test_pixels_are_inputs_of_the_traced_calls(demo: Demo, dataset: Path) -> None:
    engine = made(LLAVA, demo(LLAVA), dataset)
    samples = engine.prepare("current", records(dataset), ["What is it?"] * 3, NOW)
    load(engine, demo(LLAVA))
    roots = [
        {call.path: call.in_sha256 for call in traced(engine, [sample])} for sample in samples[:2]
    ]
    again = {call.path: call.in_sha256 for call in traced(engine, samples[:1])}
    assert again == roots[0]
    assert samples[0].prompt_ids == samples[1].prompt_ids
    differ = {path for path in roots[0] if roots[0][path] != roots[1][path]}
    assert {"", "model", "model.vision_tower", "model.multi_modal_projector", K_PROJ} <= differ
