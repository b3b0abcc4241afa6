"""What the tiny models share: sizes, scales, configuration, and the files of a folder.

Two layers, hidden size 128, 512 tokens, bfloat16 because float32 hides almost every fault at token
level. The weights say nothing true; their scales are chosen so that attention is uneven, the
answer depends on the prompt, and the top two logits are often close. No library writes these
files but safetensors, so the folder does not change with the version of transformers.

Knows no architecture: a family names its own matrices, scales and configuration keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleet.replay.demo import counter, tiny_tokenizer, writing

if TYPE_CHECKING:
    import torch

Shapes = dict[str, tuple[int, ...]]

HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, HEAD_SIZE = 128, 256, 2, 4, 2, 32
VOCABULARY, CONTEXT = 512, 1024

EXPONENTS: Mapping[str, int] = {
    "embed_tokens": 0,
    "q_proj": -1,
    "k_proj": -1,
    "v_proj": -2,
    "o_proj": -2,
    "gate_proj": -3,
    "up_proj": -3,
    "down_proj": -3,
    "lm_head": -1,
}
"""Exponents of 2 per kind of tensor; a uniform weight's standard deviation is 0.577 * 2**it."""


def decoder_shapes(
    inner: Callable[[str], Shapes], layers: int = LAYERS, vocabulary: int = VOCABULARY
) -> Shapes:
    """Every tensor of a decoder but an output head.

    Args:
        inner: what a layer holds besides its norms and attention, given the layer's name.
        layers: how many there are.
        vocabulary: rows of the embedding.
    """
    found: Shapes = {"model.embed_tokens.weight": (vocabulary, HIDDEN)}
    for layer in (f"model.layers.{number}" for number in range(layers)):
        found |= _attention(f"{layer}.self_attn") | inner(layer)
        found[f"{layer}.input_layernorm.weight"] = (HIDDEN,)
        found[f"{layer}.post_attention_layernorm.weight"] = (HIDDEN,)
    return {**found, "model.norm.weight": (HIDDEN,)}


def dense_mlp(layer: str) -> Shapes:
    """The gated MLP that Llama and Qwen2 have in each layer."""
    return {
        f"{layer}.mlp.gate_proj.weight": (INTERMEDIATE, HIDDEN),
        f"{layer}.mlp.up_proj.weight": (INTERMEDIATE, HIDDEN),
        f"{layer}.mlp.down_proj.weight": (HIDDEN, INTERMEDIATE),
    }


def output_head() -> Shapes:
    """An output head of its own, where it is not tied to the embeddings."""
    return {"lm_head.weight": (VOCABULARY, HIDDEN)}


def draw(family: str, shapes: Shapes, exponents: Mapping[str, int]) -> dict[str, torch.Tensor]:
    """A tensor per name, from a stream that the family and the name label."""
    return {
        name: drawn(f"{family}/{name}", shape, _exponent(name, exponents))
        for name, shape in shapes.items()
    }


def drawn(label: str, shape: tuple[int, ...], exponent: int | None) -> torch.Tensor:
    """One tensor; ``exponent`` None stands for the weight of a norm."""
    if exponent is None:
        return counter.gains(label, *shape)
    return counter.weights(label, shape, exponent)


def config_json(architecture: str, model_type: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """Content of config.json; ``own`` are the family's keys."""
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_SIZE,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        **own,
        "use_cache": True,
        "bos_token_id": tiny_tokenizer.SPECIALS.index(tiny_tokenizer.BOS),
        "eos_token_id": tiny_tokenizer.SPECIALS.index(tiny_tokenizer.EOS),
        "pad_token_id": tiny_tokenizer.SPECIALS.index(tiny_tokenizer.PAD),
        "dtype": "bfloat16",
    }


def write(folder: Path, tensors: Mapping[str, torch.Tensor], config: Mapping[str, Any]) -> None:
    """Fill the empty ``folder``."""
    tokenizer = tiny_tokenizer.tiny_tokenizer_json(VOCABULARY)
    writing.write_tensors(folder, tensors)
    writing.write_json(folder / "config.json", config)
    writing.write_json(folder / "tokenizer.json", tokenizer)
    writing.write_json(
        folder / "tokenizer_config.json", tiny_tokenizer.tiny_tokenizer_config(CONTEXT)
    )


def _attention(name: str) -> Shapes:
    return {
        f"{name}.q_proj.weight": (HEADS * HEAD_SIZE, HIDDEN),
        f"{name}.k_proj.weight": (KV_HEADS * HEAD_SIZE, HIDDEN),
        f"{name}.v_proj.weight": (KV_HEADS * HEAD_SIZE, HIDDEN),
        f"{name}.o_proj.weight": (HIDDEN, HEADS * HEAD_SIZE),
    }


def _exponent(name: str, exponents: Mapping[str, int]) -> int | None:
    """By the last word of a tensor's name, ``weight`` left out."""
    kind = name.removesuffix(".weight").rpartition(".")[2]
    return None if kind.endswith("norm") else exponents[kind]
