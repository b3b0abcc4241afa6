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

_OF_ATTEMPTS = """
SELECT key, sha256(string_agg(line, '' ORDER BY line)) AS seal FROM (
SELECT key, sha256('attempts' || to_json(t)) AS line
FROM (SELECT * EXCLUDE (seal) FROM attempts {where_key}) t
UNION ALL SELECT attempt, sha256('summaries' || to_json(t)) FROM summaries t {where}
UNION ALL SELECT attempt, sha256('parts' || to_json(t)) FROM parts t {where}
UNION ALL SELECT attempt, sha256('traces' || to_json(t)) FROM traces t {where}
) GROUP BY key
"""
_OF_TABLE = """
SELECT sha256(coalesce(string_agg(line, '' ORDER BY line), ''))
FROM (SELECT sha256(to_json(t)::VARCHAR) AS line FROM {table} t)
"""
NARROW_ROWS = (
    "count(*) || ' ' || coalesce(sum(hash(part, row, arm, position, sample_id, batch_ordinal, "
    "unparsed, input, settings, prediction, tokens, logits)::HUGEINT), 0)"
)
"""Of any rows of ``hashes``: their number, and a sum that no order changes."""
_OF_ROWS = f"SELECT {NARROW_ROWS} FROM hashes WHERE attempt = ?"
_ALL = "SELECT sha256(coalesce(string_agg(seal, '' ORDER BY key), '')) FROM "


def seal_attempt(con: duckdb.DuckDBPyConnection, key: int) -> None:
    """After everything of one attempt was written."""
    (rows,) = con.execute(_OF_ROWS, [key]).fetchall()[0]
    con.execute("UPDATE attempts SET rows_seal = ? WHERE key = ?", [rows, key])
    sql = _OF_ATTEMPTS.format(where_key=f"WHERE key = {key}", where=f"WHERE attempt = {key}")
    ((_, seal),) = con.execute(sql).fetchall()
    con.execute("UPDATE attempts SET seal = ? WHERE key = ?", [seal, key])


def seal(con: duckdb.DuckDBPyConnection, tables: Iterable[str]) -> None:
    """In the transaction that wrote them."""
    for table in tables:
        found = _read(con, table, "attempts")
        con.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", [f"seal {table}", found])


def require_sealed(con: duckdb.DuckDBPyConnection, where: str) -> None:
    """Nothing but a writer of this product wrote what verdicts are derived from.

    Raises:
        StoreError: a table was edited, or another version of DuckDB sealed it.
    """
    sealed = dict(con.execute("SELECT key, value FROM meta").fetchall())
    derived = f"({_OF_ATTEMPTS.format(where_key='', where='')})"
    for table in TABLES:
        with _readable(where, table):
            found = _read(con, table, derived)
        if sealed.get(f"seal {table}") != found:
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


def _read(con: duckdb.DuckDBPyConnection, table: str, attempts: str) -> str:
    """With DuckDB's version: it decides how values are written and hashed."""
    sql = _ALL + attempts if table == ATTEMPTS else _OF_TABLE.format(table=table)
    (found,) = con.execute(sql).fetchall()[0]
    return f"{duckdb.__version__} {found}"


@contextmanager
def _readable(where: str, what: str) -> Iterator[None]:
    """A block that was damaged shows when it is read, not when the file is opened."""
    try:
        yield
    except duckdb.Error as error:
        raise _edited(where, what, str(error).splitlines()[0]) from error


def _edited(where: str, what: str, got: str = "something else") -> StoreError:
    expected = "what the ingester wrote, under this version of DuckDB"
    return StoreError(where, what, expected, got, "fleet store rebuild, from the landing alone")
