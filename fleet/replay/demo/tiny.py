"""``demo:tiny-llama-bf16`` and ``demo:tiny-llama-awq``: a Llama small enough for every test.

Two layers, hidden size 128, 512 tokens, bfloat16 because float32 hides almost every fault at token
level. The weights say nothing true; their scales are chosen so that attention is uneven, the
answer depends on the prompt, and the top two logits are often close. No library writes these
files but safetensors, so the folder does not change with the version of transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleet.replay.demo import awq, counter, tiny_tokenizer, writing

if TYPE_CHECKING:
    import torch

HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, HEAD_SIZE = 128, 256, 2, 4, 2, 32
VOCABULARY, CONTEXT = 512, 1024

# Exponents of 2 per kind of tensor; a uniform weight's standard deviation is 0.577 * 2**exponent.
EXPONENTS = {
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


def build_bf16(folder: Path, report: Callable[[str], None]) -> None:
    """Fill the empty ``folder`` with the bfloat16 checkpoint."""
    report("making demo:tiny-llama-bf16")
    _write(folder, _tensors(), _config())


def build_awq(folder: Path, report: Callable[[str], None]) -> None:
    """Fill the empty ``folder`` with the same model, its decoder linears packed to 4 bits."""
    report("making demo:tiny-llama-awq")
    config = _config() | {"quantization_config": awq.quantization_config()}
    _write(folder, awq.pack_checkpoint(_tensors()), config)


def _shapes() -> dict[str, tuple[int, ...]]:
    """Every matrix of the model."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN)}
    for layer in range(LAYERS):
        attention, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
        shapes[f"{attention}.q_proj.weight"] = (HEADS * HEAD_SIZE, HIDDEN)
        shapes[f"{attention}.k_proj.weight"] = (KV_HEADS * HEAD_SIZE, HIDDEN)
        shapes[f"{attention}.v_proj.weight"] = (KV_HEADS * HEAD_SIZE, HIDDEN)
        shapes[f"{attention}.o_proj.weight"] = (HIDDEN, HEADS * HEAD_SIZE)
        shapes[f"{mlp}.gate_proj.weight"] = (INTERMEDIATE, HIDDEN)
        shapes[f"{mlp}.up_proj.weight"] = (INTERMEDIATE, HIDDEN)
        shapes[f"{mlp}.down_proj.weight"] = (HIDDEN, INTERMEDIATE)
    shapes["lm_head.weight"] = (VOCABULARY, HIDDEN)
    return shapes


def _norms() -> list[str]:
    kinds = ("input_layernorm", "post_attention_layernorm")
    inner = [f"model.layers.{layer}.{kind}.weight" for layer in range(LAYERS) for kind in kinds]
    return [*inner, "model.norm.weight"]


def _tensors() -> dict[str, torch.Tensor]:
    matrices = {
        name: counter.weights(f"tiny-llama/{name}", shape, EXPONENTS[name.split(".")[-2]])
        for name, shape in _shapes().items()
    }
    return matrices | {name: counter.gains(f"tiny-llama/{name}", HIDDEN) for name in _norms()}


def _config() -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
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
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "use_cache": True,
        "bos_token_id": tiny_tokenizer.SPECIALS.index(tiny_tokenizer.BOS),
        "eos_token_id": tiny_tokenizer.SPECIALS.index(tiny_tokenizer.EOS),
        "pad_token_id": tiny_tokenizer.SPECIALS.index(tiny_tokenizer.PAD),
        "dtype": "bfloat16",
    }


def _write(folder: Path, tensors: Mapping[str, torch.Tensor], config: Mapping[str, Any]) -> None:
    tokenizer = tiny_tokenizer.tiny_tokenizer_json(VOCABULARY)
    writing.write_tensors(folder, tensors)
    writing.write_json(folder / "config.json", config)
    writing.write_json(folder / "tokenizer.json", tokenizer)
    writing.write_json(
        folder / "tokenizer_config.json", tiny_tokenizer.tiny_tokenizer_config(CONTEXT)
    )
