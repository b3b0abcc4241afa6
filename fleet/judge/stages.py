"""The stages of a replay in the order data flows, and the layer that a difference there names.

Knows no row and no attempt. Keeps the rule that the earliest differing stage names the layer, and
that nothing is named which was not localised: without a trace a difference of logits is "2 or 3".
Settings stand apart: they are a candidate cause of what differs after them, never the difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fleet.evidence.images import DIGEST_COLUMNS

LAYERS: dict[int, str] = {
    1: "input",
    2: "framework",
    3: "kernel",
    4: "output/protocol",
    5: "fleet",
}


@dataclass(frozen=True)
class Stage:
    """One place where two replays can part. ``layers`` has two entries when it is not localised."""

    name: str
    layers: tuple[int, ...]
    words: str


STAGES: tuple[Stage, ...] = (
    Stage("sample", (4,), "sample identity and protocol"),
    Stage("image_file", (1,), "image file"),
    Stage("raw_record", (1,), "raw record"),
    Stage("image_decoded", (1,), "decoded image"),
    Stage("image_processed", (1,), "image resized and normalised"),
    Stage("prompt", (1,), "rendered prompt text"),
    Stage("prompt_ids", (1,), "prompt token ids"),
    Stage("attention_mask", (1,), "attention mask"),
    Stage("image_places", (1,), "places of the images among the tokens"),
    Stage("checkpoint", (2,), "checkpoint tensors"),
    Stage("post_init_weights", (3,), "weights after initialisation, checkpoint equal"),
    Stage("settings", (2,), "effective settings or batch plan"),
    Stage("platform", (5,), "platform"),
    Stage("logits", (2, 3), "logits with equal inputs"),
    Stage("sampler", (2,), "sampler or stop rule: logits equal, token differs"),
    Stage("output", (4,), "output: token ids and logits equal, raw answer or count differs"),
    Stage("parser", (4,), "parser: raw answer equal, parsed answer differs"),
    Stage("end_weights", (5,), "weights changed during the replay"),
)
"""``modules`` joins before ``logits`` when traces are judged. A record names its images by digest,
so another file makes another record too: the file comes first. How many ids stand for an image
follows from its size once resized, so the pixels come before the ids."""

BY_NAME: dict[str, Stage] = {stage.name: stage for stage in STAGES}
ORDER: dict[str, int] = {stage.name: i for i, stage in enumerate(STAGES)}

INPUT_COLUMNS: dict[str, str] = {
    "image_file_sha256": "image_file",
    "raw_record_sha256": "raw_record",
    "image_decoded_sha256": "image_decoded",
    "image_processed_sha256": "image_processed",
    "prompt_sha256": "prompt",
    "prompt_ids_sha256": "prompt_ids",
    "attention_mask_sha256": "attention_mask",
    "image_places_sha256": "image_places",
}
"""Row column -> stage, in stage order."""


def input_columns(*rows: Mapping[str, Any]) -> tuple[str, ...]:
    """The input columns that these rows must have: those of images where any of them has images."""
    with_images = any(name in row for row in rows for name in DIGEST_COLUMNS)
    return tuple(c for c in INPUT_COLUMNS if with_images or c not in DIGEST_COLUMNS)


def earliest(names: Iterable[str]) -> str | None:
    """The first of some stages, ``settings`` only when nothing else differs."""
    ordered = sorted(set(names), key=ORDER.__getitem__)
    values = [name for name in ordered if name != "settings"]
    return next(iter(values or ordered), None)


def localise(names: Iterable[str]) -> tuple[int | None, tuple[int, ...]]:
    """``(layer, candidate layers)`` for the set of stages that differ.

    The earliest differing stage other than *settings* gives the candidates. When settings differ
    too and come before that stage, their layer (2) is one more candidate, for a harmless setting
    must not outrank a racy kernel and a harmful one must not hide behind it. The layer is the
    candidate when there is one, and None when there are more.
    """
    differing = set(names)
    first = earliest(differing)
    if first is None:
        return None, ()
    candidates = set(BY_NAME[first].layers)
    if "settings" in differing and ORDER["settings"] < ORDER[first]:
        candidates.update(BY_NAME["settings"].layers)
    layers = tuple(sorted(candidates))
    return (layers[0] if len(layers) == 1 else None), layers


def layer_words(layer: int | None, layers: tuple[int, ...]) -> str:
    """``layer 1, input`` or ``2 or 3, not localised``."""
    if layer is not None:
        return f"layer {layer}, {LAYERS[layer]}"
    if not layers:
        return "not localised"
    return f"{' or '.join(str(n) for n in layers)}, not localised"
