"""The plain-text summary beside an archive of golden evidence, derived from the archive alone.

``python -m tests.golden_summary ARCHIVE COMMIT`` prints it; COMMIT is that of the run, which the
evidence does not hold. Nothing is copied from a run's own answer: the store is rebuilt from the
landing, and the judge is asked again.
"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from fleet.evidence.landing import Landing
from fleet.evidence.summary import AttemptSummary
from fleet.report.answers import Answers, Asked, CampaignAnswer, known_contracts
from fleet.report.measured import measured
from fleet.schedule.plan import MUST
from fleet.store import queries
from fleet.store.open import open_reader, open_writer, publish
from fleet.store.rebuild import rebuild

FACTS = ("gpu_model", "driver", "cuda", "cublas", "cudnn", "cpu_model", "python")
CULPRIT = ("path", "class", "kind", "step", "shape", "dtype", "unique", "repeats")


def summary_of(archive: Path, commit: str, work: Path) -> dict[str, Any]:
    """What the archived landing says, as the product of today judges it.

    Args:
        archive: a compressed tar with the folder ``landing``.
        commit: of the run.
        work: an empty folder.
    """
    with tarfile.open(archive) as opened:
        opened.extractall(work, filter="data")
    landing = Landing.open(work / "landing")
    rebuild(work / "store.duckdb", landing)
    with open_writer(work / "store.duckdb") as writer:
        publish(writer)
    with open_reader(work / "store.duckdb") as store:
        answers = Answers(store, landing)
        known = known_contracts(store)
        named = [a for a in known if a.name not in MUST]
        controls = [a for a in known if a.name in MUST]
        (campaign,) = {s.campaign for s in queries.summaries(store.con)}
        answer = answers.campaign(campaign, named, controls)
        head = _head(landing, queries.summaries(store.con, campaign=campaign), commit)
        found = [_entry(answers, landing, asked, answer) for asked in named]
    behaved = {c.verdict.contract: not c.mismatches for c in answer.controls}
    return head | {"controls_behave": behaved, "contracts": found}


def _head(landing: Landing, summaries: list[AttemptSummary], commit: str) -> dict[str, Any]:
    manifests = [json.loads(landing.manifest(s.attempt).read_bytes()) for s in summaries]
    facts = manifests[0]["platform"]["facts"]
    packages = {name: p["version"] for name, p in facts["packages"].items() if "nvidia" not in name}
    return {
        "campaign": summaries[0].campaign,
        "commit": commit,
        "units": sorted({m["unit"]["id"] for m in manifests}),
        "platform_sha256": sorted({m["platform_sha256"] for m in manifests}),
        **{name: facts[name] for name in FACTS},
        "packages": packages,
        "attempts": len(manifests),
        "states": sorted({m["state"] for m in manifests}),
    }


def _entry(
    answers: Answers, landing: Landing, asked: Asked, answer: CampaignAnswer
) -> dict[str, Any]:
    verdict = next(v for v in answer.contracts if v.contract == asked.name)
    store = answers.store
    landed = queries.summaries(store.con, execution_id=asked.execution_id)
    found = answers.traced(answer.campaign, landed).found
    figures = measured(landing, landed)
    return {
        "contract": asked.name,
        "execution_id": asked.execution_id,
        "verdict": verdict.verdict,
        "attained_grade": verdict.attained_grade,
        "layer": verdict.layer,
        "records": verdict.records,
        "mismatches": verdict.mismatches,
        "exact": {
            arm: {grade: f"{n['exact']}/{n['total']}" for grade, n in grades.items()}
            for arm, grades in verdict.arms.items()
        },
        "logits_roots": sorted(verdict.roots.get("logits", ())),
        "fault": verdict.fault,
        "culprit": verdict.culprit and {name: verdict.culprit[name] for name in CULPRIT},
        "also": [] if found is None else list(found.also),
        "tokens_per_s": figures.tokens_per_s,
        "load_s": figures.load_s,
        "peak_bytes": figures.peak_bytes,
        "kernels": figures.kernels,
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(summary_of(Path(sys.argv[1]), sys.argv[2], Path(folder)), indent=1))
