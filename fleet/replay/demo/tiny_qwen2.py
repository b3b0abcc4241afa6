"""``demo:tiny-qwen2-bf16``: biases on q, k and v, and an output head tied to the embeddings.

Knows what is Qwen2's own; the rest is :mod:`fleet.replay.demo.tiny`. The head being the embedding
matrix, large embeddings would let a token's own row outweigh what the layers add, and the model
would repeat its last token: 62 of 168 times at the scale of the other families, twice at this one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fleet.replay.demo import tiny

EXPONENTS = {**tiny.EXPONENTS, "embed_tokens": -2, "bias": -1}


def build_bf16(folder: Path, report: Callable[[str], None]) -> None:
    """Fill the empty ``folder`` with the bfloat16 checkpoint."""
    report("making demo:tiny-qwen2-bf16")
    own = {"use_sliding_window": False, "tie_word_embeddings": True}
    config = tiny.config_json("Qwen2ForCausalLM", "qwen2", own)
    tiny.write(folder, tiny.draw("tiny-qwen2", tiny.decoder_shapes(_inner), EXPONENTS), config)


def _inner(layer: str) -> tiny.Shapes:
    """No checkpoint of this family holds a bias of ``o_proj`` or of the MLP."""
    return {
        **tiny.dense_mlp(layer),
        f"{layer}.self_attn.q_proj.bias": (tiny.HEADS * tiny.HEAD_SIZE,),
        f"{layer}.self_attn.k_proj.bias": (tiny.KV_HEADS * tiny.HEAD_SIZE,),
        f"{layer}.self_attn.v_proj.bias": (tiny.KV_HEADS * tiny.HEAD_SIZE,),
    }
