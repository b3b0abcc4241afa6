"""The store's schema, as an ordered list of numbered migrations.

Each migration is small SQL that runs once, inside one transaction with the number that it leaves
in ``meta``. A store of a newer schema is refused, never guessed at. Words are VARCHAR with CHECK
(DuckDB has no ``ALTER TYPE ... ADD VALUE``). The big table has no key: an index costs three times
the load, and the ingester is the only writer.

Knows no landing and no verdict: there is no table and no view of verdicts, which are computed from
summaries by the one owner of their rules.
"""

from __future__ import annotations

import duckdb

from fleet.errors import StoreError

_TABLES = """
CREATE TABLE contracts(
    execution_id BLOB NOT NULL, name VARCHAR NOT NULL, body VARCHAR,
    PRIMARY KEY (execution_id, name));
CREATE TABLE platforms(digest BLOB PRIMARY KEY, facts VARCHAR NOT NULL);
CREATE TABLE units(id VARCHAR PRIMARY KEY, label VARCHAR NOT NULL, facts VARCHAR NOT NULL);
CREATE TABLE campaigns(
    id VARCHAR PRIMARY KEY, opened_at_s DOUBLE, closed_at_s DOUBLE, argv VARCHAR,
    head BLOB, fault VARCHAR);
CREATE TABLE attempts(
    key INTEGER NOT NULL, attempt VARCHAR PRIMARY KEY, campaign VARCHAR NOT NULL,
    slot INTEGER NOT NULL, contract VARCHAR NOT NULL, execution_id BLOB, platform BLOB,
    unit VARCHAR NOT NULL,
    purpose VARCHAR NOT NULL CHECK (purpose IN ('certify', 'screen', 'trace', 'replay')),
    state VARCHAR NOT NULL CHECK (state IN ('COMPLETE', 'FAILED', 'LOST', 'VOID')),
    cause_code VARCHAR, cause_text VARCHAR, accepted_at_s DOUBLE, traced BOOLEAN NOT NULL,
    vary VARCHAR NOT NULL, num_samples BIGINT NOT NULL, rows BIGINT NOT NULL,
    manifest_sha256 BLOB, seen VARCHAR NOT NULL, summary VARCHAR NOT NULL);
CREATE TABLE parts(
    attempt INTEGER NOT NULL, number INTEGER NOT NULL, name VARCHAR NOT NULL,
    state VARCHAR NOT NULL CHECK (state IN ('whole', 'altered', 'unreadable')));
CREATE TABLE summaries(
    attempt INTEGER NOT NULL, arm VARCHAR NOT NULL, grade VARCHAR NOT NULL, root BLOB NOT NULL,
    rows BIGINT NOT NULL, correct BIGINT NOT NULL, unparsed BIGINT NOT NULL, effective BLOB);
CREATE TABLE hashes(
    attempt INTEGER NOT NULL, part INTEGER NOT NULL, row INTEGER NOT NULL,
    arm VARCHAR, position INTEGER, sample_id VARCHAR, batch_ordinal INTEGER, unparsed BOOLEAN,
    input BLOB USING COMPRESSION uncompressed, settings BLOB USING COMPRESSION uncompressed,
    prediction BLOB USING COMPRESSION uncompressed, tokens BLOB USING COMPRESSION uncompressed,
    logits BLOB USING COMPRESSION uncompressed);
CREATE TABLE controls(
    campaign VARCHAR NOT NULL, contract VARCHAR NOT NULL, PRIMARY KEY (campaign, contract));
CREATE TABLE traces(attempt INTEGER NOT NULL, body VARCHAR NOT NULL);
CREATE TABLE retractions(
    attempt VARCHAR NOT NULL, at_s DOUBLE NOT NULL, reason VARCHAR NOT NULL, body VARCHAR NOT NULL);
"""
"""``hashes``: ``part`` and ``row`` point at the wide row in Parquet; digests stay uncompressed,
since the search for patterns in random bytes costs seven times what it saves."""

_VIEWS = """
CREATE VIEW classes AS
SELECT t.execution_id, t.platform, t.vary, t.traced, t.purpose, s.arm, s.grade, s.root,
       count(*) AS attempts, count(DISTINCT t.unit) AS units
FROM summaries s JOIN attempts t ON t.key = s.attempt WHERE t.state = 'COMPLETE'
GROUP BY ALL;
CREATE VIEW pairs AS
SELECT a.attempt AS attempt_a, b.attempt AS attempt_b, a.execution_id, a.platform, a.vary,
       a.traced, a.unit = b.unit AS same_unit, x.arm, x.grade, x.root = y.root AS same_root
FROM attempts a
JOIN attempts b ON a.execution_id = b.execution_id AND a.platform = b.platform
    AND a.vary = b.vary AND a.traced = b.traced AND a.key < b.key
JOIN summaries x ON x.attempt = a.key
JOIN summaries y ON y.attempt = b.key AND x.arm = y.arm AND x.grade = y.grade
WHERE a.state = 'COMPLETE' AND b.state = 'COMPLETE';
CREATE VIEW status AS
SELECT execution_id, platform, vary, traced, list_sort(list(DISTINCT contract)) AS contracts,
       count(*) AS attempts, count(DISTINCT unit) AS units, sum(rows)::BIGINT AS rows,
       count(*) FILTER (state = 'COMPLETE') AS complete, count(*) FILTER (state = 'FAILED')
       AS failed, count(*) FILTER (state = 'LOST') AS lost, count(*) FILTER (state = 'VOID')
       AS void, max(accepted_at_s) AS last_accepted_at_s
FROM attempts GROUP BY ALL;
"""
"""What SQL can say honestly: counts and equal roots. ``records`` and ``margins`` read Parquet, so
they are made by the ingester, which knows where the landing is."""

_WITNESS = """
CREATE TABLE heads(chain VARCHAR PRIMARY KEY, length INTEGER NOT NULL, head VARCHAR NOT NULL);
ALTER TABLE campaigns ADD COLUMN about VARCHAR;
ALTER TABLE attempts ADD COLUMN rows_seal VARCHAR;
ALTER TABLE attempts ADD COLUMN seal HUGEINT;
DELETE FROM attempts; DELETE FROM summaries; DELETE FROM hashes; DELETE FROM parts;
DELETE FROM traces;
"""
"""``heads``: how far each chain of the landing went when it was last seen. ``about``: execution ids
of a campaign as JSON. ``seal``: see ``fleet.store.seal``; what has none is taken in again."""

MIGRATIONS: tuple[str, ...] = (_TABLES + _VIEWS, _WITNESS)
"""Migration n (from 1) brings a store from schema n - 1 to n. Append only."""

SCHEMA = len(MIGRATIONS)


def schema_of(con: duckdb.DuckDBPyConnection) -> int:
    """Schema number of an open database; 0 for an empty one.

    Raises:
        StoreError: when it holds tables and is no store.
    """
    names = {name for (name,) in con.execute("SELECT table_name FROM duckdb_tables()").fetchall()}
    if not names:
        return 0
    row = None
    if "meta" in names:
        row = con.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
    if row is None:
        raise StoreError(
            _path(con), "meta", "a fleet store", "another DuckDB database", "pass another --store"
        )
    return int(row[0])


def require_known(con: duckdb.DuckDBPyConnection, found: int) -> None:
    """Refuse a store that newer code wrote.

    Raises:
        StoreError: naming both schema numbers.
    """
    if found > SCHEMA:
        raise StoreError(
            _path(con),
            "schema",
            f"at most {SCHEMA}",
            str(found),
            "use the fleet version that wrote it, or build another with "
            "`fleet store rebuild --store OTHER.duckdb`",
        )


def migrate(con: duckdb.DuckDBPyConnection) -> int:
    """Bring a store to :data:`SCHEMA`, each migration in one transaction. Returns the number found.

    Raises:
        StoreError: when it is newer, or no store.
    """
    found = schema_of(con)
    require_known(con, found)
    for number in range(found + 1, SCHEMA + 1):
        con.execute("BEGIN")
        if number == 1:
            con.execute("CREATE TABLE meta(key VARCHAR PRIMARY KEY, value VARCHAR NOT NULL)")
        con.execute(MIGRATIONS[number - 1])
        con.execute("INSERT OR REPLACE INTO meta VALUES ('schema', ?)", [str(number)])
        con.execute("COMMIT")
    return found


def _path(con: duckdb.DuckDBPyConnection) -> str:
    row = con.execute("SELECT path FROM duckdb_databases() WHERE NOT internal").fetchone()
    return str(row[0]) if row and row[0] else "store"
