"""``demo:tiny-llava-bf16``: a LLaVA of a small CLIP tower, a projector and a small Llama.

Tensors bear the names that LLaVA's checkpoints have on disk; transformers gives them other ones
when it loads them. Knows what is LLaVA's own; the language model is that of
:mod:`fleet.replay.demo.tiny`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleet.replay.demo import picture_tokenizer, tiny, writing

if TYPE_CHECKING:
    import torch

WIDTH, INNER, BLOCKS, VISION_HEADS, PATCH, SIDE = 64, 128, 3, 4, 14, 112
TOKENS = (SIDE // PATCH) ** 2

TOWER, PROJECTOR = "vision_tower.vision_model", "multi_modal_projector"

EXPONENTS: Mapping[str, int] = {
    **tiny.EXPONENTS,
    "out_proj": -3,
    "fc1": -3,
    "fc2": -3,
    "patch_embedding": -4,
    "position_embedding": -3,
    "class_embedding": -3,
    "linear_1": -3,
    "linear_2": -3,
    "bias": -2,
}


def build_bf16(folder: Path, report: Callable[[str], None]) -> None:
    """Fill the empty ``folder`` with the bfloat16 checkpoint."""
    report("making demo:tiny-llava-bf16")
    writing.write_tensors(folder, _tensors())
    writing.write_json(folder / "config.json", _config())
    _write_processor(folder)


def _tensors() -> dict[str, torch.Tensor]:
    shapes = _tower() | _affine(f"{PROJECTOR}.linear_1", tiny.HIDDEN, WIDTH)
    shapes |= _affine(f"{PROJECTOR}.linear_2", tiny.HIDDEN, tiny.HIDDEN)
    text = tiny.decoder_shapes(tiny.dense_mlp, vocabulary=picture_tokenizer.VOCABULARY)
    shapes |= {f"language_model.{name}": shape for name, shape in text.items()}
    shapes["language_model.lm_head.weight"] = (picture_tokenizer.VOCABULARY, tiny.HIDDEN)
    return {
        name: tiny.drawn(f"tiny-llava/{name}", s, _exponent(name)) for name, s in shapes.items()
    }


def _exponent(name: str) -> int | None:
    """None for the weight of a norm; CLIP has a norm called ``pre_layrnorm``."""
    kind = name.removesuffix(".weight").rpartition(".")[2]
    is_norm = any(word in kind for word in ("norm", "layrnorm"))
    return None if is_norm else EXPONENTS[kind]


def _tower() -> tiny.Shapes:
    found: tiny.Shapes = {
        f"{TOWER}.embeddings.class_embedding": (WIDTH,),
        f"{TOWER}.embeddings.patch_embedding.weight": (WIDTH, 3, PATCH, PATCH),
        f"{TOWER}.embeddings.position_embedding.weight": (TOKENS + 1, WIDTH),
    }
    for block in (f"{TOWER}.encoder.layers.{number}" for number in range(BLOCKS)):
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            found |= _affine(f"{block}.self_attn.{name}", WIDTH, WIDTH)
        found |= _affine(f"{block}.mlp.fc1", INNER, WIDTH) | _affine(
            f"{block}.mlp.fc2", WIDTH, INNER
        )
        found |= _norm(f"{block}.layer_norm1") | _norm(f"{block}.layer_norm2")
    return found | _norm(f"{TOWER}.pre_layrnorm") | _norm(f"{TOWER}.post_layernorm")


def _affine(name: str, outputs: int, inputs: int) -> tiny.Shapes:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def _norm(name: str) -> tiny.Shapes:
    return {f"{name}.weight": (WIDTH,), f"{name}.bias": (WIDTH,)}


def _config() -> dict[str, Any]:
    words = picture_tokenizer.LLAVA
    own = {"vocab_size": picture_tokenizer.VOCABULARY, "attention_bias": False, "mlp_bias": False}
    ids = {
        "bos_token_id": words.index(picture_tokenizer.LLAVA_BEGIN),
        "eos_token_id": words.index(picture_tokenizer.LLAVA_END),
        "pad_token_id": words.index(picture_tokenizer.LLAVA_PAD),
    }
    text = tiny.config_json("LlamaForCausalLM", "llama", own | {"tie_word_embeddings": False})
    return {
        "architectures": ["LlavaForConditionalGeneration"],
        "model_type": "llava",
        "text_config": text | ids,
        "vision_config": {
            "model_type": "clip_vision_model",
            "hidden_size": WIDTH,
            "intermediate_size": INNER,
            "num_hidden_layers": BLOCKS,
            "num_attention_heads": VISION_HEADS,
            "image_size": SIDE,
            "patch_size": PATCH,
            "projection_dim": WIDTH,
        },
        "image_token_index": words.index(picture_tokenizer.LLAVA_IMAGE),
        "image_seq_length": TOKENS,
        "projector_hidden_act": "gelu",
        "vision_feature_layer": -2,
        "vision_feature_select_strategy": "default",
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }


def _write_processor(folder: Path) -> None:
    begin, end, pad = (
        picture_tokenizer.LLAVA_BEGIN,
        picture_tokenizer.LLAVA_END,
        picture_tokenizer.LLAVA_PAD,
    )
    tokenizer = picture_tokenizer.byte_tokenizer_json(picture_tokenizer.LLAVA, begin)
    config = picture_tokenizer.byte_tokenizer_config(end, pad, begin, tiny.CONTEXT)
    writing.write_json(folder / "tokenizer.json", tokenizer)
    writing.write_json(folder / "tokenizer_config.json", config)
    writing.write_text(folder / "chat_template.jinja", picture_tokenizer.LLAVA_TEMPLATE)
    writing.write_json(folder / "preprocessor_config.json", _preprocessor())
    writing.write_json(
        folder / "processor_config.json",
        {
            "processor_class": "LlavaProcessor",
            "image_token": picture_tokenizer.LLAVA_IMAGE,
            "num_additional_image_tokens": 1,
            "patch_size": PATCH,
            "vision_feature_select_strategy": "default",
        },
    )


def _preprocessor() -> dict[str, Any]:
    """CLIP's own, but for the size."""
    return {
        "image_processor_type": "CLIPImageProcessor",
        "processor_class": "LlavaProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"shortest_edge": SIDE},
        "resample": 3,
        "do_center_crop": True,
        "crop_size": {"height": SIDE, "width": SIDE},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
    }
