"""The files of a demo checkpoint, written without any library's taste.

``save_pretrained`` adds versions, defaults and local paths that change with the release of
transformers; these folders must be equal wherever they are made. No generation_config.json is
written: a contract declares its whole decoding rule.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def write_tensors(folder: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """model.safetensors."""
    from safetensors.torch import save_file

    save_file(dict(tensors), folder / "model.safetensors", metadata={"format": "pt"})


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """UTF-8, one key a line, keys in the given order."""
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """UTF-8 with the line ends that ``text`` has."""
    path.write_text(text, encoding="utf-8", newline="")
