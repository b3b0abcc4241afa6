"""``demo:qwen2-7b-shapes-awq`` and ``-gptq``: Qwen2 7B's layer shapes, with random weights.

A kernel is chosen and tiled by shapes, so its bits can only be judged at the shapes that are
served. Every layer is as in the 7B model; how many there are, and the vocabulary, are parameters.
The two names hold one model in two formats: equal codes, zero points 8, equal scales.

The scales keep every layer's output near 1, so that attention is uneven, the answer depends on
the prompt and nothing overflows in float16. Rows 2i and 2i + 1 of the output head agree in the
high five bits of each weight: the two best logits are often a few roundings apart and drift shows.

One file a layer, so no more than one layer is in memory. Knows no cache and no names' parsing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fleet.replay.demo import awq, counter, gptq, tiny_tokenizer, writing
from fleet.replay.demo.parameters import Parameter
from fleet.replay.demo.philox import Stream

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

    Change = Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.uint8]]

Report = Callable[[str], None]
Method = Literal["awq", "gptq"]
Tensors = dict[str, "torch.Tensor"]

FAMILY = "qwen2-7b-shapes"
HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_SIZE = 3584, 18944, 28, 4, 128
CONTEXT, GROUP_SIZE = 32768, 128
TOKENIZER_SIZE, TOKENIZER_CONTEXT = 512, 1024
BLOCK_ROWS = 4096  # of an embedding, drawn at a time

_QUERY, _KEY = HEADS * HEAD_SIZE, KV_HEADS * HEAD_SIZE
LINEARS: Mapping[str, tuple[int, int, int]] = {
    "self_attn.q_proj": (HIDDEN, _QUERY, -7),
    "self_attn.k_proj": (HIDDEN, _KEY, -7),
    "self_attn.v_proj": (HIDDEN, _KEY, -7),
    "self_attn.o_proj": (_QUERY, HIDDEN, -7),
    "mlp.gate_proj": (HIDDEN, INTERMEDIATE, -8),
    "mlp.up_proj": (HIDDEN, INTERMEDIATE, -8),
    "mlp.down_proj": (INTERMEDIATE, HIDDEN, -7),
}
"""Inputs, outputs, and the exponent of 2 above every scale."""

EMBEDDING, HEAD, BIAS = 0, -3, -1
"""Exponents of 2 above the largest weight of each kind."""


PARAMETERS: Mapping[str, Parameter] = {
    "layers": Parameter(default=2, least=1, most=28),
    "vocabulary": Parameter(default=4096, least=TOKENIZER_SIZE, most=152064, step=64),
}


@dataclass(frozen=True)
class Size:
    """What a name may choose."""

    layers: int
    vocabulary: int


def build(folder: Path, report: Report, method: Method, size: Size) -> None:
    """Fill the empty ``folder``, one file at a time."""
    report(f"making demo:{FAMILY}-{method}, layers={size.layers}, vocabulary={size.vocabulary}")
    shards = writing.Shards(folder, size.layers + 2)
    for tensors in _parts(method, size):
        shards.add(tensors)
    shards.close()
    writing.write_json(folder / "config.json", _config(method, size))
    tokenizer = tiny_tokenizer.tiny_tokenizer_json(TOKENIZER_SIZE)
    writing.write_json(folder / "tokenizer.json", tokenizer)
    rest = tiny_tokenizer.tiny_tokenizer_config(TOKENIZER_CONTEXT)
    writing.write_json(folder / "tokenizer_config.json", rest)


def _parts(method: Method, size: Size) -> Iterator[Tensors]:
    yield {"model.embed_tokens.weight": embedding("model.embed_tokens.weight", size.vocabulary)}
    for number in range(size.layers):
        yield layer_tensors(f"model.layers.{number}", method)
    yield {
        "model.norm.weight": counter.gains(f"{FAMILY}/model.norm.weight", HIDDEN),
        "lm_head.weight": output_head(size.vocabulary),
    }


def layer_tensors(layer: str, method: Method) -> Tensors:
    """Every tensor of one layer, under its name."""
    import torch

    found: Tensors = {}
    for name, (inputs, outputs, exponent) in LINEARS.items():
        arrays = _linear(f"{layer}.{name}", inputs, outputs, exponent, method)
        found |= {f"{layer}.{name}.{k}": torch.from_numpy(array) for k, array in arrays.items()}
    for name in ("q_proj", "k_proj", "v_proj"):
        bias = f"{layer}.self_attn.{name}.bias"
        width = LINEARS[f"self_attn.{name}"][1]
        found[bias] = counter.weights(f"{FAMILY}/{bias}", (width,), BIAS)
    for name in ("input_layernorm", "post_attention_layernorm"):
        norm = f"{layer}.{name}.weight"
        found[norm] = counter.gains(f"{FAMILY}/{norm}", HIDDEN)
    return found


def _linear(
    name: str, inputs: int, outputs: int, exponent: int, method: Method
) -> dict[str, npt.NDArray[Any]]:
    """What a checkpoint holds of one linear but its bias."""
    import numpy as np

    words = _words(f"{FAMILY}/{name}.qweight", inputs, outputs)
    scales = _scales(f"{FAMILY}/{name}.scales", inputs // GROUP_SIZE, outputs, exponent)
    if method == "gptq":
        beside = gptq.beside(inputs, outputs, GROUP_SIZE)
        return {"qweight": gptq.from_awq(words), **beside, "scales": scales}
    eights = np.full((inputs // GROUP_SIZE, outputs // 8), 0x88888888, dtype=np.uint32)
    return {"qweight": words, "qzeros": eights.view(np.int32), "scales": scales}


def _words(label: str, inputs: int, outputs: int) -> npt.NDArray[np.int32]:
    """AWQ's ``qweight`` of random codes 1 to 15, those drawn as 0 being 8.

    The zero point being 8, their mean is then zero. Weights that lean to one side would add the
    sum of a layer's inputs to all of its outputs, more so with every layer.
    """
    import numpy as np

    drawn = Stream(label).take(inputs * outputs // 2).view("<u4").astype(np.uint32, copy=False)
    some = drawn | drawn >> np.uint32(1) | drawn >> np.uint32(2) | drawn >> np.uint32(3)
    drawn |= (~some & np.uint32(0x11111111)) << np.uint32(3)
    return drawn.view(np.int32).reshape(inputs, outputs // 8)


def _scales(label: str, groups: int, outputs: int, exponent: int) -> npt.NDArray[np.float16]:
    """Between 2**(exponent - 1) and 2**exponent, 8 bits each: exact in bfloat16 too."""
    import numpy as np

    drawn = Stream(label).take(groups * outputs).astype(np.float32)
    steps = np.floor(drawn / np.float32(2)) + np.float32(128)
    scales: npt.NDArray[np.float32] = steps * np.float32(2.0 ** (exponent - 8))
    return scales.astype(np.float16).reshape(groups, outputs)


def embedding(name: str, vocabulary: int) -> torch.Tensor:
    """A row per token."""
    return _rows(name, vocabulary, EMBEDDING)


def output_head(vocabulary: int) -> torch.Tensor:
    """Rows 2i and 2i + 1 are nearly one."""
    return _rows("lm_head.weight", vocabulary, HEAD, _in_pairs)


def _rows(name: str, vocabulary: int, exponent: int, change: Change | None = None) -> torch.Tensor:
    """bfloat16 [vocabulary, hidden] of (2 k - 255) / 256 * 2**exponent, k one byte."""
    import numpy as np
    import torch

    odd = np.arange(256, dtype=np.float32) * np.float32(2) - np.float32(255)
    values = (odd * np.float32(2.0 ** (exponent - 8))).view(np.uint32) >> np.uint32(16)
    table = values.astype(np.uint16).view(np.int16)
    stream, found = Stream(f"{FAMILY}/{name}"), np.empty((vocabulary, HIDDEN), np.int16)
    for start in range(0, vocabulary, BLOCK_ROWS):
        block = found[start : start + BLOCK_ROWS]
        drawn = stream.take(block.size).reshape(block.shape)
        block[:] = table[drawn if change is None else change(drawn)]
    return torch.from_numpy(found).view(torch.bfloat16)


def _in_pairs(drawn: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Each odd row takes the high five bits of the row before it."""
    import numpy as np

    paired = drawn.copy()
    paired[1::2] = (drawn[0::2] & np.uint8(0xF8)) | (drawn[1::2] & np.uint8(7))
    return paired


def _config(method: Method, size: Size) -> dict[str, Any]:
    packing = awq if method == "awq" else gptq
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": size.vocabulary,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": size.layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        "use_sliding_window": False,
        "tie_word_embeddings": False,
        "use_cache": True,
        "bos_token_id": tiny_tokenizer.SPECIALS.index(tiny_tokenizer.BOS),
        "eos_token_id": tiny_tokenizer.SPECIALS.index(tiny_tokenizer.EOS),
        "pad_token_id": tiny_tokenizer.SPECIALS.index(tiny_tokenizer.PAD),
        "dtype": "bfloat16",
        "quantization_config": packing.quantization_config(GROUP_SIZE),
    }
