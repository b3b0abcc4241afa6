"""From prompts and images to token ids and pixels: the input side of a vision-language model.

The processor is the checkpoint's own, with the image processor that the contract names: *slow* is
Pillow and NumPy, *fast* is torchvision; they give other pixels. transformers falls back from one to
the other without an error, so what was resolved is read back and held against the contract.

Pixels are made twice: once before any weight, to be digested and let go, and again for the batch
that is run, so that no more than one batch of them is in memory. Videos are left out. Knows no
weight and no device.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import PIL
import torch
import transformers
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

from fleet.contract.canonical import digest_json, to_text
from fleet.contract.images import FIELD
from fleet.contract.model import Arm, Contract
from fleet.errors import (
    AttemptVoid,
    CannotRunError,
    CheckpointError,
    ContractError,
    UsageError,
)
from fleet.evidence.images import PROCESSOR, ImageEvidence, Output, Picture
from fleet.replay.checkpoint_text import read_json
from fleet.replay.engines.protocol import Prepared
from fleet.replay.engines.tokenization import Tokenization
from fleet.replay.host_digest import host_digest
from fleet.replay.images import Images, decode

BACKENDS = {"fast": "torchvision", "slow": "pil"}
"""``model.processor`` -> what transformers calls it."""

OWN_COLUMNS = ("input_ids", "attention_mask")
"""Outputs of a processor that are evidence of their own."""


class Pictures(Tokenization):
    """Tokenizer and processor of one checkpoint under one contract.

    Args:
        contract: decides the image processor.
        checkpoint: its folder.
        dataset: the file whose records name the images.
    """

    def __init__(self, contract: Contract, checkpoint: Path, dataset: Path) -> None:
        super().__init__(contract, checkpoint)
        self._where, self._images = str(dataset), Images(dataset)
        self._processor = _processor(contract, checkpoint, self._tokenizer)
        self._known: dict[tuple[str, str], Prepared] = {}

    def prepare(
        self,
        arm: str,
        records: Sequence[Mapping[str, Any]],
        prompts: Sequence[str],
        now: datetime,
    ) -> list[Prepared]:
        """One ``Prepared`` per record, in order; its pixels are digested and let go.

        Raises:
            AttemptVoid: the processor in force is not the contract's.
            ContractError: a prompt that does not have one place per image.
            DatasetError: an image that cannot be read.
        """
        self._require_in_force()
        settings = self._contract.arms[arm]
        pairs = zip(records, prompts, strict=True)
        return [self._prepared(arm, settings, record, prompt, now) for record, prompt in pairs]

    def _prepared(
        self, name: str, arm: Arm, record: Mapping[str, Any], prompt: str, now: datetime
    ) -> Prepared:
        sample = str(record["id"])
        text = self._chat(name, arm, prompt, now, len(record[FIELD])) if arm.chat else prompt
        if (known := self._known.get((name, sample))) is not None and known.prompt_text == text:
            return known  # under another clock the same text: the same call
        self._require_places(name, sample, text, len(record[FIELD]))
        pictures, made = self._processed(record, text, plain=not arm.chat)
        prepared = Prepared(
            sample,
            text,
            tuple(int(i) for i in made["input_ids"][0]),
            tuple(int(m) for m in made["attention_mask"][0]),
            self._evidence(pictures, made),
            record,
            arm.chat,
        )
        self._known[name, sample] = prepared
        return prepared

    def _processed(
        self, record: Mapping[str, Any], text: str, plain: bool
    ) -> tuple[list[Picture], dict[str, torch.Tensor]]:
        """What Pillow and the processor make of one sample; a ``plain`` prompt gets the tokenizer's
        special tokens, which a chat template writes itself."""
        sample = str(record["id"])
        decoded = [decode(data, self._where, sample) for data in self._images.read(record)]
        try:
            made = self._processor(
                text=[text],
                images=[image for image, _ in decoded],
                return_tensors="pt",
                padding=False,
                add_special_tokens=plain,
            )
        except (ValueError, TypeError, IndexError, ZeroDivisionError) as error:
            expected = "images that the checkpoint's processor accepts"
            got = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            fix = "change the image, or the processor's own configuration"
            where = f"record {sample}: {FIELD}"
            raise ContractError(self._where, where, expected, got, fix) from error
        return [picture for _, picture in decoded], dict(made)

    def _require_places(self, name: str, sample: str, text: str, images: int) -> None:
        """One word for an image in the text per image: a processor that finds none may go on
        without the image, and two where one is meant are a prompt that says the word."""
        word = self._processor.image_token
        if (places := text.count(word)) != images:
            raise ContractError(
                "contract",
                f"arms.{name}.template",
                f"a prompt with {images} times {word}, one per image",
                f"{places} times in the prompt of record {sample}",
                f"set [arms.{name}] chat = true, or write {word} into the template once per image",
            )

    def tensors(self, batch: Sequence[Prepared], padded: int, left: bool) -> dict[str, Any]:
        """What goes into the model beside ids and mask: pixels, grids, kinds of tokens.

        Args:
            batch: prepared samples.
            padded: length of the longest prompt.
            left: padding stands before shorter prompts.

        Raises:
            AttemptVoid: an image, or what the processor makes of it, is another than before.
        """
        made = [self._again(prepared) for prepared in batch]
        found: dict[str, torch.Tensor] = {}
        for name in made[0]:
            rows = [one[name] for one in made]
            if all(r.shape == (1, len(p.prompt_ids)) for r, p in zip(rows, batch, strict=True)):
                rows = [_filled(row, padded - row.shape[1], left) for row in rows]
            found[name] = torch.cat(rows)
        return found

    def _again(self, prepared: Prepared) -> dict[str, torch.Tensor]:
        assert prepared.images is not None and prepared.record is not None
        try:
            text, plain = prepared.prompt_text, not prepared.chat
            pictures, made = self._processed(prepared.record, text, plain)
        except UsageError as error:
            raise AttemptVoid("pinned-content-changed", f"{prepared.sample_id}: {error}") from error
        if self._evidence(pictures, made) != prepared.images:
            text = (
                f"{prepared.sample_id}: its images gave other pixels before the weights were loaded"
            )
            raise AttemptVoid("inputs-changed", text)
        return {name: value for name, value in made.items() if name not in OWN_COLUMNS}

    def _evidence(self, pictures: list[Picture], made: Mapping[str, torch.Tensor]) -> ImageEvidence:
        length = made["input_ids"].shape
        own = {name: value for name, value in sorted(made.items()) if name not in OWN_COLUMNS}
        outputs = {name: _output(value) for name, value in own.items() if value.shape != length}
        places = {name: _output(value) for name, value in own.items() if value.shape == length}
        return ImageEvidence(self._in_force, pictures, outputs, places)

    def facts(self) -> dict[str, Any]:
        """What tokenises and what makes pixels, for the effective settings."""
        image = self._processor.image_processor
        return super().facts() | {
            PROCESSOR: self._in_force["backend"],
            "processor.class": type(self._processor).__mro__[1].__name__,
            "processor.image_class": self._in_force["class"],
            "processor.versions": self._in_force["version"],
            "processor.rule": to_text(digest_json(_rule(image.to_dict()))),
        }

    def required(self) -> dict[str, Any]:
        """What the contract asks of them."""
        return {PROCESSOR: BACKENDS[str(self._contract.model.processor)]}

    @functools.cached_property
    def _in_force(self) -> Mapping[str, str]:
        image = self._processor.image_processor
        backend = str(getattr(image, "backend", "unknown"))
        versions = [f"transformers {transformers.__version__}", f"pillow {PIL.__version__}"]
        if backend == "torchvision":
            versions.append(f"torchvision {metadata.version('torchvision')}")
        return {
            "class": type(image).__name__,
            "backend": backend,
            "version": ", ".join(versions),
        }

    def _require_in_force(self) -> None:
        wanted = str(self._contract.model.processor)
        if self._in_force["backend"] != BACKENDS[wanted]:
            raise AttemptVoid(
                "setting-not-in-force",
                f"model.processor: contract {wanted!r} ({BACKENDS[wanted]}), in force "
                f"{self._in_force['class']} ({self._in_force['backend']})",
                dict(self._in_force),
            )


def _output(value: torch.Tensor) -> Output:
    dtype = str(value.dtype).removeprefix("torch.")
    return Output(dtype, tuple(value.shape), host_digest(value).hex())


def _filled(row: torch.Tensor, fill: int, left: bool) -> torch.Tensor:
    """A row of a batch, padded with zeros: no kind of token."""
    sides = (fill, 0) if left else (0, fill)
    return torch.nn.functional.pad(row, sides)


def _rule(own: Mapping[str, Any]) -> dict[str, str]:
    return {key: str(value) for key, value in own.items() if not key.startswith("_")}


def image_processor(contract: Contract, checkpoint: Path) -> Any:
    """What transformers resolves where the contract's image processor is asked for.

    Raises:
        CheckpointError: the checkpoint has none.
        CannotRunError: torchvision is installed and cannot be imported.
    """
    wanted = str(contract.model.processor)
    try:
        try:
            return transformers.AutoImageProcessor.from_pretrained(
                checkpoint, backend=BACKENDS[wanted], local_files_only=True
            )
        except ImportError:
            if wanted != "slow":
                raise
            return _pillow_class(checkpoint).from_pretrained(checkpoint, local_files_only=True)
    except RuntimeError as error:
        raise CannotRunError(
            "contract",
            "model.processor",
            f'the image processor "{wanted}" ({BACKENDS[wanted]})',
            f"{type(error).__name__}: {error}",
            "install the torchvision that was built for this torch",
        ) from error
    except UNLOADABLE as error:
        raise _no_processor(checkpoint, error) from error


def _pillow_class(checkpoint: Path) -> Any:
    """The class that needs no torchvision, as AutoImageProcessor does in transformers 5.17."""
    own = read_json(checkpoint / "preprocessor_config.json")
    own = own or read_json(checkpoint / "processor_config.json").get("image_processor", {})
    name = str(own.get("image_processor_type")).removesuffix("Fast").removesuffix("Pil")
    return getattr(transformers, f"{name}Pil")


UNLOADABLE = (OSError, ValueError, KeyError, AttributeError, ImportError, TypeError)
"""What transformers raises for a folder without a processor that it knows."""


def _no_processor(checkpoint: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        str(checkpoint),
        "",
        "a vision-language model with an image processor that transformers can load",
        next((line for line in str(error).splitlines() if line.strip()), type(error).__name__),
        "add preprocessor_config.json and processor_config.json to the checkpoint folder",
    )


def _processor(contract: Contract, checkpoint: Path, tokenizer: Any) -> Any:
    """The checkpoint's processor, without its part for videos, which would need torchvision."""
    image = image_processor(contract, checkpoint)
    try:
        config = transformers.AutoConfig.from_pretrained(checkpoint, local_files_only=True)
        owner = getattr(transformers, PROCESSOR_MAPPING_NAMES[config.model_type])
        still = _without_video(owner, image, tokenizer)
        return still.from_pretrained(checkpoint, local_files_only=True)
    except UNLOADABLE as error:
        raise _no_processor(checkpoint, error) from error


def _without_video(owner: Any, image: Any, tokenizer: Any) -> Any:
    """A processor class that is made of these two parts."""
    parts = {"image_processor": image, "tokenizer": tokenizer}
    names = [name for name in owner.get_attributes() if name != "video_processor"]
    if set(names) != set(parts):
        raise ValueError(f"{owner.__name__} is made of {', '.join(names)}")

    class Still(owner):  # type: ignore[misc]
        @classmethod
        def get_attributes(cls) -> list[str]:
            return names

        @classmethod
        def _get_arguments_from_pretrained(cls, *args: Any, **kwargs: Any) -> list[Any]:
            return [parts[name] for name in names]

    return Still
