"""What somebody could do to a landing: to the bytes of each file, and to what the files say.

A tampering is done to a landing in place; :func:`undone` puts every file back as it was.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.contract.canonical import canonical_json, sha256, to_text
from fleet.evidence.landing import Landing, file_sha256
from fleet.evidence.ledger import START, campaigns, chain_folder, salvage
from fleet.evidence.manifest import Manifest
from fleet.evidence.records import row_digests
from fleet.evidence.tally import tally_rows
from tests.landing_builder import rewrite_part

HARMLESS: Mapping[str, str] = {
    ".lease": "a lock: it is empty, and nobody reads it",
    "stdout.txt": "no verdict reads what a process printed; fleet logs says that it was altered",
    "stderr.txt": "as stdout.txt",
}
"""Name of a file -> why its bytes change no verdict."""

Change = Callable[[Path], None]


@dataclass(frozen=True)
class Tampering:
    """``file``: what was tampered with, relative to the landing; ``do`` takes the landing."""

    name: str
    file: str
    do: Change

    def __str__(self) -> str:
        return f"{self.file}: {self.name}"

    def is_named_in(self, text: str) -> bool:
        """Does a text name the file: its own name, and its folder's."""
        path = Path(self.file)
        return path.name in text and (path.parent.name in text or len(path.parts) == 1)


def files_of(landing: Path) -> list[str]:
    """Every file, relative to the landing."""
    return sorted(str(p.relative_to(landing)) for p in landing.rglob("*") if p.is_file())


def of_bytes(
    landing: Path, file: str, chance: random.Random, flips: int, other: Path | None = None
) -> Iterator[Tampering]:
    """Everything that can be done to the bytes of one file.

    Args:
        landing: where it is.
        file: relative to it.
        chance: draws the places.
        flips: single bytes that are changed, each alone.
        other: another landing, whose file of the same kind takes the place.
    """
    size = (landing / file).stat().st_size
    for _ in range(flips):
        at, bit = chance.randrange(size), 1 << chance.randrange(8)
        yield Tampering(f"bit {bit} of byte {at}", file, _edit(file, at, bit))
    cut = chance.randrange(1, size)
    yield Tampering(f"cut to {cut} bytes", file, _write(file, lambda data: data[:cut]))
    yield Tampering("emptied", file, _write(file, lambda _: b""))
    yield Tampering("extended", file, _write(file, lambda data: data + b"\n"))
    yield Tampering("dropped", file, lambda root: (root / file).unlink())
    if other is not None:
        theirs = (other / _counterpart(file, landing, other)).read_bytes()
        if theirs != (landing / file).read_bytes():
            yield Tampering("of another landing", file, _write(file, lambda _: theirs))


def _counterpart(file: str, landing: Path, other: Path) -> str:
    """Of the other landing: the file at the same place among those that are called so."""
    mine, theirs = ([f for f in files_of(r) if _kind(f) == _kind(file)] for r in (landing, other))
    return theirs[min(mine.index(file), len(theirs) - 1)]


def _kind(file: str) -> tuple[str, str]:
    path = Path(file)
    own = "*" if path.parent.name == "contracts" else path.name
    return path.parts[0], own


def _edit(file: str, at: int, bit: int) -> Change:
    def change(data: bytes) -> bytes:
        return data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]

    return _write(file, change)


def _write(file: str, change: Callable[[bytes], bytes]) -> Change:
    def do(root: Path) -> None:
        path = root / file
        path.write_bytes(change(path.read_bytes()))

    return do


@contextmanager
def undone(landing: Path) -> Iterator[None]:
    """Whatever is done inside is undone after."""
    kept = landing.with_name(f"{landing.name}-kept")
    shutil.copytree(landing, kept)
    try:
        yield
    finally:
        shutil.rmtree(landing)
        kept.rename(landing)


def campaign_of(landing: Landing, attempt: str) -> str:
    """The chain that planned it."""
    return next(
        name
        for name in campaigns(landing)
        if attempt in {e.attempt for e in salvage(landing, name) if e.kind == "planned"}
    )


def change_row(landing: Landing, attempt: str) -> Path:
    """One more space behind one raw answer; the part stays a part, and its rows agree with
    themselves. Returns the part."""
    part = landing.parts(attempt)[0]

    def edit(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        rows[0]["raw_answer"] += " "
        rows[0] |= row_digests(rows[0])
        return rows

    rewrite_part(part, edit)
    return part


def name_the_parts(landing: Landing, attempt: str) -> Path:
    """The manifest names the parts as they are now, and the roots of their rows."""
    path = landing.manifest(attempt)
    manifest = Manifest.from_bytes(path.read_bytes())
    raw = json.loads(path.read_bytes())
    for part in raw["parts"]:
        file = landing.attempt(attempt) / part["name"]
        part |= {"sha256": file_sha256(file), "num_bytes": file.stat().st_size}
    tally = tally_rows(landing.parts(attempt), manifest.arms, in_order=True)
    raw |= {"roots": tally.roots, "arm_roots": tally.arm_roots}
    path.write_bytes(canonical_json(raw))
    return path


def accept_the_manifest(landing: Landing, attempt: str) -> Path:
    """The ledger accepts the manifest as it is now; the entries after that are left as they are."""
    folder = chain_folder(landing, campaign_of(landing, attempt))
    for path in sorted(folder.iterdir()):
        raw = json.loads(path.read_bytes())
        if (raw["kind"], raw["attempt"]) == ("accepted", attempt):
            raw["body"]["manifest_sha256"] = file_sha256(landing.manifest(attempt))
            path.write_bytes(canonical_json(raw))
            return path
    raise AssertionError(f"nothing accepted {attempt}")


def make_whole(chain: Path) -> None:
    """Every entry holds the digest of the one before again."""
    head = START
    for path in sorted(chain.iterdir()):
        data = canonical_json(json.loads(path.read_bytes()) | {"previous": head})
        path.write_bytes(data)
        head = to_text(sha256(data))


def forge(landing: Landing, attempt: str) -> None:
    """Another row, and everything that vouches for it made to match."""
    change_row(landing, attempt)
    name_the_parts(landing, attempt)
    accept_the_manifest(landing, attempt)
    make_whole(chain_folder(landing, campaign_of(landing, attempt)))


def drop_campaign(landing: Landing, campaign: str) -> None:
    """Its chain, and every attempt that it planned."""
    for entry in salvage(landing, campaign):
        if entry.kind == "planned":
            shutil.rmtree(landing.attempt(entry.attempt))
    shutil.rmtree(chain_folder(landing, campaign))
