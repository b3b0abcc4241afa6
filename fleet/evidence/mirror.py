"""A local folder that mirrors a landing in object storage: the same names, each fetched once.

Every object is written once, so what was mirrored must stay as it was. One that changed or vanished
at its source is evidence altered: the mirror keeps the bytes it saw first and the fact, for good;
:func:`altered` tells whoever judges. An attempt's rows may vanish where the ledger says that they
were pruned. Knows no ledger entry beyond that and no verdict.

    .mirror/seen.json      name -> size and etag at the source, size and mtime here
    .mirror/altered.jsonl  what changed or vanished, one line each, appended
    .mirror/staging/       attempts that were not shipped yet, or could not be
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from fleet.errors import StoreError, UsageError
from fleet.evidence.landing import FORMAT, OWN, Landing, write_once
from fleet.evidence.remote import Remote, Stamp, require_url
from fleet.evidence.retired import retired
from fleet.evidence.whole import replaced

AT_A_TIME = 16
"""Objects fetched side by side: most are small, and a request waits more than it moves."""

_OURS = re.compile(r"(?:ledger|attempts)/[^/.\0][^/\0]*/[^/.\0][^/\0]*|contracts/[^/.\0][^/\0]*")

Local = tuple[int, int]


@dataclass(frozen=True)
class Pulled:
    """What one pull did: objects fetched, and what it found altered for the first time."""

    fetched: int = 0
    altered: tuple[str, ...] = ()


def site(text: str, cache: Path) -> tuple[Path, Remote | None]:
    """What ``--landing`` means: a folder, or the mirror of a URL below the cache and the URL.

    Raises:
        UsageError: a URL that no landing can be at.
    """
    if "://" not in text:
        return Path(text), None
    if text.startswith("file://"):
        parts = urlsplit(text)
        if parts.netloc or not parts.path.startswith("/") or parts.query or parts.fragment:
            raise UsageError("--landing", "", "file:///FOLDER", text, "or pass the folder itself")
        return Path(unquote(parts.path)), None
    url = require_url(text)
    return cache / "landings" / hashlib.sha256(url.encode()).hexdigest()[:16], Remote(url)


def mirrored(root: Path, remote: Remote | None) -> Landing:
    """The landing as the last pull left it; pulled when it never was.

    Raises:
        StoreError: there is none, or object storage does not answer.
    """
    if remote is not None and not (root / "FORMAT.json").exists():
        pull(Landing(root, remote))
    return Landing.open(root, remote=remote)


def altered(landing: Landing) -> dict[str, str]:
    """Name of an object -> what became of it at its source after it was mirrored, in words."""
    path = landing.root / OWN / "altered.jsonl"
    if not path.exists():
        return {}
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return {line["name"]: line["words"] for line in lines}
    except (ValueError, KeyError, TypeError) as error:
        fix = f"remove {landing.root}: it is pulled again"
        raise StoreError(str(path), "", "one JSON object a line", str(error), fix) from error


def pull(landing: Landing, under: str = "") -> Pulled:
    """Fetch what the mirror lacks, and compare what it has; nothing to do for a plain folder.

    Args:
        landing: the mirror and its source.
        under: only names that begin so (``attempts/<id>/``); all when empty.

    Raises:
        LandingUnreachable: after bounded retries; whole objects that came by then stay.
        StoreError: there is no landing, or one of another format.
    """
    remote = landing.remote
    if remote is None:
        return Pulled()
    _require_landing(landing, remote)
    with _locked(landing.root):
        mirror = _Mirror(landing.root, remote, _read_seen(landing.root))
        there = mirror.listing(under)
        try:
            fetched = sum(mirror.bring(there, names) for names in _in_order(there))
        finally:
            mirror.write_seen()
        changed = mirror.changed(there, under)
        gone = mirror.gone(landing, there, under)
        mirror.write_seen()
        return Pulled(fetched, tuple(_record(landing, changed | gone)))


@dataclass
class _Mirror:
    """One pull's view of the folder, its source, and what was seen before."""

    root: Path
    remote: Remote
    seen: dict[str, tuple[Stamp, Local]]

    def listing(self, under: str) -> dict[str, Stamp]:
        """The ledger first: what it accepted by then has landed, and is in the later listings."""
        folders = [under] if under else ["ledger/", "attempts/", "contracts/"]
        found = {n: stamp for folder in folders for n, stamp in self.remote.listing(folder).items()}
        return {name: stamp for name, stamp in found.items() if _OURS.fullmatch(name)}

    def bring(self, there: dict[str, Stamp], names: Sequence[str]) -> int:
        """Fetch those of the names that are not here as they were seen; how many."""
        wanted = [name for name in names if not self._is_here(name, there[name])]
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            return sum(pool.map(lambda name: self._fetch(name, there[name]), wanted))

    def changed(self, there: dict[str, Stamp], under: str) -> dict[str, str]:
        """Mirrored objects that are another thing now."""
        return {
            name: f"{name} changed in {self.remote.url} after it was mirrored"
            for name, (stamp, _) in self.seen.items()
            if name.startswith(under) and name in there and there[name] != stamp
        }

    def gone(self, landing: Landing, there: dict[str, Stamp], under: str) -> dict[str, str]:
        """Mirrored objects that vanished; rows that the ledger retired go here too."""
        missing = [n for n in self.seen if n.startswith(under) and n not in there]
        if not missing:
            return {}
        # rows are retired in the ledger before they go: what it said before they went may be old
        again = self.listing("ledger/")
        self.bring(again, sorted(again))
        allowed = retired(landing)
        found = {}
        for name in missing:
            folder, _, file = name.rpartition("/")
            if file.endswith(".parquet") and folder.rpartition("/")[2] in allowed:
                (self.root / name).unlink(missing_ok=True)
                del self.seen[name]
            else:
                found[name] = f"{name} vanished from {self.remote.url} after it was mirrored"
        return found

    def _is_here(self, name: str, stamp: Stamp) -> bool:
        """As it was seen, or (written here and shipped from here) with the digest of the source."""
        path = self.root / name
        before, local = self.seen.get(name), _local(path)
        if local is None:
            return False
        if before is not None and (before[1] == local or before[0] != stamp):
            return True  # what changed at the source does not replace what was mirrored
        if local[0] == stamp.num_bytes and _md5(path) == stamp.etag:
            self.seen[name] = stamp, local
            return True
        return False

    def _fetch(self, name: str, stamp: Stamp) -> bool:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with replaced(path) as unfinished:
                self.remote.fetch(name, unfinished)
                got = unfinished.stat().st_size
                if got != stamp.num_bytes:
                    expected = f"{stamp.num_bytes} bytes, as listed"
                    again = "fleet store ingest, again"
                    raise StoreError(f"{self.remote.url}/{name}", "", expected, str(got), again)
        except FileNotFoundError:
            return False  # deleted since it was listed
        local = _local(path)
        assert local is not None
        self.seen.setdefault(name, (stamp, local))
        self.seen[name] = self.seen[name][0], local
        return True

    def write_seen(self) -> None:
        """In one step: an interrupted pull leaves the old one, and fetches nothing twice."""
        body = {name: [*stamp, *local] for name, (stamp, local) in self.seen.items()}
        with replaced(self.root / OWN / "seen.json") as unfinished:
            unfinished.write_text(json.dumps(body), encoding="utf-8")


def _require_landing(landing: Landing, remote: Remote) -> None:
    """The source's marker, which is the mirror's too."""
    try:
        data = remote.read("FORMAT.json")
    except FileNotFoundError as error:
        fix = "fleet certify CONTRACT, or another --landing"
        raise StoreError(remote.url, "", "a landing", "none", fix) from error
    if data != FORMAT:
        fix = "use the fleet version that wrote it, or another --landing"
        raise StoreError(remote.url, "format", FORMAT.decode(), repr(data[:40]), fix)
    with suppress(FileExistsError):
        write_once(landing.root / "FORMAT.json", data)
    Landing.open(landing.root)


def _in_order(there: dict[str, Stamp]) -> list[list[str]]:
    """As they were written: rows, then manifests, then what the ledger says of them."""
    steps: list[list[str]] = [[], [], []]
    for name in sorted(there):
        steps[2 if name.startswith("ledger/") else name.endswith("/manifest.json")].append(name)
    return steps


def _record(landing: Landing, found: dict[str, str]) -> Iterator[str]:
    """Append what is not recorded yet."""
    known = altered(landing)
    for name in sorted(found.keys() - known.keys()):
        line = json.dumps({"name": name, "words": found[name], "at_s": time.time()})
        with (landing.root / OWN / "altered.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
        yield found[name]


def _read_seen(root: Path) -> dict[str, tuple[Stamp, Local]]:
    path = root / OWN / "seen.json"
    if not path.exists():
        return {}
    raw = json.loads(path.read_text(encoding="utf-8"))
    return {name: (Stamp(n, tag), (size, mtime)) for name, (n, tag, size, mtime) in raw.items()}


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    """One pull at a time: a driver and an ingest may share a mirror."""
    (root / OWN).mkdir(exist_ok=True)
    with (root / OWN / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _local(path: Path) -> Local | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_size, found.st_mtime_ns


def _md5(path: Path) -> str:
    """What S3 calls an object's etag, where it was sent in one piece and not under a key of KMS."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
