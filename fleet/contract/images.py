"""The images of a record: files beside the dataset, each named with the digest of its bytes.

A record's ``images`` is a list of ``{"file": PATH, "sha256": DIGEST}``, PATH relative to the
dataset's own file. The digests stand in the record, so that whatever pins the records pins every
byte of every image. In Parquet the bytes lie in the file itself and ``file`` is left out. Knows no
pixel and no model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.contract.canonical import from_text, to_text
from fleet.contract.model import Contract
from fleet.contract.wording import shown
from fleet.errors import ContractError, DatasetError

FIELD = "images"
REFERENCE = '{"file": "FOLDER/NAME.png", "sha256": "sha256:..."}'


@dataclass(frozen=True)
class Image:
    """One image of a record. ``file`` is None where the bytes lie beside the record."""

    file: str | None
    sha256: bytes


def images_of(record: Mapping[str, Any], where: str) -> tuple[Image, ...]:
    """The images of one record, in order; none when it has no such field.

    Raises:
        DatasetError: the field is there and is no list of images.
    """
    value = record.get(FIELD, ())
    if not isinstance(value, list | tuple):
        raise _wrong(where, record, f"a list of {REFERENCE}", shown(value))
    return tuple(_image(item, where, record) for item in value)


def _image(item: Any, where: str, record: Mapping[str, Any]) -> Image:
    if not isinstance(item, Mapping) or item.keys() - {"file"} != {"sha256"}:
        raise _wrong(where, record, REFERENCE, shown(item))
    file, digest = item.get("file"), item["sha256"]
    try:
        return Image(None if file is None else str(file), from_text(digest))
    except (AttributeError, TypeError, ValueError):
        expected = 'sha256 = "sha256:" and 64 hexadecimal digits'
        raise _wrong(where, record, expected, shown(digest)) from None


def read_image(image: Image, dataset: Path, record: Mapping[str, Any]) -> bytes:
    """The bytes of an image file, held against its digest.

    Args:
        image: as the record names it.
        dataset: the file that holds the record.
        record: for messages.

    Raises:
        DatasetError: outside the dataset's folder, missing, or another file.
    """
    where, path = str(dataset), _inside(image, dataset, record)
    try:
        data = path.read_bytes()
    except OSError as error:
        got = f"{path}: {error.strerror or type(error).__name__}"
        raise _wrong(where, record, "a readable image file", got, "restore the file") from error
    if (found := hashlib.sha256(data).digest()) != image.sha256:
        fix = "restore the file, or review it and put its digest into the record"
        got = f"{to_text(found)} for {path}"
        raise _wrong(where, record, to_text(image.sha256), got, fix)
    return data


def _inside(image: Image, dataset: Path, record: Mapping[str, Any]) -> Path:
    """The file's path; one that leaves the folder, also through a link, is refused."""
    folder = dataset.parent.resolve()
    path = (folder / (image.file or "")).resolve()
    if image.file is None or not path.is_relative_to(folder) or path == folder:
        expected = "an image file inside the dataset's folder, by a relative path"
        fix = "put the file beside the dataset"
        raise _wrong(str(dataset), record, expected, repr(image.file), fix)
    return path


def check_images(
    contract: Contract, where: str, dataset: Path, records: Iterable[Mapping[str, Any]]
) -> Iterator[Mapping[str, Any]]:
    """Pass records on; those of a vision contract have images, those of a text contract none.

    Raises:
        ContractError: the contract's kind and the dataset do not go together.
        DatasetError: an image that is not there, or not the one that the record names.
    """
    vision = contract.model.kind == "vision"
    for record in records:
        images = images_of(record, str(dataset)) if vision or _has_images(record) else ()
        if vision != bool(images):
            raise _other_kind(where, vision, record)
        for image in images:
            if image.file is not None or not in_parquet(dataset):
                read_image(image, dataset, record)
        yield record


def in_parquet(dataset: Path) -> bool:
    """Do the bytes of the images lie in the dataset's own file?"""
    return dataset.suffix == ".parquet"


def _has_images(record: Mapping[str, Any]) -> bool:
    """A text dataset may call any field ``images`` that does not hold images."""
    value = record.get(FIELD)
    return isinstance(value, list) and any(isinstance(v, dict) and "sha256" in v for v in value)


def _other_kind(where: str, vision: bool, record: Mapping[str, Any]) -> ContractError:
    if vision:
        expected = 'a dataset whose every record has images, for kind = "vision"'
        got = f"record {record['id']} without images"
        return ContractError(where, "dataset.name", expected, got, 'write kind = "text"')
    expected = 'a dataset without images, for kind = "text"'
    got = f"record {record['id']} with images, which no text model would see"
    return ContractError(where, "model.kind", expected, got, 'write kind = "vision"')


def _wrong(
    where: str, record: Mapping[str, Any], expected: str, got: str, fix: str = "correct the record"
) -> DatasetError:
    return DatasetError(where, f"record {record.get('id')}: {FIELD}", expected, got, fix)
