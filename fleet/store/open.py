"""Open a store: one writer, or readers of a published snapshot.

DuckDB locks a file that one process writes against every other open, reading too; so the writer
publishes ``<store>.snapshot``, a complete copy put in place by one rename, and readers open that.
Copying the file under a writer would lose its write-ahead log; ``COPY FROM DATABASE`` does not.

Knows no landing. Whatever DuckDB cannot open becomes one message with its next command.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import duckdb

from fleet.errors import StoreBusy, StoreError
from fleet.store.migrations import SCHEMA, migrate, require_known, schema_of
from fleet.store.seal import TABLES, require_sealed, seal

Connection = duckdb.DuckDBPyConnection

CONFIG: dict[str, str | bool | int | float | list[str]] = {
    # no download behind the user's back: a verdict must not depend on a reachable registry
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    # the order of rows in a table carries no meaning here, and keeping it doubles the load time
    "preserve_insertion_order": "false",
}

WRITER = CONFIG | {
    # DuckDB would fill most of the machine before it writes anything out. A load needs about
    # 45 MB a thread, and less than that makes it spill to disk, which costs more than a second
    # thread brings; over long sample ids two threads at 64 MB ran out of memory
    "memory_limit": "48MB",
    "threads": 1,
}

SNAPSHOT = ".snapshot"

TRUSTED = "trusted_keys"
"""DuckDB variable of a reader's connection: the keys whose retractions count for it, as JSON. The
store itself knows none, so that it is the same for everybody."""

REFUSALS = (
    duckdb.OperationalError,
    duckdb.IntegrityError,
    duckdb.DataError,
    duckdb.FatalException,  # a disk that is full when the log is moved into the file
)
"""Disk, memory, constraints, values: never a fault of this code's own SQL."""


@dataclass(frozen=True)
class Store:
    """An open store."""

    path: Path
    con: Connection

    def close(self) -> None:
        """Flush and release the lock."""
        self.con.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()


def snapshot_path(path: Path) -> Path:
    """Where :func:`publish` puts the copy that readers open."""
    return path.with_name(path.name + SNAPSHOT)


def open_writer(path: Path, create: bool = True, wait_s: float = 0.0) -> Store:
    """Open for writing, as the only process, and migrate.

    Args:
        path: the store file.
        create: make it when there is none.
        wait_s: how long to wait for another process that has it open.

    Raises:
        StoreBusy: another process has it open, for longer than ``wait_s``.
        StoreError: unwritable, no DuckDB file, no store, or written by newer code.
    """
    if not path.exists() and not create:
        raise _missing(path)
    _make_folder(path)
    store = Store(path, _connect_patiently(path, wait_s))
    try:
        if migrate(store.con) < SCHEMA:
            seal(store.con, TABLES)
        require_sealed(store.con, str(path))
    except StoreError:
        store.close()
        raise
    except REFUSALS as error:
        store.close()
        raise _refused(store, "", error) from error
    return store


def _connect_patiently(path: Path, wait_s: float) -> Connection:
    until = time.monotonic() + wait_s
    while True:
        try:
            return _connect(path, read_only=False)
        except StoreBusy:
            if time.monotonic() >= until:
                raise
            time.sleep(0.2)


def open_reader(path: Path, trusted: Mapping[str, str] | None = None) -> Store:
    """Open the published snapshot, or the store itself when there is none and nobody writes.

    Args:
        path: the store file.
        trusted: key id -> name of those whose retractions count; of none of them if left out.

    Raises:
        StoreError: missing, locked by a writer, unreadable, or of another schema.
    """
    store = open_unchecked(path)
    with _closed_on_error(store):
        _require_whole(store)
        if trusted:
            store.con.execute(f"SET VARIABLE {TRUSTED} = {quoted(json.dumps(dict(trusted)))}")
    return store


@contextmanager
def _closed_on_error(store: Store) -> Iterator[None]:
    """A block that was damaged shows when it is read, not when the file is opened."""
    try:
        yield
    except StoreError:
        store.close()
        raise
    except duckdb.Error as error:
        store.close()
        raise _explain(store.path, str(error)) from error


def open_unchecked(path: Path) -> Store:
    """What readers open, whatever is in it: for whoever compares it with its landing.

    Raises:
        StoreError: missing, locked by a writer, unreadable, or of another schema.
    """
    chosen = snapshot_path(path) if snapshot_path(path).exists() else path
    if not chosen.exists():
        raise _missing(path)
    store = Store(chosen, _connect(chosen, read_only=True))
    with _closed_on_error(store):
        _require_current(store)
    return store


@contextmanager
def hold(path: Path) -> Iterator[Store | None]:
    """Keep other writers out of a store that is about to be replaced, damaged or not. None where
    there is none that can be opened.

    Raises:
        StoreError: another process has it open, or it is something else than a store.
    """
    _make_folder(path)
    con = _held(path) if path.exists() else None
    try:
        if con is not None:
            schema_of(con)
        yield None if con is None else Store(path, con)
    finally:
        if con is not None:
            con.close()


def _held(path: Path) -> Connection | None:
    """The store, locked; None when it is a DuckDB file that cannot be opened any more."""
    if _magic(path) != b"DUCK":
        fix = "move it away, or pass another --store"
        raise StoreError(str(path), "", "a fleet store, or nothing", "something else", fix)
    try:
        return duckdb.connect(str(path), config=CONFIG)
    except duckdb.Error as error:
        if _is_locked(str(error)):
            raise _explain(path, str(error)) from error
        return None


def publish(store: Store) -> Path:
    """Copy the store into ``<store>.snapshot``, complete or not at all.

    Raises:
        StoreError: when the disk or the folder refuses the copy; the old snapshot stays.
    """
    target = snapshot_path(store.path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}")
    (name,) = store.con.execute("SELECT current_database()").fetchall()[0]
    try:
        store.con.execute(f"ATTACH {quoted(str(temporary))} AS published")
        try:
            store.con.execute(f'COPY FROM DATABASE "{name}" TO published')
        finally:
            store.con.execute("DETACH published")
        _sync(temporary)
        temporary.replace(target)
    except (*REFUSALS, OSError) as error:
        expected, fix = "room for a snapshot in a writable folder", "free space, or --store FILE"
        raise StoreError(str(target), "", expected, _reason(error), fix) from error
    finally:
        temporary.unlink(missing_ok=True)
        log_of(temporary).unlink(missing_ok=True)
    return target


def log_of(path: Path) -> Path:
    """DuckDB's write-ahead log of a store."""
    return path.with_name(path.name + ".wal")


def settle(store: Store) -> None:
    """Move the log into the file, so that the file alone is the store. Closing does it too, and
    says nothing where it could not.

    Raises:
        StoreError: when the disk refuses.
    """
    try:
        store.con.execute("CHECKPOINT")
    except REFUSALS as error:
        raise _refused(store, "", error) from error


@contextmanager
def transaction(store: Store, what: str) -> Iterator[None]:
    """All of it or nothing.

    Raises:
        StoreError: when the database refuses; ``what`` names what was being written.
    """
    store.con.execute("BEGIN")
    committed = False
    try:
        yield
        store.con.execute("COMMIT")
        committed = True
    except REFUSALS as error:
        raise _refused(store, what, error) from error
    finally:
        if not committed:
            with suppress(duckdb.Error):  # a failed commit has already rolled back
                store.con.execute("ROLLBACK")


def _refused(store: Store, what: str, error: Exception) -> StoreError:
    fix = "free space, or use the fleet version that wrote this landing"
    return StoreError(str(store.path), what, "an accepted write", _reason(error), fix)


def quoted(text: str) -> str:
    """A SQL string literal, for statements that take no parameters."""
    return "'" + text.replace("'", "''") + "'"


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _make_folder(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from error


def _connect(path: Path, read_only: bool) -> Connection:
    try:
        return duckdb.connect(
            str(path), read_only=read_only, config=CONFIG if read_only else WRITER
        )
    except duckdb.Error as error:
        raise _explain(path, str(error)) from error


def _explain(path: Path, text: str) -> StoreError:
    """What DuckDB said, as expected, got and fix."""
    line = text.splitlines()[0]
    again = f"fleet store rebuild --store {path}"
    if path.name.endswith(SNAPSHOT):
        again = "fleet store snapshot"
    if _is_locked(text):
        holder = text[text.rfind("(PID") + 1 :].split(")")[0] if "(PID" in text else "this process"
        fix = "wait for it to end; readers can go on with a snapshot (`fleet store snapshot`)"
        free = "a store that no other process has open"
        return StoreBusy(str(path), "", free, f"locked by {holder}", fix)
    elif path.is_dir():
        found = ("a store file", "a folder", "pass --store FILE")
    elif _magic(path) != b"DUCK":
        found = ("a fleet store", "something else", "move it away, or pass another --store")
    elif "version number" in text:
        found = (f"a file that DuckDB {duckdb.__version__} reads", line, again)
    elif "orrupt" in text or "not a valid" in text:
        found = ("a whole fleet store", f"not a readable DuckDB file ({line})", again)
    elif "Could not write" in text:
        found = ("room for a store", line, "free space, or pass --store FILE")
    else:
        found = ("a store that can be opened", line, "pass --store FILE")
    return StoreError(str(path), "", *found)


def _magic(path: Path) -> bytes:
    """Bytes 8 to 12, ``DUCK`` in every DuckDB file; a file that does not open counts as one."""
    try:
        with path.open("rb") as file:
            return file.read(12)[8:]
    except OSError:
        return b"" if path.is_dir() else b"DUCK"


def _is_locked(text: str) -> bool:
    """Another process has it open, or this one has, in another mode."""
    return "lock on file" in text or "different configuration" in text


def _unwritable(path: Path, error: Exception) -> StoreError:
    return StoreError(str(path), "", "a writable folder", _reason(error), "pass --store FILE")


def _reason(error: Exception) -> str:
    """What the system said, below whatever DuckDB says around it."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).rpartition("Original error: ")[2].splitlines()[0]


def _missing(path: Path) -> StoreError:
    return StoreError(str(path), "", "a store", "none", "fleet store ingest")


REFUSED = "refused"
"""Key in ``meta``: why nothing may be derived from this store. Set when its landing was found to
have lost what the store had seen of it, until it has it again."""


def refuse(store: Store, what: str) -> None:
    """Let no reader have this store, nor its snapshot, until an ingest succeeds."""
    with transaction(store, "a refusal"):
        store.con.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", [REFUSED, what])
    if snapshot_path(store.path).exists():
        publish(store)


def accept(store: Store) -> None:
    """Take a refusal back, inside a transaction."""
    store.con.execute("DELETE FROM meta WHERE key = ?", [REFUSED])


def _require_whole(store: Store) -> None:
    require_sealed(store.con, str(store.path))
    found = store.con.execute("SELECT value FROM meta WHERE key = ?", [REFUSED]).fetchone()
    if found is not None:
        raise lost(store.path, str(found[0]))


def lost(path: Path, what: str) -> StoreError:
    """The landing does not hold any more what this store saw in it."""
    shown = path.with_name(path.name.removesuffix(SNAPSHOT))
    fix = f"put it back and run fleet store ingest; to begin anew without it, move {shown} away"
    return StoreError(str(shown), "", "a landing that keeps what it held", what, fix)


def _require_current(store: Store) -> None:
    found = schema_of(store.con)
    require_known(store.con, found)
    if found < SCHEMA:
        raise StoreError(
            str(store.path), "schema", str(SCHEMA), str(found), "fleet store ingest (it migrates)"
        )
