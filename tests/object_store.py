"""A real S3-compatible HTTP server for tests, one per test, and what somebody does behind our back.

The server (moto) keeps objects in memory and honours ``If-None-Match: *``. ``stop`` and ``start``
keep the port and the objects: a network that went away and came back.
"""

from __future__ import annotations

import logging
import os
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from moto.server import ThreadedMotoServer

logging.getLogger("werkzeug").setLevel(logging.ERROR)

SECRET = "not-a-real-secret-4f1d"
BUCKET = "evidence"
URL = f"s3://{BUCKET}/site"


@dataclass
class ObjectStore:
    """The running server, as its owner sees it."""

    server: ThreadedMotoServer
    port: int

    @property
    def fs(self) -> Any:
        import fsspec

        return fsspec.filesystem("s3", use_listings_cache=False)

    def names(self) -> list[str]:
        """Every object of the landing, sorted."""
        return sorted(p.removeprefix(f"{BUCKET}/site/") for p in self.fs.find(f"{BUCKET}/site"))

    def read(self, name: str) -> bytes:
        return bytes(self.fs.cat_file(f"{BUCKET}/site/{name}"))

    def overwrite(self, name: str, data: bytes) -> None:
        self.fs.pipe_file(f"{BUCKET}/site/{name}", data)

    def delete(self, name: str) -> None:
        self.fs.rm_file(f"{BUCKET}/site/{name}")

    def stop(self) -> None:
        self.server.stop()

    def start(self) -> None:
        self.server = ThreadedMotoServer("127.0.0.1", self.port, verbose=False)
        self.server.start()


@contextmanager
def object_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """A server with an empty bucket, and the environment that leads there."""
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name in [n for n in os.environ if n.startswith(("AWS_", "FSSPEC_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tester")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    reset = urllib.request.Request(f"http://{host}:{port}/moto-api/reset", method="POST")
    with urllib.request.urlopen(reset):
        pass
    store = ObjectStore(server, port)
    store.fs.mkdir(BUCKET)
    try:
        yield store
    finally:
        store.server.stop()
        s3fs.S3FileSystem.clear_instance_cache()
