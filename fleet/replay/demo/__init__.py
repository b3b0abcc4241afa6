"""Checkpoints that are made here: nothing to download, the same bits on every machine.

``DEMOS`` maps a name (as in ``checkpoint = "demo:<name>"``) to a builder that fills an empty
folder. Builders know no cache: the caller gives them a folder and publishes it when they are done.
torch is imported when a builder runs, never before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import fleet.replay.demo.smollm2 as smollm2
import fleet.replay.demo.tiny_llama as tiny_llama
import fleet.replay.demo.tiny_moe as tiny_moe
import fleet.replay.demo.tiny_qwen2 as tiny_qwen2
from fleet.errors import CheckpointError

Report = Callable[[str], None]
Builder = Callable[[Path, Report], None]

FORMAT = 1
"""Version of what the builders write; part of the folder's name in the cache."""

DEMOS: Mapping[str, Builder] = {
    "tiny-llama-bf16": tiny_llama.build_bf16,
    "tiny-llama-awq": tiny_llama.build_awq,
    "tiny-qwen2-bf16": tiny_qwen2.build_bf16,
    "tiny-moe-bf16": tiny_moe.build_bf16,
    "smollm2-135m": smollm2.build_bf16,
    "smollm2-135m-awq": smollm2.build_awq,
}


@dataclass(frozen=True)
class Content:
    """What a finished folder must hold; digests as ``sha256:<hex>``."""

    checkpoint: str
    tokenizer: str
    chat_template: str


_NO_TEMPLATE = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
_TINY_TOKENIZER = "sha256:f9d38bd465feea7725c881e659188d841143948e14dcdb864a98acd503e0f45e"
_SMOLLM2_TOKENIZER = "sha256:97c0205bdb7c3d7ff6e58330a0a7ad34efbbcd8052b1a0c4fbe73a99602ddfd6"
_SMOLLM2_TEMPLATE = "sha256:872be49dbb638044ad01b60388f48d469ff2980e5f0dccdc22ec907db54d0788"

EXPECTED: Mapping[str, Content] = {
    "tiny-llama-bf16": Content(
        "sha256:ada7e848c72ad4579f2b8350b110b7bf3ae03f2fcc397204ff238ffc4d55d29e",
        _TINY_TOKENIZER,
        _NO_TEMPLATE,
    ),
    "tiny-llama-awq": Content(
        "sha256:b6d22e213bc983d0a64e8975ac787d9c1afbccc50e08d5f69e09e3f67b621a49",
        _TINY_TOKENIZER,
        _NO_TEMPLATE,
    ),
    "tiny-qwen2-bf16": Content(
        "sha256:86f4b7aed76743a0a87cc4f341dd0bb82966399b2262368d072e34660813fe63",
        _TINY_TOKENIZER,
        _NO_TEMPLATE,
    ),
    "tiny-moe-bf16": Content(
        "sha256:a6eeb1fb1e8f3d7cd24e1b3a580994083410fd6393ee11fe444d4c662a71b698",
        _TINY_TOKENIZER,
        _NO_TEMPLATE,
    ),
    "smollm2-135m": Content(
        "sha256:cf0f371210dd196e62aa3bf613ae5438077edaf392c2f3a998e3524257af91db",
        _SMOLLM2_TOKENIZER,
        _SMOLLM2_TEMPLATE,
    ),
    "smollm2-135m-awq": Content(
        "sha256:ac97c66a299c4893dd030a61c4980da6489a083af62b5e62dabd79aeec2edde5",
        _SMOLLM2_TOKENIZER,
        _SMOLLM2_TEMPLATE,
    ),
}
"""Every step of the builders is exact, so these hold on every machine."""


def require_expected(name: str, found: Content) -> None:
    """Refuse a demo checkpoint whose content is not the pinned one.

    Raises:
        CheckpointError: naming the digest that differs.
    """
    for key, wanted in asdict(EXPECTED[name]).items():
        got = asdict(found)[key]
        if got != wanted:
            fix = "report this machine (fleet doctor): the same steps gave other bits here"
            raise CheckpointError(f"demo:{name}", key, wanted, got, fix)
