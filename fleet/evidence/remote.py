"""Objects of a landing in object storage: created once, listed, fetched. Alone imports fsspec.

Every object is written once, so creation must fail where the object exists, decided by the server
(``If-None-Match: *``); a backend that only looks first and writes then would let two drivers write
one chain. Credentials and endpoints come from fsspec's own configuration (``FSSPEC_S3_...``) or the
backend's (``AWS_...``), and are in no URL. Knows no mirror and no meaning of what it moves.
"""

from __future__ import annotations

import errno
import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from fleet.errors import LandingUnreachable, UsageError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

T = TypeVar("T")

EXCLUSIVE = ("s3",)
"""Protocols whose fsspec backend creates an object under a condition that the server checks; see
``s3fs.S3FileSystem._pipe_file``. fsspec's own fallback looks first and writes then."""

WAITS_S = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Between tries of one request that may succeed later."""

_DEFAULTS: dict[str, Any] = {
    "connect_timeout": 5,
    "read_timeout": 60,
    "retries": {"max_attempts": 0},  # the tries are counted here, once
}
"""Of the client, where the user's configuration does not say."""


class Stamp(NamedTuple):
    """What a listing says of an object: it changes when the object does."""

    num_bytes: int
    etag: str


def require_url(url: str) -> str:
    """The URL without a slash at its end.

    Raises:
        UsageError: no bucket, credentials in it, or a backend that cannot create exclusively.
    """
    protocol, _, rest = url.partition("://")
    if protocol not in EXCLUSIVE:
        raise UsageError(
            "--landing", "", "a folder, file:///FOLDER or s3://BUCKET/PREFIX", f"{protocol}://",
            "a landing needs a backend that can create an object only where there is none",
        )  # fmt: skip
    if not re.fullmatch(r"[^/@?#\s]+(/[^/@?#\s]+)*/?", rest):
        raise UsageError(
            "--landing", "", f"{protocol}://BUCKET/PREFIX and nothing else", "another form",
            "credentials and endpoint belong in the environment (AWS_..., FSSPEC_S3_...)",
        )  # fmt: skip
    return url.rstrip("/")


@dataclass(frozen=True)
class Remote:
    """The objects below one URL. Names are relative, with ``/``."""

    url: str

    def create(self, name: str, data: bytes) -> None:
        """Create an object, or find that an earlier try of ours did.

        Raises:
            FileExistsError: there is another object of that name.
            LandingUnreachable: after bounded retries, or when the server refuses.
        """
        try:
            self._put(name, data)
        except FileExistsError:
            if self.read(name) != data:  # else the answer to an earlier try was lost
                raise FileExistsError(
                    errno.EEXIST, "written once, and by another writer", f"{self.url}/{name}"
                ) from None

    def _put(self, name: str, data: bytes) -> None:
        try:
            self._ask(lambda fs: fs.pipe_file(self._path(name), data, mode="create"))
        except FileNotFoundError as error:
            raise self._refused("a bucket that exists", error) from error

    def claim(self, name: str, data: bytes) -> None:
        """Create an object that every writer creates alike, and see the server refuse a second.

        Raises:
            LandingUnreachable: it did not: two drivers could write one chain.
        """
        for _ in range(2):
            try:
                self._put(name, data)
            except FileExistsError:
                return
        raise LandingUnreachable(
            self.url, "", "a server that honours If-None-Match: * (an object is created once)",
            "one that replaced an object", "another object store, or a landing folder",
        )  # fmt: skip

    def read(self, name: str) -> bytes:
        """An object's bytes.

        Raises:
            FileNotFoundError: there is none.
            LandingUnreachable: see :meth:`create`.
        """
        data: bytes = self._ask(lambda fs: fs.cat_file(self._path(name)))
        return data

    def fetch(self, name: str, target: Path) -> None:
        """Write an object's bytes to a file; the caller moves it into place.

        Raises:
            FileNotFoundError: there is none.
            LandingUnreachable: see :meth:`create`.
        """
        self._ask(lambda fs: fs.get_file(self._path(name), str(target)))

    def listing(self, under: str = "") -> dict[str, Stamp]:
        """Every object whose name begins with ``under``, which ends with ``/`` or is empty.

        Raises:
            LandingUnreachable: see :meth:`create`; also for a bucket that is not there.
        """
        folder = self._path(under).rstrip("/")
        try:
            found = self._ask(lambda fs: fs.find(folder, detail=True))
        except FileNotFoundError as error:
            raise self._refused("a bucket that exists", error) from error
        before = len(self._path(""))
        return {
            path[before:]: Stamp(int(info["size"]), str(info.get("ETag", "")).strip('"'))
            for path, info in found.items()
            if info["type"] == "file" and path.startswith(f"{folder}/") and path[-1] != "/"
        }

    def remove(self, names: Iterable[str]) -> None:
        """Delete objects; one that is gone already is no error.

        Raises:
            LandingUnreachable: see :meth:`create`.
        """
        for name in names:
            with suppress(FileNotFoundError):
                self._remove(self._path(name))

    def _remove(self, path: str) -> None:
        self._ask(lambda fs: fs.rm_file(path))

    def _path(self, name: str) -> str:
        return f"{self.url.partition('://')[2]}/{name}"

    def _ask(self, question: Callable[[Any], T]) -> T:
        """One request, again while that may help."""
        faults = _faults()
        for wait_s in (*WAITS_S, None):
            try:
                return question(_open(self.url))
            except (FileExistsError, FileNotFoundError):
                raise
            except faults as error:
                if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise  # the disk here, not the server there
                if wait_s is None or _is_final(error):
                    expected = "an object store that answers and lets this user in"
                    raise self._refused(expected, error) from error
            time.sleep(wait_s)
        raise AssertionError("unreachable")

    def _refused(self, expected: str, error: BaseException) -> LandingUnreachable:
        words = str(error).strip().splitlines() or [""]
        return LandingUnreachable(
            self.url, "", expected, f"{type(error).__name__}: {words[0]}"[:300],
            "check network, endpoint and credentials (AWS_..., FSSPEC_S3_...), then run again",
        )  # fmt: skip


def _open(url: str) -> AbstractFileSystem:
    """The backend, one instance a process, which keeps no listing.

    Raises:
        UsageError: the backend is not installed.
    """
    protocol = url.partition("://")[0]
    try:
        import fsspec
        from fsspec.config import conf

        given = conf.get(protocol, {}).get("config_kwargs", {})
        return fsspec.filesystem(
            protocol, use_listings_cache=False, config_kwargs=_DEFAULTS | dict(given)
        )
    except ImportError as error:
        raise UsageError(
            "--landing", "", f"the fsspec backend of {protocol}://", str(error),
            f"pip install 'fleet[{protocol}]', here and on every node",
        ) from error  # fmt: skip


def _faults() -> tuple[type[BaseException], ...]:
    """What the client raises for a network, a server or a user that is refused."""
    try:
        from aiohttp import ClientError as HttpError
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        return (OSError,)
    return (OSError, TimeoutError, BotoCoreError, ClientError, HttpError)


def _is_final(error: BaseException) -> bool:
    """Trying again will not help: not let in, or nobody to let in."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return isinstance(error, PermissionError) or bool(
        names & {"NoCredentialsError", "PartialCredentialsError", "ParamValidationError"}
    )
