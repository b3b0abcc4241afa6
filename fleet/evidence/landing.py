"""The landing folder: the truth that every store is derived from. Layout, format 1.

    FORMAT.json                          {"format": 1}
    ledger/<campaign>/<seq>.json         write-once entries, one hash chain per campaign
    attempts/<attempt>/part-00000.parquet ...
    attempts/<attempt>/stdout.txt, stderr.txt
    attempts/<attempt>/manifest.json     written last
    contracts/<execution id hex>.json    what an execution id stands for

A landing in object storage is such a folder, its mirror, and what it mirrors: an object is created
there first, under the server's own condition that there is none, then here.

Knows no verdict and no engine. Every object is written once: to a temporary name, flushed, then
linked to its own name, which fails if that name exists.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fleet.contract.canonical import canonical_json, to_text
from fleet.errors import StoreError
from fleet.evidence.remote import Remote

OWN = ".mirror"
"""Folder of a mirror for what is no object of the landing."""
LANDING_FORMAT = 1
FORMAT = canonical_json({"format": LANDING_FORMAT})
"""What the marker of a landing holds."""


def write_once(path: Path, data: bytes) -> None:
    """Create ``path`` with ``data``, whole or not at all.

    Raises:
        FileExistsError: when it exists; the old content stays.
        OSError: when the disk refuses; nothing is left under ``path``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}.{secrets.token_hex(6)}"
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def file_sha256(path: Path) -> str:
    """Digest of a file's bytes as ``sha256:<hex>``, read 4 MiB at a time."""
    import hashlib

    hasher = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            hasher.update(chunk)
    return to_text(hasher.digest())


@dataclass(frozen=True)
class Landing:
    """Paths of one landing folder; ``remote``: what it mirrors, None for a plain folder."""

    root: Path
    remote: Remote | None = None

    @classmethod
    def open(cls, root: Path, create: bool = False, remote: Remote | None = None) -> Landing:
        """Check the format, creating an empty landing when asked to.

        Raises:
            StoreError: when it is missing, unwritable, newer than this code, or in object storage
                that does not answer or cannot create an object exclusively.
        """
        marker = root / "FORMAT.json"
        if create and remote is not None:
            _claim(remote)
        if create and remote is None and (root / OWN).exists():
            fix = "pass the URL as --landing, or copy the folder without .mirror"
            raise StoreError(str(root), "", "a landing folder", "a mirror of object storage", fix)
        if not marker.exists():
            if not create:
                got = f"none (no {marker.name})"
                raise StoreError(str(root), "", "a landing folder", got, "fleet certify CONTRACT")
            _create(root, marker)
        found = _format(marker)
        if found != LANDING_FORMAT:
            raise StoreError(
                str(marker),
                "format",
                f"landing format {LANDING_FORMAT}",
                repr(found),
                "use the fleet version that wrote it, or another --landing",
            )
        if create and not os.access(root, os.W_OK):
            raise StoreError(
                str(root), "", "a writable folder", "a read-only one", "pass --landing DIR"
            )
        return cls(root, remote)

    @property
    def place(self) -> str:
        """Where it is, as ``--landing`` takes it."""
        return str(self.root) if self.remote is None else self.remote.url

    def create(self, name: str, data: bytes) -> None:
        """Write an object once: where it is mirrored from first, then here.

        Raises:
            FileExistsError: when another writer made it; the old content stays.
            LandingUnreachable: object storage does not answer; nothing was written here.
            OSError: when the disk refuses.
        """
        if self.remote is not None:
            self.remote.create(name, data)
        try:
            write_once(self.root / name, data)
        except FileExistsError:  # of a mirror: a pull was faster
            if self.remote is None or (self.root / name).read_bytes() != data:
                raise

    @property
    def staging(self) -> Path:
        """Where a replay writes its attempt: into the landing, or beside a mirror until it is
        shipped, for a mirror holds nothing that its source has not."""
        return self.root if self.remote is None else self.root / OWN / "staging"

    @property
    def ledger(self) -> Path:
        """Folder of the campaign chains."""
        return self.root / "ledger"

    def attempt(self, attempt: str) -> Path:
        """Folder of one attempt."""
        return self.root / "attempts" / attempt

    def manifest(self, attempt: str) -> Path:
        """Manifest of one attempt (exists only when the attempt was closed)."""
        return self.attempt(attempt) / "manifest.json"

    def parts(self, attempt: str) -> list[Path]:
        """Landed parts in order, whether or not a manifest names them."""
        return sorted(self.attempt(attempt).glob("part-*.parquet"))

    def tables(self, attempt: str) -> list[Path]:
        """Everything that landed beside the manifest to be judged: parts, and files of a trace."""
        return sorted(self.attempt(attempt).glob("*.parquet"))

    def attempts(self) -> Iterator[str]:
        """Names of all attempt folders, sorted."""
        folder = self.root / "attempts"
        return iter(
            sorted(p.name for p in folder.iterdir() if p.is_dir()) if folder.exists() else []
        )

    def write_contract(self, execution_id: bytes, body: dict[str, object]) -> None:
        """Keep what an execution id stands for; a second writer of the same id changes nothing."""
        try:
            self.create(f"contracts/{execution_id.hex()}.json", canonical_json(body))
        except FileExistsError:
            return

    def contract(self, execution_id: bytes) -> Path:
        """What an execution id stands for."""
        return self.root / "contracts" / f"{execution_id.hex()}.json"

    def landed(self, attempt: str) -> dict[str, str]:
        """Name -> digest of the parts that are there now."""
        return {path.name: file_sha256(path) for path in self.parts(attempt)}


def _format(marker: Path) -> object:
    """What the marker says; its text when that is not how anybody writes it."""
    data = marker.read_bytes()
    try:
        found = json.loads(data)
    except ValueError:
        return data[:40]
    told = found.get("format") if isinstance(found, dict) else found
    return data[:40] if told == LANDING_FORMAT and data != FORMAT else told


def _claim(remote: Remote) -> None:
    """The marker doubles as the proof that the server creates an object only once."""
    remote.claim("FORMAT.json", FORMAT)
    found = remote.read("FORMAT.json")
    if found != FORMAT:
        fix = "use the fleet version that wrote it, or another --landing"
        raise StoreError(remote.url, "format", FORMAT.decode(), repr(found[:40]), fix)


def _create(root: Path, marker: Path) -> None:
    try:
        root.mkdir(parents=True, exist_ok=True)
        write_once(marker, FORMAT)
    except OSError as error:
        if marker.is_file():  # another process made it at the same moment
            return
        raise StoreError(
            str(root), "", "a writable folder", str(error.strerror or error), "pass --landing DIR"
        ) from error
