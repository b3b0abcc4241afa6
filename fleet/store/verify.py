"""Does a store say what its landing says? All of it is derived anew, and compared row by row.

A seal tells of an edit; who sets it anew as well is found out only here. Takes as long as a
rebuild, and changes nothing. Knows no verdict.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from fleet.evidence.landing import Landing
from fleet.store.ingest import OnAttempt, ingest
from fleet.store.open import Connection, Store, open_unchecked, open_writer
from fleet.store.seal import NARROW_ROWS

_LINES = {
    "attempts": "SELECT attempt, to_json(t) FROM "
    "(SELECT * EXCLUDE (key, seen, seal, rows_seal) FROM attempts) t",
    **{
        table: f"SELECT (SELECT attempt FROM attempts WHERE key = t.attempt), to_json(u) "
        f"FROM {table} t, LATERAL (SELECT t.* EXCLUDE (attempt)) u"
        for table in ("summaries", "parts", "traces")
    },
    "hashes": "SELECT (SELECT attempt FROM attempts WHERE key = t.attempt), "
    f"{NARROW_ROWS} FROM hashes t GROUP BY t.attempt",
    "campaigns": "SELECT id, to_json(t) FROM campaigns t",
    "controls": "SELECT campaign, to_json(t) FROM controls t",
    "contracts": "SELECT name, to_json(t) FROM contracts t",
    "platforms": "SELECT lower(hex(digest)), to_json(t) FROM platforms t",
    "units": "SELECT id, to_json(t) FROM units t",
    "retractions": "SELECT attempt, to_json(t) FROM retractions t",
}
"""Table -> what a row is about and all that it says, without the numbers that only one file gives
out. ``heads`` and ``meta`` are the store's own."""


def differences(
    path: Path, landing: Landing, on_attempt: OnAttempt | None = None
) -> Iterator[tuple[str, str]]:
    """(table, what it says otherwise than the landing), of the store that readers open.

    Raises:
        StoreError: there is no store, or it cannot be read.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        open_unchecked(path) as store,
        open_writer(Path(folder) / "fleet.duckdb") as fresh,
    ):
        ingest(fresh, landing, on_attempt)
        yield from _differing(store, fresh)


def _differing(store: Store, fresh: Store) -> Iterator[tuple[str, str]]:
    for table, lines in _LINES.items():
        ours, theirs = _read(store.con, lines), _read(fresh.con, lines)
        for name in sorted(ours.keys() | theirs.keys()):
            if ours.get(name) != theirs.get(name):
                yield table, name


def _read(con: Connection, lines: str) -> dict[str, str]:
    """What -> a digest of every row about it."""
    found = con.execute(
        "SELECT coalesce(name, 'nothing'), sha256(string_agg(sha256(line::VARCHAR), '' "
        f"ORDER BY sha256(line::VARCHAR))) FROM ({lines}) t(name, line) GROUP BY 1"
    ).fetchall()
    return dict(found)
