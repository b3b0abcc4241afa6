"""``demo:tiny-llama-bf16``, ``-awq`` and ``-gptq``: a Llama small enough for every test.

Knows what is Llama's own; the rest is :mod:`fleet.replay.demo.tiny`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleet.replay.demo import awq, gptq, tiny

if TYPE_CHECKING:
    import torch


def build_bf16(folder: Path, report: Callable[[str], None]) -> None:
    """Fill the empty ``folder`` with the bfloat16 checkpoint."""
    report("making demo:tiny-llama-bf16")
    tiny.write(folder, _tensors(), _config())


def build_awq(folder: Path, report: Callable[[str], None]) -> None:
    """Fill the empty ``folder`` with the same model, its decoder linears packed to 4 bits."""
    report("making demo:tiny-llama-awq")
    config = _config() | {"quantization_config": awq.quantization_config()}
    tiny.write(folder, awq.pack_checkpoint(_tensors()), config)


def build_gptq(folder: Path, report: Callable[[str], None]) -> None:
    """Fill the empty ``folder`` with the same model, packed symmetrically: other weights."""
    report("making demo:tiny-llama-gptq")
    config = _config() | {"quantization_config": gptq.quantization_config()}
    tiny.write(folder, awq.pack_checkpoint(_tensors(), gptq.pack_linear), config)


def _tensors() -> dict[str, torch.Tensor]:
    shapes = tiny.decoder_shapes(tiny.dense_mlp) | tiny.output_head()
    return tiny.draw("tiny-llama", shapes, tiny.EXPONENTS)


def _config() -> dict[str, Any]:
    own = {"attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False}
    return tiny.config_json("LlamaForCausalLM", "llama", own)
