"""How near each record of an attempt stands to another token, straight from its own parts.

Reads no other attempt's parts, and of many only the first, so that it takes no longer however much
else has landed. Knows no verdict.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import duckdb
import pyarrow.parquet as pq

from fleet.errors import StoreError
from fleet.evidence.landing import Landing
from fleet.store.open import Connection
from fleet.store.queries import MarginRow

_MARGINS = """
SELECT arm, sample_id, min(list_min(margin_ulps)) AS ulps, min(list_min(margin_logits)) AS logits,
       bool_or(list_contains(margin_ulps, 0))
FROM read_parquet(?) WHERE len(margin_ulps) > 0 GROUP BY arm, sample_id
ORDER BY ulps, logits, arm, sample_id
"""


def margins_of(
    con: Connection, landing: Landing, attempt: str, enough: int | None = None
) -> list[MarginRow]:
    """Records of one attempt, nearest to another token first.

    Args:
        con: of any store: it only counts.
        landing: where the attempt's parts are.
        attempt: of one that is COMPLETE: all of its parts count.
        enough: no further part is read once so many rows were; None for all of them.

    Raises:
        StoreError: a part cannot be read.
    """
    try:
        paths = list(_first(landing.parts(attempt), enough))
        found = con.execute(_MARGINS, [[str(p) for p in paths]]).fetchall() if paths else []
    except (OSError, ValueError, duckdb.Error) as error:
        line = str(error).splitlines()[0]
        expected, fix = "the parts that were ingested", "fleet store ingest"
        raise StoreError(str(landing.attempt(attempt)), "", expected, line, fix) from error
    return [MarginRow(*row) for row in found]


def _first(paths: Sequence[Path], enough: int | None) -> Iterator[Path]:
    rows = 0
    for path in paths:
        if enough is not None and rows >= enough:
            return
        rows += pq.read_metadata(path).num_rows
        yield path
