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


class Shards:
    """A checkpoint in several files, written one by one, then the index that names them."""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder, self._count = folder, count
        self._weight_map: dict[str, str] = {}
        self._bytes = self._written = 0

    def add(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """The next file."""
        from safetensors.torch import save_file

        self._written += 1
        name = f"model-{self._written:05}-of-{self._count:05}.safetensors"
        save_file(dict(tensors), self._folder / name, metadata={"format": "pt"})
        self._weight_map |= dict.fromkeys(tensors, name)
        self._bytes += sum(tensor.nbytes for tensor in tensors.values())

    def close(self) -> None:
        """The index, once every file is written."""
        content = {"metadata": {"total_size": self._bytes}, "weight_map": self._weight_map}
        write_json(self._folder / "model.safetensors.index.json", content)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """UTF-8, one key a line, keys in the given order."""
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """UTF-8 with the line ends that ``text`` has."""
    path.write_text(text, encoding="utf-8", newline="")
