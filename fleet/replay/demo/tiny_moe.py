"""``demo:tiny-moe-bf16``: a Mixtral of 4 experts, 2 of them per token.

Knows what is Mixtral's own; the rest is :mod:`fleet.replay.demo.tiny`. transformers 5 holds the
experts of a layer in two tensors [expert, output, input], gate above up, and makes them while it
loads a checkpoint that has a matrix per expert (its ``conversion_mapping``, "mixtral"). These are
saved under the names and in the shapes of the model itself, so nothing is made while loading and
every loaded tensor bears a saved tensor's bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fleet.replay.demo import tiny

EXPERTS, EXPERTS_PER_TOKEN = 4, 2

EXPONENTS = {**tiny.EXPONENTS, "gate": -2, "gate_up_proj": -3}


def build_bf16(folder: Path, report: Callable[[str], None]) -> None:
    """Fill the empty ``folder`` with the bfloat16 checkpoint."""
    report("making demo:tiny-moe-bf16")
    own = {
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": EXPERTS_PER_TOKEN,
        "sliding_window": None,
        "tie_word_embeddings": False,
    }
    config = tiny.config_json("MixtralForCausalLM", "mixtral", own)
    shapes = tiny.decoder_shapes(_inner) | tiny.output_head()
    tiny.write(folder, tiny.draw("tiny-moe", shapes, EXPONENTS), config)


def _inner(layer: str) -> tiny.Shapes:
    """``gate`` is the router."""
    return {
        f"{layer}.mlp.gate.weight": (EXPERTS, tiny.HIDDEN),
        f"{layer}.mlp.experts.gate_up_proj": (EXPERTS, 2 * tiny.INTERMEDIATE, tiny.HIDDEN),
        f"{layer}.mlp.experts.down_proj": (EXPERTS, tiny.HIDDEN, tiny.INTERMEDIATE),
    }
