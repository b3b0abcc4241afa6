"""A varied key-value cache is held against the rows and the settings that landed with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fleet.errors import EvidenceError
from fleet.evidence.ledger import read_chain
from fleet.evidence.manifest import Manifest
from fleet.evidence.rows import decode_steps
from fleet.evidence.stress import check_plan, check_stress
from tests.unit.forged_landing import A, landed

STEPS = 10
"""Two arms of five rows, each alone in its batch, of two tokens."""
OWN = {"batch_size": 1, "num_threads": 1, "num_samples": 5, "cores": 2, "use_cache": True}
WITH = {"in_force": True, "cached": STEPS, "uncached": 0, "unclear": 0}
WITHOUT = {"in_force": False, "cached": 0, "uncached": STEPS, "unclear": 0}


def check(
    root: Path, replay: int, in_force: bool, stress: dict[str, Any], own: dict[str, Any] = OWN
) -> None:
    """Judge a replay that says this of itself; the ledger planned it as it plans any."""
    landing = landed(root)
    (entry,) = (e for e in read_chain(landing, "c1") if e.kind == "planned")
    varied = {"cache": not own["use_cache"]} if replay else {}
    plan = {"vary": ["cache"], "varied": varied, "own": own, "replay": replay, "batch_size": 1}
    planned = replace(entry, body=dict(entry.body) | plan)
    manifest = replace(
        Manifest.from_bytes(landing.manifest(A.attempt).read_bytes()),
        vary=("cache",),
        varied=varied,
        effective_end={"decoding.generation_config": {"use_cache": in_force}},
        stress=stress,
    )
    check_plan(planned, manifest)
    check_stress(planned, manifest, landing.parts(A.attempt))


def test_one_replay_with_the_cache_and_one_without_are_evidence(tmp_path: Path) -> None:
    check(tmp_path / "a", 0, True, {"cache": WITH})
    check(tmp_path / "b", 1, False, {"cache": WITHOUT})
    without = OWN | {"use_cache": False}
    check(tmp_path / "c", 0, False, {"cache": WITHOUT}, without)
    check(tmp_path / "d", 1, True, {"cache": WITH}, without)


@pytest.mark.parametrize(
    ("replay", "in_force", "stress", "code", "words"),
    [
        (1, False, {"cache": WITH}, "stress-not-applied", "use_cache False planned"),
        (1, False, {"cache": WITHOUT | {"cached": 1}}, "stress-not-applied", "'cached': 1"),
        (0, True, {"cache": WITHOUT | {"in_force": True}}, "stress-not-applied", "'cached': 0"),
        (1, True, {"cache": WITHOUT}, "evidence-altered", "use_cache True read back"),
        (1, False, {"cache": WITHOUT | {"uncached": 9}}, "evidence-altered", "rows have 10"),
        (0, True, {}, "evidence-altered", "counters {}"),
        (0, True, {"cache": WITH, "order": {}}, "evidence-altered", "'order'"),
    ],
    ids=["had one", "had one once", "reference without", "read back", "rows", "silent", "more"],
)
def test_anything_else_is_void(
    tmp_path: Path, replay: int, in_force: bool, stress: dict[str, Any], code: str, words: str
) -> None:
    with pytest.raises(EvidenceError) as error:
        check(tmp_path, replay, in_force, stress)
    assert error.value.code == code
    assert words in error.value.text


def test_a_batch_has_as_many_steps_as_its_longest_row(tmp_path: Path) -> None:
    rows = [("a", 0, 3), ("a", 0, 5), ("a", 1, 1), ("b", 0, 2)]
    names = ("arm", "batch_ordinal", "generated_token_count")
    table = pa.table({name: [row[i] for row in rows] for i, name in enumerate(names)})
    pq.write_table(table.slice(0, 1), tmp_path / "one")
    pq.write_table(table.slice(1), tmp_path / "two")
    assert decode_steps([tmp_path / "one", tmp_path / "two"]) == 4 + 0 + 1
