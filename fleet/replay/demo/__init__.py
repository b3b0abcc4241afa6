"""Checkpoints that are made here: nothing to download, the same bits on every machine.

:func:`find` turns a name (as in ``checkpoint = "demo:<name>"``) into a builder that fills an empty
folder. Builders know no cache: the caller gives them a folder and publishes it when they are done.
What a folder must hold is pinned in ``EXPECTED``; where parameters leave too many checkpoints to
pin, the maker records the content in the folder, and every later use is held against that.
torch is imported when a builder runs, never before.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import fleet.replay.demo.qwen2_shapes as qwen2_shapes
import fleet.replay.demo.qwen2_vl_shapes as qwen2_vl_shapes
import fleet.replay.demo.smollm2 as smollm2
import fleet.replay.demo.tiny_llama as tiny_llama
import fleet.replay.demo.tiny_llava as tiny_llava
import fleet.replay.demo.tiny_moe as tiny_moe
import fleet.replay.demo.tiny_qwen2 as tiny_qwen2
import fleet.replay.demo.tiny_qwen2_vl as tiny_qwen2_vl
from fleet.errors import CheckpointError
from fleet.replay.demo import parameters, writing

Report = Callable[[str], None]
Builder = Callable[[Path, Report], None]

FORMAT = 1
"""Version of what the builders write; part of the folder's name in the cache."""

DEMOS: Mapping[str, Builder] = {
    "tiny-llama-bf16": tiny_llama.build_bf16,
    "tiny-llama-awq": tiny_llama.build_awq,
    "tiny-llama-gptq": tiny_llama.build_gptq,
    "tiny-qwen2-bf16": tiny_qwen2.build_bf16,
    "tiny-moe-bf16": tiny_moe.build_bf16,
    "tiny-llava-bf16": tiny_llava.build_bf16,
    "smollm2-135m": smollm2.build_bf16,
    "smollm2-135m-awq": smollm2.build_awq,
}


@dataclass(frozen=True)
class Sized:
    """A family whose name may carry whole numbers: ``build`` takes a folder, a report and a size of
    type ``size``, whose fields are the parameters."""

    parameters: parameters.Parameters
    size: Callable[..., Any]
    build: Callable[..., None]

    def builder(self, values: Mapping[str, int]) -> Builder:
        """What makes the checkpoint of one size."""
        return functools.partial(self.build, size=self.size(**values))


def _shaped(method: qwen2_shapes.Method) -> Sized:
    build = functools.partial(qwen2_shapes.build, method=method)
    return Sized(qwen2_shapes.PARAMETERS, qwen2_shapes.Size, build)


def _tiny_vision(build: Callable[..., None]) -> Sized:
    return Sized(tiny_qwen2_vl.PARAMETERS, tiny_qwen2_vl.Size, build)


SIZED: Mapping[str, Sized] = {
    "qwen2-7b-shapes-awq": _shaped("awq"),
    "qwen2-7b-shapes-gptq": _shaped("gptq"),
    "qwen2-vl-7b-shapes-awq": Sized(
        qwen2_vl_shapes.PARAMETERS, qwen2_vl_shapes.Size, qwen2_vl_shapes.build
    ),
    "tiny-qwen2-vl-bf16": _tiny_vision(tiny_qwen2_vl.build_bf16),
    "tiny-qwen2-vl-awq": _tiny_vision(tiny_qwen2_vl.build_awq),
}
"""Those whose name may carry parameters."""

RECORD = "made.json"
"""The file of a folder that says what was made, where no pin in code does."""


@dataclass(frozen=True)
class Demo:
    """``name``: the one spelling of what was asked for, a key of ``EXPECTED`` where pinned."""

    name: str
    build: Builder

    @property
    def folder(self) -> str:
        """Name of the folder in the cache."""
        word = self.name.replace("?", "-").replace("&", "-").replace("=", "")
        return f"{word}-{FORMAT}"


def find(name: str) -> Demo:
    """The demo checkpoint of this name.

    Raises:
        CheckpointError: an unknown name, or a parameter that it does not take.
    """
    base = name.partition("?")[0]
    if (sized := SIZED.get(base)) is not None:
        _, values = parameters.parse(name, sized.parameters)
        return Demo(parameters.canonical(base, values, sized.parameters), sized.builder(values))
    if base in DEMOS:
        parameters.parse(name, {})
        return Demo(base, DEMOS[base])
    known = ", ".join(f"demo:{known}" for known in (*DEMOS, *SIZED, "synthetic"))
    fix = "correct [model] checkpoint"
    raise CheckpointError(f"demo:{name}", "", f"one of {known}", "an unknown name", fix)


@dataclass(frozen=True)
class Content:
    """What a finished folder must hold; digests as ``sha256:<hex>``."""

    checkpoint: str
    tokenizer: str
    chat_template: str


_NO_TEMPLATE = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
_TINY_TOKENIZER = "sha256:f9d38bd465feea7725c881e659188d841143948e14dcdb864a98acd503e0f45e"
_VISION_TOKENIZER = "sha256:7d777dea7570fc07cd76bae5b9c1cd6234117e5bd74e3cba7f182835d11888ba"
_VISION_TEMPLATE = "sha256:de166e9055c1a90c3dfd1bea7987958292ea171cc8c8d01d1a30b5a15bfdd48f"
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
    "tiny-llama-gptq": Content(
        "sha256:264d1a42db31abfd0b7dc832edcf1c4a5b05107eb63f07c57b1110294a776eaa",
        _TINY_TOKENIZER,
        _NO_TEMPLATE,
    ),
    "tiny-qwen2-vl-bf16?layers=2&blocks=2": Content(
        "sha256:197a35f5e068ccb889473b65a3e5eccce68c82011ec890308c2228bf4b360942",
        _VISION_TOKENIZER,
        _VISION_TEMPLATE,
    ),
    "tiny-qwen2-vl-awq?layers=2&blocks=2": Content(
        "sha256:b6f5993c1a43fd6ec1c791b6d402a6dd821d43a814cbcef8f3d9fe25451742a1",
        _VISION_TOKENIZER,
        _VISION_TEMPLATE,
    ),
    "tiny-llava-bf16": Content(
        "sha256:9e96db5fabc60a4579b248c08cf03311a3add362119c67433e69f102244f9449",
        "sha256:b8733c5e7a591ab22e9e05509249ef6316575fdfae0fa9cac2c9eb817ca7d216",
        "sha256:6058ed63e7c5d11802cb0703519ae685f2aa9a4f69c55c7a44976eb6354f2da9",
    ),
    "qwen2-vl-7b-shapes-awq?layers=2&blocks=2&vocabulary=4096": Content(
        "sha256:dbe2790a115de7559e52d084703ae610653bef83563cbf3065d511ba230b5313",
        "sha256:c135f53ed984d39bc83f1ad752b49d5891153993ef7e4febca1f4e734990c7bc",
        _VISION_TEMPLATE,
    ),
    "qwen2-7b-shapes-awq?layers=1&vocabulary=4096": Content(
        "sha256:ebc59b236dbded139fc402f908c9db8f89826e4575650919038d87e454550798",
        _TINY_TOKENIZER,
        _NO_TEMPLATE,
    ),
    "qwen2-7b-shapes-awq?layers=2&vocabulary=4096": Content(
        "sha256:96380e6eab107c923e834414ded7978ec81dc54ea384418dc6571e4743a1dab8",
        _TINY_TOKENIZER,
        _NO_TEMPLATE,
    ),
    "qwen2-7b-shapes-awq?layers=4&vocabulary=4096": Content(
        "sha256:2b3e73c9946cb136bb19a478264f8f91c9f80ace849077d22b05f9ccc1a14850",
        _TINY_TOKENIZER,
        _NO_TEMPLATE,
    ),
    "qwen2-7b-shapes-gptq?layers=1&vocabulary=4096": Content(
        "sha256:df21e88f93a1c3047b582aa6aafcc46a97ba155b17a5bf793edd7f9633d4460f",
        _TINY_TOKENIZER,
        _NO_TEMPLATE,
    ),
    "qwen2-7b-shapes-gptq?layers=2&vocabulary=4096": Content(
        "sha256:538cf1a7a1f7f8add51336bd6af2177f44dac739112e334cbe5163728abfcbc6",
        _TINY_TOKENIZER,
        _NO_TEMPLATE,
    ),
    "qwen2-7b-shapes-gptq?layers=4&vocabulary=4096": Content(
        "sha256:5c0423f57013d10ad2c54eb9e9b2784bdc3408f612ed07bc0009f88896556701",
        _TINY_TOKENIZER,
        _NO_TEMPLATE,
    ),
}
"""Every step of the builders is exact, so these hold on every machine."""


def accept(name: str, folder: Path, made: Content) -> None:
    """Hold a folder just made against its pin, or record what it holds where there is none.

    Raises:
        CheckpointError: naming the digest that differs from the pinned one.
    """
    if name not in EXPECTED:
        writing.write_json(folder / RECORD, asdict(made))
        return
    fix = "report this machine (fleet doctor): the same steps gave other bits here"
    _require(f"demo:{name}", asdict(EXPECTED[name]), asdict(made), fix)


def require_as_made(name: str, folder: Path, found: Mapping[str, str]) -> None:
    """Refuse a cached folder that does not hold what was pinned or recorded.

    Raises:
        CheckpointError: naming the digest that differs, or the record that is not there.
    """
    fix = f"delete {folder}; it is made anew at the next call"
    canonical = find(name).name
    pinned = EXPECTED.get(canonical)
    wanted = _recorded(folder, fix) if pinned is None else asdict(pinned)
    _require(str(folder), wanted, found, fix)


def _recorded(folder: Path, fix: str) -> dict[str, str]:
    try:
        return asdict(Content(**json.loads((folder / RECORD).read_bytes())))
    except (OSError, ValueError, TypeError) as error:
        expected = "the digests of what was made"
        raise CheckpointError(str(folder), RECORD, expected, str(error), fix) from error


def _require(where: str, wanted: Mapping[str, str], got: Mapping[str, str], fix: str) -> None:
    for key, digest in wanted.items():
        if got[key] != digest:
            raise CheckpointError(where, key, digest, got[key], fix)
