"""What a sample's images were, stage by stage: raw file, decoded pixels, the processor's outputs.

One JSON text a row, and the digests of its parts in columns of their own: the judge compares
the digests, a person reads the text. Both are derived here and nowhere else. Knows no library that
decodes or processes, and no model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fleet.contract.canonical import canonical_json, digest_json, sha256

PROCESSOR = "processor.backend"
"""The effective setting that a replay with images has and no other."""

DECODED_HEADER = b"fleet-image-1\n"

TEXT_COLUMN = "images"
DIGEST_COLUMNS = (
    "image_file_sha256",
    "image_decoded_sha256",
    "image_processed_sha256",
    "image_places_sha256",
)


@dataclass(frozen=True)
class Picture:
    """One image. ``sha256`` of its file, ``decoded_sha256`` of its pixels; both in hex."""

    sha256: str
    mode: str
    width: int
    height: int
    decoded_sha256: str


@dataclass(frozen=True)
class Output:
    """One tensor that a processor made; ``sha256`` is its tensor digest in hex."""

    dtype: str
    shape: tuple[int, ...]
    sha256: str


@dataclass(frozen=True)
class ImageEvidence:
    """All images of a sample, and what the processor made of them together with the prompt.

    ``processor``: class, backend and versions of what was in force. ``outputs``: name -> tensor,
    without token ids and attention mask, which have columns of their own. ``places``: those that
    have one entry a token and say where the images stand; they follow from the prompt too.
    """

    processor: Mapping[str, str]
    pictures: Sequence[Picture]
    outputs: Mapping[str, Output]
    places: Mapping[str, Output]

    def columns(self) -> dict[str, Any]:
        """The columns of one row."""
        body = {
            "processor": dict(self.processor),
            "images": [asdict(picture) for picture in self.pictures],
            "outputs": {name: asdict(output) for name, output in self.outputs.items()},
            "places": {name: asdict(output) for name, output in self.places.items()},
        }
        text = canonical_json(body).decode("utf-8")
        return {TEXT_COLUMN: text, **image_digests(text)}


def decoded_digest(mode: str, width: int, height: int, parts: Sequence[bytes]) -> bytes:
    """Digest of decoded pixels: mode and size, then each part (pixels, palette) behind its length;
    32 bytes."""
    header = DECODED_HEADER + f"{mode}\n{width},{height}\n".encode()
    return sha256(header + b"".join(f"{len(part)}\n".encode() + part for part in parts))


def image_digests(text: str) -> dict[str, bytes]:
    """The digest columns that a row's text stands for.

    Raises:
        ValueError: the text is not one of :meth:`ImageEvidence.columns`.
    """
    try:
        body = json.loads(text)
        images = body["images"]
        files = [image["sha256"] for image in images]
        decoded = [
            [image[key] for key in ("mode", "width", "height", "decoded_sha256")]
            for image in images
        ]
        made, places = (
            {name: output["sha256"] for name, output in body[part].items()}
            for part in ("outputs", "places")
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not the evidence of images: {error}") from error
    parts = (files, decoded, made, places)
    return {name: digest_json(part) for name, part in zip(DIGEST_COLUMNS, parts, strict=True)}
