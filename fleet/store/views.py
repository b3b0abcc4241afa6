"""The views that read wide rows straight from Parquet: ``records`` and ``margins``.

They hold the landing's absolute path, so the ingester makes them anew each time. A part that
cannot be read, or lacks a column, must not take the view down with it: then the readable parts are
listed one by one. Knows no verdict.
"""

from __future__ import annotations

from fleet.evidence.landing import Landing
from fleet.evidence.records import IMAGES_SCHEMA
from fleet.store.open import Connection, quoted

_MARGINS = """
CREATE OR REPLACE VIEW margins AS
SELECT attempt, arm, position, sample_id, is_correct, unparsed,
       list_min(margin_logits) AS smallest_margin, list_min(margin_ulps) AS smallest_ulps,
       list_contains(margin_ulps, 0) AS exact_tie
FROM records
"""


def replace_landing_views(con: Connection, landing: Landing) -> None:
    """Point both views at this landing's whole parts."""
    con.execute(f"CREATE OR REPLACE VIEW records AS {_records(con, landing)}")
    con.execute(_MARGINS)


def _records(con: Connection, landing: Landing) -> str:
    folder = landing.root.resolve() / "attempts"
    listed = con.execute(
        "SELECT t.attempt || '/' || p.name FROM parts p JOIN attempts t ON t.key = p.attempt "
        "WHERE p.state = 'whole' ORDER BY ALL"
    ).fetchall()
    odd = con.execute("SELECT count(*) FROM parts WHERE state <> 'whole'").fetchone()
    if not listed:
        return _no_rows()
    if odd == (0,):
        files = quoted(f"{folder}/*/part-*.parquet")
    else:
        files = "[" + ", ".join(quoted(f"{folder}/{name}") for (name,) in listed) + "]"
    return f"SELECT * FROM read_parquet({files}, schema = {_schema()})"


def _schema() -> str:
    """What a part has or is NULL there, said beforehand: DuckDB would open every part to find out,
    whenever the view is made or used."""
    columns = (
        f"'{f.name}': {{name: '{f.name}', type: '{_sql_type(f.type)}', default_value: NULL}}"
        for f in IMAGES_SCHEMA
    )
    return f"MAP {{{', '.join(columns)}}}"


def _no_rows() -> str:
    """The same columns, without a file to read them from."""
    typed = ", ".join(f"NULL::{_sql_type(field.type)} AS {field.name}" for field in IMAGES_SCHEMA)
    return f"SELECT {typed} WHERE false"


def _sql_type(kind: object) -> str:
    text = str(kind)
    depth = text.count("list<")
    leaf = text.replace("list<item: ", "").replace(" not null", "").rstrip(">")
    return _LEAVES[leaf] + "[]" * depth


_LEAVES = {
    "string": "VARCHAR",
    "int32": "INTEGER",
    "int64": "BIGINT",
    "double": "DOUBLE",
    "bool": "BOOLEAN",
    "fixed_size_binary[32]": "BLOB",
}
