"""``demo:qwen2-vl-7b-shapes-awq``: Qwen2-VL 7B's layer shapes, with random weights.

The language model is that of :mod:`fleet.replay.demo.qwen2_shapes`, packed to 4 bits; the vision
tower and the merger have the 7B model's widths in bfloat16, as AWQ checkpoints leave them. How many
layers and blocks there are, and the vocabulary, are parameters; one file a layer and a block.
Knows no cache and no names' parsing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.replay.demo import awq, counter, qwen2_shapes, tiny, tiny_qwen2_vl, writing
from fleet.replay.demo.parameters import Parameter

FAMILY = "qwen2-vl-7b-shapes"
WIDTH, VISION_HEADS, RATIO = 1280, 16, 4
CONTEXT = 32768

EXPONENTS: Mapping[str, int] = {
    "patch_embed.proj": -5,
    "qkv": -5,
    "attn.proj": -5,
    "fc1": -5,
    "fc2": -6,
    "mlp.0": -6,
    "mlp.2": -6,
    "bias": -2,
}

PARAMETERS: Mapping[str, Parameter] = {
    "layers": Parameter(default=2, least=1, most=28),
    "blocks": Parameter(default=2, least=1, most=32),
    "vocabulary": qwen2_shapes.PARAMETERS["vocabulary"],
}


@dataclass(frozen=True)
class Size:
    """What a name may choose."""

    layers: int
    blocks: int
    vocabulary: int


def build(folder: Path, report: Callable[[str], None], size: Size) -> None:
    """Fill the empty ``folder``, one file at a time."""
    report(
        f"making demo:{FAMILY}-awq, layers={size.layers}, blocks={size.blocks}, "
        f"vocabulary={size.vocabulary}"
    )
    shards = writing.Shards(folder, size.layers + size.blocks + 3)
    for tensors in _parts(size):
        shards.add(tensors)
    shards.close()
    writing.write_json(folder / "config.json", _config(size))
    tiny_qwen2_vl.write_processor(folder, CONTEXT)


def _parts(size: Size) -> Iterator[qwen2_shapes.Tensors]:
    yield from _vision(size.blocks)
    name = "model.language_model.embed_tokens.weight"
    yield {name: qwen2_shapes.embedding(name, size.vocabulary)}
    for number in range(size.layers):
        yield qwen2_shapes.layer_tensors(f"model.language_model.layers.{number}", "awq")
    norm = "model.language_model.norm.weight"
    yield {
        norm: counter.gains(f"{FAMILY}/{norm}", qwen2_shapes.HIDDEN),
        "lm_head.weight": qwen2_shapes.output_head(size.vocabulary),
    }


def _vision(blocks: int) -> Iterator[qwen2_shapes.Tensors]:
    """Each block, then what is around them."""
    shapes = tiny_qwen2_vl.vision_shapes(blocks, WIDTH, RATIO, qwen2_shapes.HIDDEN)
    within = [f"model.visual.blocks.{number}." for number in range(blocks)]
    for block in within:
        yield {name: _drawn(name, s) for name, s in shapes.items() if name.startswith(block)}
    around = {name: s for name, s in shapes.items() if not name.startswith(tuple(within))}
    yield {name: _drawn(name, shape) for name, shape in around.items()}


def _drawn(name: str, shape: tuple[int, ...]) -> Any:
    return tiny.drawn(f"{FAMILY}/{name}", shape, tiny_qwen2_vl.exponent(name, EXPONENTS))


def _config(size: Size) -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": 1000000.0, "mrope_section": [16, 24, 24]}
    text = {
        "vocab_size": size.vocabulary,
        "hidden_size": qwen2_shapes.HIDDEN,
        "intermediate_size": qwen2_shapes.INTERMEDIATE,
        "num_hidden_layers": size.layers,
        "num_attention_heads": qwen2_shapes.HEADS,
        "num_key_value_heads": qwen2_shapes.KV_HEADS,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-6,
        "rope_parameters": rope,
        "use_sliding_window": False,
        "use_cache": True,
    }
    vision = {
        "depth": size.blocks,
        "embed_dim": WIDTH,
        "hidden_size": qwen2_shapes.HIDDEN,
        "num_heads": VISION_HEADS,
        "mlp_ratio": RATIO,
    }
    packed = awq.quantization_config(qwen2_shapes.GROUP_SIZE) | tiny_qwen2_vl.UNPACKED
    return tiny_qwen2_vl.config_json(text, vision) | {"quantization_config": packed}
