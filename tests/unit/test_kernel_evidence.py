"""Varied kernels are held against the digests of the folders that landed with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleet.contract.canonical import digest_json, to_text
from fleet.errors import EvidenceError
from fleet.evidence.ledger import read_chain
from fleet.evidence.manifest import Manifest
from fleet.evidence.stress import check_plan, check_stress
from tests.unit.forged_landing import A, landed

NONE = to_text(digest_json({}))
SOME, OTHERS = (to_text(digest_json({name: ""})) for name in ("some.so", "others.so"))
EMPTY = {"in_force": "cold", "files": 0, "compiled": 0}
BUILT = {"in_force": "cold", "files": 2, "compiled": 1}
THERE = {"in_force": "pinned", "files": 2, "compiled": 1}
COLD, PINNED = {"at_load": EMPTY, "at_end": BUILT}, {"at_load": THERE, "at_end": THERE}


def check(root: Path, replay: int, own: str, stress: dict[str, Any], digests: Any) -> None:
    """Judge a replay that says this of itself; the ledger planned it as it plans any."""
    landing = landed(root)
    (entry,) = (e for e in read_chain(landing, "c1") if e.kind == "planned")
    values = {"batch_size": 1, "num_threads": 1, "num_samples": 5, "cores": 2, "kernel_cache": own}
    varied = {"kernel_cache": "pinned" if own == "cold" else "cold"} if replay else {}
    plan = {"vary": ["kernel_cache"], "varied": varied, "own": values, "replay": replay}
    planned = replace(entry, body=dict(entry.body) | plan | {"batch_size": 1})
    manifest = replace(
        Manifest.from_bytes(landing.manifest(A.attempt).read_bytes()),
        vary=("kernel_cache",),
        varied=varied,
        effective={"kernel_cache_at_load": digests[0]},
        effective_end={"kernel_cache_at_end": digests[1]},
        stress={"kernel_cache": stress},
    )
    check_plan(planned, manifest)
    check_stress(planned, manifest, landing.parts(A.attempt))


def test_one_replay_with_pinned_kernels_and_one_that_compiled_are_evidence(tmp_path: Path) -> None:
    check(tmp_path / "a", 0, "pinned", PINNED, (SOME, SOME))
    check(tmp_path / "b", 1, "pinned", COLD, (NONE, SOME))
    check(tmp_path / "c", 0, "cold", COLD, (NONE, SOME))
    check(tmp_path / "d", 1, "cold", PINNED, (SOME, SOME))


@pytest.mark.parametrize(
    ("replay", "own", "stress", "digests", "code", "words"),
    [
        (1, "pinned", PINNED, (SOME, SOME), "stress-not-applied", "cold planned, read back pinned"),
        (0, "pinned", COLD, (NONE, SOME), "stress-not-applied", "pinned planned, read back cold"),
        (0, "cold", PINNED, (SOME, SOME), "stress-not-applied", "cold planned, read back pinned"),
        (1, "pinned", COLD | {"at_end": EMPTY}, (NONE, NONE), "stress-not-applied", "nothing was"),
        (1, "pinned", COLD, (SOME, OTHERS), "evidence-altered", "kernels"),
        (1, "pinned", COLD, (NONE, NONE), "evidence-altered", "kernels"),
        (1, "pinned", COLD, (NONE, None), "evidence-altered", "None"),
        (0, "pinned", PINNED, (SOME, OTHERS), "evidence-altered", "kernels"),
        (0, "pinned", PINNED, (NONE, NONE), "evidence-altered", "kernels"),
        (0, "pinned", PINNED, (None, None), "evidence-altered", "None"),
    ],
)  # fmt: skip
def test_anything_else_is_void(
    tmp_path: Path, replay: int, own: str, stress: Any, digests: Any, code: str, words: str
) -> None:
    with pytest.raises(EvidenceError) as error:
        check(tmp_path, replay, own, stress, digests)
    assert error.value.code == code
    assert words in error.value.text
