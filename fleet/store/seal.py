"""Seals: a digest over all that verdicts are derived from in a store, set by whoever wrote it.

Each attempt has one over its own few rows, and one over its narrow rows, which is looked at only
when these are compared; ``meta`` holds one for all attempts and one for each small table. So a
table that somebody edited is refused before anything is derived from it. A seal is no signature:
who sets it anew is believed until ``fleet store verify`` derives everything from the landing.

Knows no landing and no verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import duckdb

from fleet.errors import StoreError

ATTEMPTS = "attempts"
FACTS = ("platforms", "units")
SMALL = ("campaigns", "controls", "contracts", "retractions", "heads")
TABLES = (ATTEMPTS, *FACTS, *SMALL)

_ROWS = {
    "attempts": "(SELECT * EXCLUDE (seal) FROM attempts {mine})",
    "summaries": "(FROM summaries {mine})",
    "parts": "(FROM parts {mine})",
    "traces": "(FROM traces {mine})",
}
"""What of each attempt is sealed. Sums, since a writer has too little memory to sort all rows."""
_SUM = "SELECT coalesce(sum(md5_number_lower('{table} ' || to_json(t))), 0)::HUGEINT FROM {rows} t"
NARROW_ROWS = (
    "count(*) || ' ' || coalesce(sum(hash(part, row, arm, position, sample_id, batch_ordinal, "
    "unparsed, input, settings, prediction, tokens, logits)::HUGEINT), 0)"
)
"""Of any rows of ``hashes``: their number, and a sum that no order changes."""
_OF_ROWS = f"SELECT '{duckdb.__version__} ' || {NARROW_ROWS} FROM hashes WHERE attempt = ?"
"""DuckDB's version decides how rows are hashed."""


def seal_attempt(con: duckdb.DuckDBPyConnection, key: int) -> None:
    """After everything of one attempt was written."""
    (rows,) = con.execute(_OF_ROWS, [key]).fetchall()[0]
    con.execute("UPDATE attempts SET rows_seal = ? WHERE key = ?", [rows, key])
    con.execute("UPDATE attempts SET seal = ? WHERE key = ?", [_of_attempts(con, key), key])


def _of_attempts(con: duckdb.DuckDBPyConnection, key: int | None = None) -> int:
    """Over all that is stored of one attempt but its narrow rows, or of all attempts."""
    total = 0
    for table, rows in _ROWS.items():
        name = "key" if table == ATTEMPTS else "attempt"
        mine = "" if key is None else f"WHERE {name} = {key}"
        total += _sum(con, table, rows.format(mine=mine))
    return total


def _sum(con: duckdb.DuckDBPyConnection, table: str, rows: str) -> int:
    return int(con.execute(_SUM.format(table=table, rows=rows)).fetchall()[0][0])


def seal(con: duckdb.DuckDBPyConnection, tables: Iterable[str]) -> None:
    """In the transaction that wrote them."""
    for table in tables:
        if table == ATTEMPTS:
            sql = "SELECT coalesce(sum(seal), 0)::HUGEINT FROM attempts"
            found = int(con.execute(sql).fetchall()[0][0])
        else:
            found = _sum(con, table, table)
        con.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", [f"seal {table}", str(found)])


def require_sealed(con: duckdb.DuckDBPyConnection, where: str) -> None:
    """Nothing but a writer of this product wrote what verdicts are derived from.

    Raises:
        StoreError: a table was edited, or another version of DuckDB sealed it.
    """
    sealed = dict(con.execute("SELECT key, value FROM meta").fetchall())
    for table in TABLES:
        with _readable(where, table):
            found = _of_attempts(con) if table == ATTEMPTS else _sum(con, table, table)
        if sealed.get(f"seal {table}") != str(found):
            raise _edited(where, table)


def require_rows(con: duckdb.DuckDBPyConnection, where: str, attempts: Iterable[str]) -> None:
    """The narrow rows of these attempts are as they were loaded.

    Raises:
        StoreError: they were edited.
    """
    for attempt in attempts:
        what = f"hashes of attempt {attempt}"
        sql = "SELECT key, rows_seal FROM attempts WHERE attempt = ?"
        with _readable(where, what):
            sealed = con.execute(sql, [attempt]).fetchall()
            found = [(key, *con.execute(_OF_ROWS, [key]).fetchall()[0]) for key, _ in sealed]
        if found != sealed:
            raise _edited(where, what)


@contextmanager
def _readable(where: str, what: str) -> Iterator[None]:
    """A block that was damaged shows when it is read, not when the file is opened."""
    try:
        yield
    except duckdb.Error as error:
        raise _edited(where, what, str(error).splitlines()[0]) from error


def _edited(where: str, what: str, got: str = "something else") -> StoreError:
    expected = "what the ingester wrote, with this version of DuckDB"
    return StoreError(where, what, expected, got, "fleet store rebuild, from the landing alone")
