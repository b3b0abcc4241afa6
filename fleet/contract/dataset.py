"""A dataset: a small TOML that pins one file of records by digest, JSON Lines or Parquet.

Every record has a unique ``id`` and a gold ``answer``; its other fields belong to the templates and
parsers, but for ``images`` (:mod:`fleet.contract.images`). Knows no prompt and no model. Keeps: the
questions are those the TOML pins, byte for byte, each exactly once, or nothing starts.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.contract.canonical import from_text, to_text
from fleet.contract.images import in_parquet
from fleet.contract.keys import nearest
from fleet.contract.parquet import parquet_lines
from fleet.contract.records import parse_records, reread_records, stream_records
from fleet.contract.sample_ids import SampleIds, held_once
from fleet.contract.source import NAME, read_toml
from fleet.contract.wording import NAME_WORDS, shown
from fleet.errors import DatasetError

__all__ = ["LoadedDataset", "list_datasets", "load_dataset", "parse_records"]

REQUIRED = ("file", "sha256")
OPTIONAL = ("description", "license")


@dataclass(frozen=True)
class LoadedDataset:
    """``path`` is the TOML, ``file`` the records, ``digest`` that of the file's bytes (32 bytes).

    ``ids`` are the sample ids in file order. Records are not held: a large data set is read again,
    and checked again, by whoever wants them.
    """

    name: str
    path: Path
    digest: bytes
    ids: SampleIds
    file: Path

    def stream(self) -> Iterator[tuple[Mapping[str, Any], bytes]]:
        """Each record with its line's bytes (without newline), in file order.

        Raises:
            DatasetError: the file is not the pinned one any more.
        """
        yield from _stream(self.path, self.file, self.digest, reread_records)

    @property
    def records(self) -> tuple[Mapping[str, Any], ...]:
        """All records, in file order."""
        return tuple(record for record, _ in self.stream())

    @property
    def raw(self) -> tuple[bytes, ...]:
        """All lines, in file order."""
        return tuple(line for _, line in self.stream())


def load_dataset(name: str, search: Sequence[Path], near: Path | None = None) -> LoadedDataset:
    """Find, verify and parse one dataset.

    Args:
        name: of the TOML, without its suffix.
        search: folders that hold ``datasets/``.
        near: the contract file (or its folder): ``../datasets`` beside it is looked at first.

    Raises:
        DatasetError: it is missing, changed or malformed.
    """
    path = _find(name, _folders(search, near))
    file, pinned = _pin(path, read_toml(path, DatasetError))
    _require_pinned(path, file, pinned, _sha256(path, file))
    ids = held_once(record["id"] for record, _ in _stream(path, file, pinned, stream_records))
    return LoadedDataset(name, path, pinned, ids, file)


def _require_pinned(path: Path, file: Path, pinned: bytes, digest: bytes) -> None:
    if digest != pinned:
        raise DatasetError(
            str(path),
            "sha256",
            to_text(pinned),
            f"{to_text(digest)} for {file}",
            f'review the change, then put sha256 = "{to_text(digest)}" into {path.name}; '
            "this makes another execution id",
        )


def dataset_digest(name: str, search: Sequence[Path], near: Path | None = None) -> bytes:
    """What :func:`load_dataset` would load, without its records being looked at.

    Raises:
        DatasetError: it is missing or changed.
    """
    path = _find(name, _folders(search, near))
    file, pinned = _pin(path, read_toml(path, DatasetError))
    _require_pinned(path, file, pinned, _sha256(path, file))
    return pinned


Reader = Callable[[Iterable[bytes], str], Iterator[tuple[Mapping[str, Any], bytes]]]


def _stream(
    path: Path, file: Path, pinned: bytes, read: Reader
) -> Iterator[tuple[Mapping[str, Any], bytes]]:
    """Records and lines, held against the pinned digest once all have been read."""
    hasher = hashlib.sha256()

    def lines() -> Iterator[bytes]:
        with file.open("rb") as opened:
            for line in opened:
                hasher.update(line)
                yield line.removesuffix(b"\n")

    if in_parquet(file):
        yield from read(parquet_lines(file), str(file))
        _require_pinned(path, file, pinned, _sha256(path, file))
    else:
        yield from read(lines(), str(file))
        _require_pinned(path, file, pinned, hasher.digest())


def list_datasets(search: Sequence[Path]) -> list[str]:
    """Names of all datasets in the search path, sorted."""
    return _names([folder / "datasets" for folder in search])


def _names(folders: Sequence[Path]) -> list[str]:
    return sorted({path.stem for folder in folders for path in folder.glob("*.toml")})


def _folders(search: Sequence[Path], near: Path | None) -> list[Path]:
    folders = [folder / "datasets" for folder in search]
    if near is None:
        return folders
    beside = near if near.is_dir() else near.parent
    return [beside.resolve().parent / "datasets", *folders]


def _find(name: str, folders: Sequence[Path]) -> Path:
    if NAME.fullmatch(name):
        for folder in folders:
            if (folder / f"{name}.toml").is_file():
                return (folder / f"{name}.toml").resolve()
    known = _names(folders)
    close = nearest(name, known)
    raise DatasetError(
        os.pathsep.join(str(folder) for folder in folders),
        "",
        f"a dataset named {name!r}" if NAME.fullmatch(name) else NAME_WORDS,
        f"only these: {', '.join(known) or '(none)'}",
        f'did you mean "{close}"?' if close else f"write {name}.toml there, see configs/README.md",
    )


def _pin(path: Path, raw: Mapping[str, Any]) -> tuple[Path, bytes]:
    """The file's path and the digest it is pinned by."""
    known = (*REQUIRED, *OPTIONAL)
    for key, value in raw.items():
        if key not in known:
            close = nearest(key, known)
            fix = f'did you mean "{close}"?' if close else "remove it"
            raise DatasetError(str(path), key, f"one of {', '.join(known)}", "an unknown key", fix)
        if not isinstance(value, str):
            fix = f"write {key} in quotation marks"
            raise DatasetError(str(path), key, "a string", shown(value), fix)
    for key in REQUIRED:
        if not raw.get(key):
            raise DatasetError(str(path), key, "a string", "no such key", f"add {key} = ...")
    return path.parent / raw["file"], _digest(path, raw["sha256"])


def _digest(path: Path, text: str) -> bytes:
    try:
        return from_text(text)
    except ValueError:
        raise DatasetError(
            str(path),
            "sha256",
            '"sha256:" and 64 hexadecimal digits',
            shown(text),
            "take the digest from `sha256sum FILE`",
        ) from None


def _sha256(path: Path, file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").digest()
    except OSError as error:
        raise DatasetError(
            str(path),
            "file",
            "a readable file, relative to this TOML",
            f"{file}: {error.strerror or type(error).__name__}",
            "correct the path or restore the file",
        ) from error
