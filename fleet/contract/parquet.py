"""A dataset in Parquet: its columns are the fields of the records, ``images`` holds image bytes.

``images`` is a list of byte strings, or of structs with a field ``bytes``. A record names its
images by digest as in JSON Lines, and its line is its canonical JSON: records and raw bytes have
one form, whatever file they lay in. One row group is in memory at a time; pyarrow is imported when
such a file is read. Knows no pixel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fleet.contract.canonical import canonical_json, sha256, to_text
from fleet.contract.images import FIELD
from fleet.errors import DatasetError


def parquet_lines(file: Path) -> Iterator[bytes]:
    """Each row as the line that it would be in JSON Lines, in file order.

    Raises:
        DatasetError: no Parquet, or a column that no record can hold.
    """
    for group in range(_open(file).num_row_groups):
        for row in _rows(file, group, None):
            yield _line(row, file)


def parquet_images(file: Path, group: int) -> dict[str, list[bytes]]:
    """Sample id -> bytes of its images, of one row group."""
    return {str(row["id"]): _bytes(row, file) for row in _rows(file, group, ["id", FIELD])}


def row_groups(file: Path) -> dict[str, int]:
    """Sample id -> the row group that holds it."""
    groups = range(_open(file).num_row_groups)
    return {str(row["id"]): group for group in groups for row in _rows(file, group, ["id"])}


def _open(file: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(file)
    except (OSError, pa.ArrowInvalid) as error:
        got = str(error).splitlines()[0]
        raise DatasetError(str(file), "", "a Parquet file", got, "restore the file") from error


def _rows(file: Path, group: int, columns: list[str] | None) -> Iterator[dict[str, Any]]:
    with _open(file) as opened:
        if columns and not set(columns) <= set(opened.schema_arrow.names):
            columns = ["id"]
        yield from opened.read_row_group(group, columns=columns).to_pylist()


def _line(row: Mapping[str, Any], file: Path) -> bytes:
    fields = {key: value for key, value in row.items() if value is not None}
    if FIELD in fields:
        fields[FIELD] = [{"sha256": to_text(sha256(data))} for data in _bytes(row, file)]
    try:
        return canonical_json(fields)
    except (TypeError, ValueError) as error:
        expected = "columns of text, numbers, truth values, lists and structs of these"
        raise DatasetError(
            str(file), f"record {row.get('id')}", expected, str(error), "leave the column out"
        ) from error


def _bytes(row: Mapping[str, Any], file: Path) -> list[bytes]:
    found = [item["bytes"] if isinstance(item, dict) else item for item in row.get(FIELD) or ()]
    if all(isinstance(data, bytes) for data in found):
        return found
    raise DatasetError(
        str(file),
        f"record {row.get('id')}: {FIELD}",
        'a list of byte strings, or of structs with "bytes"',
        "a list of something else",
        "put the bytes of the image files there",
    )
