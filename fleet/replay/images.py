"""The bytes and the decoded pixels of a sample's images, read when they are wanted and not kept.

Bytes come from files beside the dataset or out of its Parquet, and are held against the digests in
the record each time. Pillow decodes; what it gave is digested as it is, before any processor.
Knows no processor and no model.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image as Pillow

from fleet.contract.canonical import sha256, to_text
from fleet.contract.images import images_of, in_parquet, read_image
from fleet.contract.parquet import parquet_images, row_groups
from fleet.errors import DatasetError
from fleet.evidence.images import Picture, decoded_digest

UNDECODABLE = (
    OSError,
    ValueError,
    SyntaxError,
    struct.error,
    EOFError,
    Pillow.DecompressionBombError,
)
"""What Pillow raises for bytes that are no image, or a broken one."""


class Images:
    """The images of one dataset. One row group of a Parquet is held at a time."""

    def __init__(self, dataset: Path) -> None:
        self._dataset = dataset
        self._groups: dict[str, int] = {}
        self._held: tuple[int, dict[str, list[bytes]]] = (-1, {})

    def read(self, record: Mapping[str, Any]) -> list[bytes]:
        """The bytes of a record's image files, in order.

        Raises:
            DatasetError: an image that is missing, elsewhere, or another one.
        """
        images = images_of(record, str(self._dataset))
        if not in_parquet(self._dataset):
            return [read_image(image, self._dataset, record) for image in images]
        found = self._from_parquet(str(record["id"]))
        if (got := [sha256(data) for data in found]) != [image.sha256 for image in images]:
            expected = ", ".join(to_text(image.sha256) for image in images)
            words = ", ".join(map(to_text, got)) or "no image"
            raise DatasetError(str(self._dataset), str(record["id"]), expected, words, "restore it")
        return found

    def _from_parquet(self, sample: str) -> list[bytes]:
        if not self._groups:
            self._groups = row_groups(self._dataset)
        group = self._groups[sample]
        if self._held[0] != group:
            self._held = group, parquet_images(self._dataset, group)
        return self._held[1][sample]


def decode(data: bytes, where: str, sample: str) -> tuple[Any, Picture]:
    """A Pillow image and what is known of it.

    Args:
        data: the bytes of an image file.
        where: of which dataset, for messages.
        sample: of which record.

    Raises:
        DatasetError: Pillow cannot decode them.
    """
    try:
        image = Pillow.open(io.BytesIO(data))
        image.load()
    except UNDECODABLE as error:
        expected = "an image that Pillow can decode"
        got = f"{type(error).__name__}: {error}"
        fix = "restore the image, or take the record out"
        raise DatasetError(where, f"record {sample}: images", expected, got, fix) from error
    parts = [image.tobytes(), *_palette(image)]
    digest = decoded_digest(image.mode, image.width, image.height, parts)
    own = sha256(data).hex()
    return image, Picture(own, image.mode, image.width, image.height, digest.hex())


def _palette(image: Any) -> list[bytes]:
    """What the indices of a palette image stand for."""
    if image.mode not in ("P", "PA"):
        return []
    return [bytes(image.getpalette() or ()), repr(image.info.get("transparency")).encode()]
