"""Somebody else's SQL over a published store: one SELECT that reads views and nothing else.

Two fences. DuckDB's own parser says what the text is, as a tree, and only a tree of known nodes,
known tables and harmless table functions is run: since DuckDB 2 a SELECT may hold an INSERT in its
WITH. Then the connection is confined, for good: opened read-only, no external access, no
extensions, no spilling, the configuration locked. What ``records`` and ``margins`` read are Parquet
files of the landing; where a query names them that folder alone stays readable.

Knows no verdict: tables that the judge fills are handed in.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from fleet.errors import UsageError
from fleet.store.open import Connection, Store, quoted

NODES = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"})
"""What reads. All other nodes of a query tree write."""

TABLE_FUNCTIONS = frozenset(
    {"range", "generate_series", "unnest", "repeat", "json_each", "json_tree"}
)
"""That touch neither file, setting nor memory of the process."""

WRITING = frozenset({"write_log"})
"""Scalar functions that leave something behind."""

SCHEMAS = frozenset({"main", "temp", "information_schema"})
READ_PARQUET = frozenset({"records", "margins"})
"""Views over files of the landing."""

MEMORY = "1GB"
FIX = "one SELECT over the views that fleet query --views lists"


@dataclass(frozen=True)
class Result:
    """``truncated``: there are more rows than were asked for."""

    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    truncated: bool


@dataclass(frozen=True)
class Select:
    """A query that may run, and the tables that it names, in lower case."""

    statement: duckdb.Statement
    tables: frozenset[str]


def parse(con: Connection, sql: str, more: Sequence[str] = ()) -> Select:
    """What the text is, by DuckDB's parser.

    Args:
        con: an open store.
        sql: somebody's.
        more: names of tables that will be handed in.

    Raises:
        UsageError: anything but one SELECT over known tables.
    """
    try:
        statements = con.extract_statements(sql)
    except duckdb.Error as error:
        raise _refused("valid SQL", _line(error)) from None
    if len(statements) != 1:
        raise _refused("one statement", f"{len(statements)} statements")
    (statement,) = statements
    if statement.type != duckdb.StatementType.SELECT:
        raise _refused("a SELECT or WITH", f"a statement of kind {statement.type.name}")
    tree = json.loads(con.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()[0][0])
    if tree["error"]:
        raise _refused("a SELECT or WITH", str(tree["error_message"]))
    nodes = list(_nodes(tree))
    for node in nodes:
        _require_reading(node)
    tables = frozenset(_tables(nodes, _known(con) | set(more)))
    return Select(statement, tables)


def _nodes(tree: Any) -> Iterator[Mapping[str, Any]]:
    """Every object of the tree, from the outside in."""
    pending = [tree]
    while pending:
        found = pending.pop()
        if isinstance(found, dict):
            yield found
            pending.extend(found.values())
        elif isinstance(found, list):
            pending.extend(found)


def _require_reading(node: Mapping[str, Any]) -> None:
    kind = node.get("type")
    if isinstance(kind, str) and kind.endswith("_NODE") and kind not in NODES:
        words = kind.removesuffix("_NODE").removesuffix("_QUERY")
        raise _refused("a query that only reads", f"a query with {words} in it")
    if kind == "TABLE_FUNCTION":
        function = node.get("function") or {}
        name = str(function.get("function_name", "?")).lower()
        if name not in TABLE_FUNCTIONS or function.get("schema") or function.get("catalog"):
            raise _refused("views and tables of the store", f"the table function {name}")
    if kind == "SHOW_REF" and node.get("query") is None and node["table_name"] != '"tables"':
        raise _refused("views and tables of the store", f"SHOW {node['table_name']}")
    if kind == "FUNCTION" and str(node.get("function_name", "")).lower() in WRITING:
        raise _refused("a query that only reads", f"the function {node['function_name']}")


def _tables(nodes: Sequence[Mapping[str, Any]], known: set[str]) -> Iterator[str]:
    ctes = {
        str(entry.get("key", "")).lower()
        for node in nodes
        if isinstance(node.get("cte_map"), dict)
        for entry in node["cte_map"]["map"]
    }
    ctes |= {str(n["cte_name"]).lower() for n in nodes if n.get("type") == "RECURSIVE_CTE_NODE"}
    for node in nodes:
        if node.get("type") == "BASE_TABLE":
            *where, name = (str(part).lower() for part in node["qualified_name"]["path"])
            schema = where[-1] if where else ""
            ours = name in known and (not where or schema in SCHEMAS)
            if not (ours or (name in ctes and not where) or schema == "information_schema"):
                raise _refused("views and tables of the store", repr(node["table_name"]))
            yield name


def _known(con: Connection) -> set[str]:
    found = con.execute(
        "SELECT table_name FROM duckdb_tables() UNION ALL SELECT view_name FROM duckdb_views() "
        "WHERE NOT internal"
    ).fetchall()
    return {str(name).lower() for (name,) in found}


def hand_in(
    con: Connection, name: str, columns: Mapping[str, str], rows: Sequence[Sequence[Any]]
) -> None:
    """A temporary table of rows that no SQL can derive. ``columns``: name -> SQL type."""
    typed = ", ".join(f'"{column}" {kind}' for column, kind in columns.items())
    con.execute(f"CREATE TEMP TABLE {name}({typed})")
    if rows:
        lists = ", ".join(f"unnest(?::{kind}[])" for kind in columns.values())
        values = [list(column) for column in zip(*rows, strict=True)]
        con.execute(f"INSERT INTO {name} SELECT {lists}", values)


def run(store: Store, select: Select, folder: Path, limit: int, seconds: float) -> Result:
    """Confine the connection and run the query in it; nothing else can be done with it after.

    Args:
        store: opened for reading, with what was handed in.
        select: from :func:`parse`.
        folder: the attempts of the landing.
        limit: rows at most.
        seconds: after which it is interrupted.

    Raises:
        UsageError: DuckDB refuses it, or it needs too much memory or time.
    """
    confine(store.con, [folder] if select.tables & READ_PARQUET else [])
    timer = threading.Timer(seconds, store.con.interrupt)
    timer.start()
    try:
        cursor = store.con.execute(select.statement)
        described = cursor.description or []
        rows = cursor.fetchmany(limit + 1)
    except duckdb.InternalException:
        raise
    except duckdb.InterruptException:
        got = f"one that ran into the limit of {seconds:g} s"
        raise _refused("a query that ends", got, "ask for less, or --seconds") from None
    except duckdb.OutOfMemoryException:
        raise _refused(f"a query that needs at most {MEMORY}", "more", "ask for less") from None
    except duckdb.PermissionException as error:
        fix = "fleet store ingest, with the --landing that this store is of"
        raise _refused(f"rows below {folder}", _line(error), fix) from None
    except duckdb.Error as error:
        raise _refused("a query that DuckDB can run", _line(error)) from None
    finally:
        timer.cancel()
    columns, types = tuple(d[0] for d in described), tuple(str(d[1]) for d in described)
    return Result(columns, types, tuple(rows[:limit]), len(rows) > limit)


def confine(con: Connection, folders: Sequence[Path]) -> None:
    """No file but below these folders, no extension, no other database, and no way back."""
    listed = ", ".join(quoted(f"{folder.resolve()}/") for folder in folders)
    for setting in (
        "python_enable_replacements = false",
        f"memory_limit = '{MEMORY}'",
        "temp_directory = ''",
        "allow_community_extensions = false",
        f"allowed_directories = [{listed}]",
        "enable_external_access = false",
        "lock_configuration = true",
    ):
        con.execute(f"SET {setting}")


def _line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def _refused(expected: str, got: str, fix: str = FIX) -> UsageError:
    return UsageError("query", "", expected, got, fix)
