"""``demo:tiny-qwen2-vl-bf16`` and ``-awq``: a Qwen2-VL small enough for every test.

A vision tower of ``blocks``, the merger that projects its patches, and a language model of
``layers``; tensors bear the names of the model itself. In ``-awq`` the linears of the language
model are packed and the vision tower is not. Knows what is Qwen2-VL's own; sizes and scales of the
language model are those of :mod:`fleet.replay.demo.tiny`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleet.replay.demo import awq, picture_tokenizer, tiny, writing
from fleet.replay.demo.parameters import Parameter

if TYPE_CHECKING:
    import torch

Report = Callable[[str], None]

WIDTH, VISION_HEADS, RATIO = 64, 4, 4
PATCH, MERGE, FRAMES = 14, 2, 2
SIDE = 224
"""Every image is resized to about this many pixels squared: 64 tokens for a square one."""

EXPONENTS: Mapping[str, int] = {
    **tiny.EXPONENTS,
    "patch_embed.proj": -4,
    "qkv": -3,
    "attn.proj": -3,
    "fc1": -3,
    "fc2": -3,
    "mlp.0": -3,
    "mlp.2": -3,
    "bias": -2,
}

UNPACKED = {"modules_to_not_convert": ["lm_head", "visual"]}
"""What a packed checkpoint declares to be as it was."""

PARAMETERS: Mapping[str, Parameter] = {
    "layers": Parameter(default=2, least=1, most=32),
    "blocks": Parameter(default=2, least=1, most=32),
}


@dataclass(frozen=True)
class Size:
    """What a name may choose: layers of the language model, blocks of the vision tower."""

    layers: int
    blocks: int


def build_bf16(folder: Path, report: Report, size: Size) -> None:
    """Fill the empty ``folder`` with the bfloat16 checkpoint."""
    report(f"making demo:tiny-qwen2-vl-bf16, layers={size.layers}, blocks={size.blocks}")
    _write(folder, _tensors(size), _config(size))


def build_awq(folder: Path, report: Report, size: Size) -> None:
    """The same model, the linears of its language model packed to 4 bits."""
    report(f"making demo:tiny-qwen2-vl-awq, layers={size.layers}, blocks={size.blocks}")
    config = _config(size) | {"quantization_config": awq.quantization_config() | UNPACKED}
    _write(folder, awq.pack_checkpoint(_tensors(size)), config)


def vision_shapes(blocks: int, width: int, ratio: int, hidden: int) -> tiny.Shapes:
    """Every tensor of the vision tower and of the merger that projects to ``hidden``."""
    inner, merged = ratio * width, MERGE * MERGE * width
    found: tiny.Shapes = {"model.visual.patch_embed.proj.weight": (width, 3, FRAMES, PATCH, PATCH)}
    for block in (f"model.visual.blocks.{number}" for number in range(blocks)):
        found |= _affine(f"{block}.attn.qkv", 3 * width, width)
        found |= _affine(f"{block}.attn.proj", width, width)
        found |= _affine(f"{block}.mlp.fc1", inner, width)
        found |= _affine(f"{block}.mlp.fc2", width, inner)
        for norm in (f"{block}.norm1", f"{block}.norm2"):
            found |= {f"{norm}.weight": (width,), f"{norm}.bias": (width,)}
    found |= {f"model.visual.merger.ln_q.{part}": (width,) for part in ("weight", "bias")}
    found |= _affine("model.visual.merger.mlp.0", merged, merged)
    return found | _affine("model.visual.merger.mlp.2", hidden, merged)


def exponent(name: str, exponents: Mapping[str, int] = EXPONENTS) -> int | None:
    """The scale of a tensor by the end of its name; None for the weight of a norm."""
    module, _, kind = name.rpartition(".")
    if kind == "bias":
        return exponents["bias"]
    if module.endswith(("norm", "norm1", "norm2", "ln_q")):
        return None
    return next(value for end, value in exponents.items() if module.endswith(end))


def config_json(text: Mapping[str, Any], vision: Mapping[str, Any]) -> dict[str, Any]:
    """Content of config.json around the two parts' own."""
    words = picture_tokenizer.QWEN
    start, end = (words.index(word) for word in picture_tokenizer.QWEN_VISION)
    return {
        "architectures": ["Qwen2VLForConditionalGeneration"],
        "model_type": "qwen2_vl",
        "text_config": {"model_type": "qwen2_vl_text", "bos_token_id": None, **text, **token_ids()},
        "vision_config": {
            "model_type": "qwen2_vl_vision",
            "hidden_act": "quick_gelu",
            "in_channels": 3,
            "patch_size": PATCH,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": FRAMES,
            **vision,
        },
        "image_token_id": words.index(picture_tokenizer.QWEN_IMAGE),
        "video_token_id": words.index(picture_tokenizer.QWEN_VIDEO),
        "vision_start_token_id": start,
        "vision_end_token_id": end,
        "tie_word_embeddings": False,
        **token_ids(),
        "dtype": "bfloat16",
    }


def token_ids() -> dict[str, int]:
    """Where an answer ends, and what fills a row."""
    words = picture_tokenizer.QWEN
    return {
        "eos_token_id": words.index(picture_tokenizer.QWEN_END),
        "pad_token_id": words.index(picture_tokenizer.QWEN_PAD),
    }


def write_processor(folder: Path, context: int) -> None:
    """Tokenizer, chat template, and how images become pixels."""
    end, pad = picture_tokenizer.QWEN_END, picture_tokenizer.QWEN_PAD
    tokenizer = picture_tokenizer.byte_tokenizer_json(picture_tokenizer.QWEN, None)
    config = picture_tokenizer.byte_tokenizer_config(end, pad, None, context)
    writing.write_json(folder / "tokenizer.json", tokenizer)
    writing.write_json(folder / "tokenizer_config.json", config)
    writing.write_text(folder / "chat_template.jinja", picture_tokenizer.QWEN_TEMPLATE)
    writing.write_json(folder / "preprocessor_config.json", _preprocessor())


def _preprocessor() -> dict[str, Any]:
    """Qwen2-VL's own, but for the one size that images are resized to."""
    return {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen2VLProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"shortest_edge": SIDE * SIDE, "longest_edge": SIDE * SIDE},
        "resample": 3,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
        "patch_size": PATCH,
        "temporal_patch_size": FRAMES,
        "merge_size": MERGE,
    }


def _tensors(size: Size) -> dict[str, torch.Tensor]:
    text = tiny.decoder_shapes(tiny.dense_mlp, size.layers, picture_tokenizer.VOCABULARY)
    shapes = {name.replace("model.", "model.language_model.", 1): s for name, s in text.items()}
    for layer in (f"model.language_model.layers.{number}" for number in range(size.layers)):
        for name in ("q_proj", "k_proj", "v_proj"):
            rows = shapes[f"{layer}.self_attn.{name}.weight"][0]
            shapes[f"{layer}.self_attn.{name}.bias"] = (rows,)
    shapes |= vision_shapes(size.blocks, WIDTH, RATIO, tiny.HIDDEN)
    shapes["lm_head.weight"] = (picture_tokenizer.VOCABULARY, tiny.HIDDEN)
    return {
        name: tiny.drawn(f"tiny-qwen2-vl/{name}", s, exponent(name)) for name, s in shapes.items()
    }


def _affine(name: str, outputs: int, inputs: int) -> tiny.Shapes:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def _config(size: Size) -> dict[str, Any]:
    sections = [tiny.HEAD_SIZE // 8, 3 * tiny.HEAD_SIZE // 16, 3 * tiny.HEAD_SIZE // 16]
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": sections}
    text = {
        "vocab_size": picture_tokenizer.VOCABULARY,
        "hidden_size": tiny.HIDDEN,
        "intermediate_size": tiny.INTERMEDIATE,
        "num_hidden_layers": size.layers,
        "num_attention_heads": tiny.HEADS,
        "num_key_value_heads": tiny.KV_HEADS,
        "hidden_act": "silu",
        "max_position_embeddings": tiny.CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_parameters": rope,
        "use_cache": True,
    }
    vision = {
        "depth": size.blocks,
        "embed_dim": WIDTH,
        "hidden_size": tiny.HIDDEN,
        "num_heads": VISION_HEADS,
        "mlp_ratio": RATIO,
    }
    return config_json(text, vision)


def _write(folder: Path, tensors: Mapping[str, torch.Tensor], config: Mapping[str, Any]) -> None:
    writing.write_tensors(folder, tensors)
    writing.write_json(folder / "config.json", config)
    write_processor(folder, tiny.CONTEXT)
