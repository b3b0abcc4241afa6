"""A GPTQ checkpoint made from the small AWQ one: the same integers in the other layout.

GPTQ packs eight rows of K into a word, lowest nibble first, and stores zero points minus one. The
zero points are 8 here, as in symmetric GPTQ, so the weights are not the AWQ model's.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
GROUP = 64


def nibbles(words: torch.Tensor) -> torch.Tensor:
    """AWQ's int32 (rows, columns / 8) -> 0..15 (rows, columns)."""
    columns = torch.zeros(*words.shape, 8, dtype=torch.int64)
    for place, column in enumerate(AWQ_ORDER):
        columns[..., column] = (words.to(torch.int64) >> (4 * place)) & 15
    return columns.flatten(1)


def packed_rows(values: torch.Tensor) -> torch.Tensor:
    """0..15 (rows, columns) -> int32 (rows / 8, columns)."""
    shifts = 4 * torch.arange(8).reshape(1, 8, 1)
    words = (values.reshape(-1, 8, values.shape[1]) << shifts).sum(1)
    return words.to(torch.uint32).view(torch.int32)


def make(awq: Path, folder: Path) -> Path:
    """Write the GPTQ twin of the checkpoint ``awq`` to ``folder``."""
    shutil.copytree(awq, folder)
    tensors = load_file(awq / "model.safetensors")
    for name in [n.removesuffix(".qweight") for n in tensors if n.endswith(".qweight")]:
        values = nibbles(tensors[f"{name}.qweight"])
        sevens = torch.full_like(nibbles(tensors[f"{name}.qzeros"]), 7)
        tensors[f"{name}.qweight"] = packed_rows(values)
        tensors[f"{name}.qzeros"] = packed_rows(sevens.T.contiguous()).T.contiguous()
        tensors[f"{name}.g_idx"] = (torch.arange(len(values)) // GROUP).to(torch.int32)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": GROUP,
        "sym": True,
        "desc_act": False,
        "checkpoint_format": "gptq",
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder
