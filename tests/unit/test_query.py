"""``fleet query``: somebody's SQL reads views, and nothing can be made of it that does more."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from fleet.errors import UsageError
from fleet.evidence.landing import Landing
from fleet.report import views
from fleet.report.answers import Answers
from fleet.report.status import status_rows
from fleet.store import sandbox
from fleet.store.open import open_reader
from tests.campaigns import places_in
from tests.integration.command_line import tree
from tests.unit.screens import shown

ESCAPES = {
    "copy out": "COPY (SELECT 1) TO '{0}/out'",
    "copy in": "COPY units FROM '/etc/passwd'",
    "attach": "ATTACH '{0}/other.db'",
    "detach": "DETACH fleet",
    "install": "INSTALL httpfs",
    "load": "LOAD httpfs",
    "pragma": "PRAGMA database_list",
    "set": "SET enable_external_access = true",
    "reset": "RESET lock_configuration",
    "call": "CALL pragma_version()",
    "two statements": "SELECT 1; SELECT 2",
    "none": "",
    "a comment": "-- nothing",
    "no SQL": "SELEC 1",
    "create": "CREATE TEMP TABLE x AS SELECT 1",
    "insert": "INSERT INTO units VALUES ('a', 'b', 'c')",
    "delete": "DELETE FROM units",
    "drop": "DROP VIEW pairs",
    "insert in a CTE": "WITH x AS (INSERT INTO units VALUES ('a', 'b', 'c') RETURNING id) FROM x",
    "delete in a CTE": "WITH x AS (DELETE FROM units RETURNING id) SELECT * FROM x",
    "export": "EXPORT DATABASE '{0}/export'",
    "import": "IMPORT DATABASE '{0}/export'",
    "explain": "EXPLAIN ANALYZE SELECT 1",
    "transaction": "BEGIN",
    "use": "USE memory",
    "checkpoint": "CHECKPOINT",
    "vacuum": "VACUUM",
    "prepare": "PREPARE x AS SELECT 1",
    "pivot": "PIVOT units ON id",
    "read_csv": "SELECT * FROM read_csv('/etc/passwd')",
    "read_text": "SELECT content FROM read_text('/etc/passwd')",
    "read_blob": "FROM read_blob('{0}/var/landing/FORMAT.json')",
    "read_json": "FROM read_json('{0}/var/landing/FORMAT.json')",
    "read_parquet": "FROM read_parquet('{0}/var/landing/attempts/*/part-*.parquet')",
    "glob": "FROM glob('/*')",
    "sniff": "FROM sniff_csv('/etc/passwd')",
    "metadata": "FROM parquet_metadata('{0}/var/landing/attempts/*/part-00000.parquet')",
    "a file's name": "SELECT * FROM '/etc/passwd'",
    "a part's name": "FROM '{0}/var/landing/attempts/*/part-*.parquet'",
    "in a subquery": "SELECT (SELECT content FROM read_text('/etc/passwd'))",
    "in a CTE": "WITH r AS (FROM read_text('/etc/passwd')) SELECT * FROM r",
    "in a limit": "SELECT 1 LIMIT (SELECT count(*) FROM glob('/*'))",
    "in a lambda": "SELECT list_transform([1], x -> (SELECT count(*) FROM glob('/*')))",
    "in EXISTS": "SELECT 1 WHERE EXISTS (FROM read_text('/etc/passwd'))",
    "in a union": "SELECT 'a' UNION ALL SELECT content FROM read_text('/etc/passwd')",
    "in a join": "SELECT * FROM units JOIN read_text('/etc/passwd') ON true",
    "described": "DESCRIBE FROM read_csv('/etc/passwd')",
    "summarised": "SUMMARIZE '/etc/passwd'",
    "query()": "FROM query('SELECT * FROM read_text(''/etc/passwd'')')",
    "query_table()": "FROM query_table('/etc/passwd')",
    "serialised": "FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))",
    "settings": "FROM duckdb_settings()",
    "secrets": "FROM which_secret('s3://x', 's3')",
    "logging": "FROM enable_logging()",
    "pointers": "FROM arrow_scan(1, 2, 3)",
    "a variable of Python's": "SELECT * FROM con",
    "another schema": "FROM pg_catalog.pg_settings",
    "parameters": "SELECT $1",
    "a column that is not": "SELECT nope FROM units",
    "a log": "SELECT write_log('x')",
}


@pytest.fixture(scope="module")
def root(campaigned: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("query") / "copy"
    shutil.copytree(campaigned, copy)
    places = places_in(copy)
    from fleet.store.ingest import ingest
    from fleet.store.open import open_writer, publish

    with open_writer(places.store) as store:  # the views name the landing's own folder
        ingest(store, Landing.open(places.landing))
        publish(store)
    return copy


@pytest.fixture
def answers(root: Path) -> Iterator[Answers]:
    places = places_in(root)
    with open_reader(places.store) as store:
        yield Answers(store, Landing.open(places.landing))


def ask(
    answers: Answers, root: Path, sql: str, limit: int = 1000, seconds: float = 60.0
) -> sandbox.Result:
    """As the verb does."""
    con, places, now_s = answers.store.con, places_in(root), time.time()
    select = sandbox.parse(con, sql, tuple(views.JUDGED))

    def statuses() -> list[views.StatusRow]:
        return status_rows(answers, [], places.search, places.cache, now_s)

    views.fill(con, tuple(select.tables), answers, statuses, now_s)
    folder = answers.landing.root / "attempts"
    return sandbox.run(answers.store, select, folder, limit, seconds)


@pytest.mark.parametrize("sql", ESCAPES.values(), ids=ESCAPES.keys())
def test_what_does_more_than_read_views_is_refused_and_leaves_nothing(
    answers: Answers, root: Path, sql: str
) -> None:
    before = tree(root)
    with pytest.raises(UsageError) as refused:
        ask(answers, root, sql.format(root))
    assert refused.value.where == "query" and "\n" not in refused.value.got
    assert tree(root) == before


FENCED = [
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_csv('{0}/configs/datasets/five.toml')",
    "SELECT * FROM read_parquet('{0}/var/landing/attempts/*/part-*.parquet')",
    "SELECT * FROM glob('{0}/var/landing/*')",
    "COPY (SELECT 1) TO '{0}/out'",
    "ATTACH '{0}/other.db'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SET enable_external_access = true",
    "SET allowed_directories = ['/']",
    "RESET lock_configuration",
    "SET temp_directory = '{0}'",
    "INSERT INTO units VALUES ('a', 'b', 'c')",
]


@pytest.mark.parametrize("sql", FENCED)
def test_the_second_fence_holds_without_the_first(answers: Answers, root: Path, sql: str) -> None:
    """Whatever a parser might let through, the connection itself cannot do it."""
    sandbox.confine(answers.store.con, [])
    with pytest.raises(duckdb.Error):
        answers.store.con.execute(sql.format(root)).fetchall()


def test_the_rows_of_the_landing_are_read_through_their_views_alone(
    answers: Answers, root: Path
) -> None:
    found = ask(
        answers, root,
        "SELECT arm, count(*) AS n, count(DISTINCT m.attempt) FROM records r "
        "JOIN margins m USING (attempt, arm, position) GROUP BY arm ORDER BY arm",
    )  # fmt: skip
    assert found.columns[:2] == ("arm", "n")
    (current, controlled) = found.rows[1], found.rows[0]
    assert (controlled[0], current[0]) == ("controlled", "current")
    assert controlled[1] == current[1] > 0
    outside = f"FROM read_text('{root}/configs/datasets/five.toml')"
    with pytest.raises(duckdb.PermissionException):
        answers.store.con.execute(outside)


READS = [
    ("SELECT count(*) FROM pairs WHERE NOT same_root AND grade = 'logits'", None),
    ("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3) FROM n", 3),
    ("SELECT * FROM range(4)", 4),
    ("SELECT unnest([1, 2])", 2),
    ("VALUES (1), (2)", 2),
    ("SELECT count(*) FROM main.classes", 1),
    ("DESCRIBE verdicts", None),
    ("SHOW TABLES", None),
    ("SELECT table_name FROM information_schema.tables", None),
    ("SELECT * FROM VERDICTS v WHERE v.state = 'PASS' AND v.contract = 'toy'", 1),
    ("SELECT 1;", 1),
]


@pytest.mark.parametrize(("sql", "count"), READS)
def test_what_reads_runs(answers: Answers, root: Path, sql: str, count: int | None) -> None:
    found = ask(answers, root, sql)
    assert found.rows and (count is None or len(found.rows) == count)


def test_verdicts_are_those_of_a_status_and_join_by_their_digests(
    answers: Answers, root: Path
) -> None:
    found = ask(
        answers, root,
        "SELECT v.contract, v.grade, v.n, s.complete, v.platform, v.expires_at > v.accepted_at "
        "FROM verdicts v JOIN status s USING (execution_id, platform) WHERE v.contract = 'toy'",
    )  # fmt: skip
    (row,) = found.rows
    assert row[:4] == ("toy", "logits", 10, 2) and row[5] is True
    document = views.result_document(found)
    assert document["rows"][0][4].startswith("sha256:")
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_coverage_says_what_was_never_tested_where(answers: Answers, root: Path) -> None:
    found = ask(answers, root, "SELECT tested, state FROM coverage WHERE contract = 'smollm2-bf16'")
    assert found.rows == ((False, "UNTESTED"),)


def test_suspects_is_empty_without_an_odd_replay(answers: Answers, root: Path) -> None:
    assert ask(answers, root, "FROM suspects").rows == ()


def test_rows_are_bounded_and_that_is_said(answers: Answers, root: Path) -> None:
    found = ask(answers, root, "SELECT i FROM range(10) r(i) ORDER BY i", limit=3)
    assert (len(found.rows), found.truncated) == (3, True)
    assert "there are more" in shown(views.print_result, found)


ENDLESS = "SELECT count(*) FROM range(1000000000) a, range(1000000000) b"


def test_a_query_that_does_not_end_is_interrupted(answers: Answers, root: Path) -> None:
    with pytest.raises(UsageError, match=r"limit of 0\.3 s"):
        ask(answers, root, ENDLESS, seconds=0.3)


def test_a_query_that_needs_too_much_memory_is_refused(
    answers: Answers, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "MEMORY", "20MB")
    with pytest.raises(UsageError, match="needs at most 20MB"):
        ask(answers, root, "SELECT list(i::VARCHAR || 'x') FROM range(20000000) r(i)")


def test_values_that_json_has_not_are_text(answers: Answers, root: Path) -> None:
    sql = (
        "SELECT 'nan'::DOUBLE, DATE '2026-11-30', 1.50::DECIMAL(9,2), 'ab'::BLOB, [1, NULL], "
        "INTERVAL 1 DAY, uuid() IS NULL"
    )
    document = views.result_document(ask(answers, root, sql))
    text = json.dumps(document, allow_nan=False)
    assert json.loads(text)["rows"] == [
        ["nan", "2026-11-30", "1.50", "6162", [1, None], "1 day, 0:00:00", False]
    ]


def test_every_view_is_documented_with_its_columns(root: Path) -> None:
    places = places_in(root)
    with open_reader(places.store) as store:
        listed = views.views_of(store.con)
    assert {view.name for view in listed} == {
        "records", "pairs", "verdicts", "status", "classes", "margins", "suspects", "coverage",
    }  # fmt: skip
    text = shown(views.print_views, listed)
    for view in listed:
        assert view.columns and f"{view.name}: {view.words}" in text
        with open_reader(places.store) as store:
            answers = Answers(store, Landing.open(places.landing))
            assert ask(answers, root, f"FROM {view.name} LIMIT 1").columns == view.columns
