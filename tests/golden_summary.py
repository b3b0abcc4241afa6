"""The plain-text summary beside an archive of golden evidence, derived from the archive alone.

``python -m tests.golden_summary ARCHIVE COMMIT`` prints it; COMMIT is that of the run, which the
evidence does not hold. Nothing is copied from a run's own answer: the store is rebuilt from the
landing, and the judge is asked again, of every campaign over all that landed.
"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from fleet.evidence.landing import Landing
from fleet.evidence.summary import AttemptSummary
from fleet.evidence.trace import calls_files, read_trace
from fleet.judge.tracing.calls import coverage
from fleet.judge.verdict import Verdict
from fleet.report.answers import Answers, Asked, known_contracts
from fleet.report.measured import measured
from fleet.schedule.plan import MUST
from fleet.store import queries
from fleet.store.open import open_reader, open_writer, publish
from fleet.store.rebuild import rebuild

FACTS = ("gpu_model", "driver", "cuda", "cublas", "cudnn", "cpu_model", "python")
CULPRIT = (
    "path", "class", "kind", "step", "shape", "dtype", "unique", "repeats", "source", "digests",
)  # fmt: skip


def unpacked(archive: Path, work: Path) -> Landing:
    """The archived landing, in an empty folder."""
    with tarfile.open(archive) as opened:
        opened.extractall(work, filter="data")
    return Landing.open(work / "landing")


def summary_of(landing: Landing, commit: str, store_path: Path) -> dict[str, Any]:
    """What a landing of one platform says, as the product of today judges it.

    Args:
        landing: the evidence.
        commit: of the run.
        store_path: where the store is built.
    """
    rebuild(store_path, landing)
    with open_writer(store_path) as writer:
        publish(writer)
    with open_reader(store_path) as store:
        answers = Answers(store, landing)
        known = known_contracts(store)
        ran = [row.campaign for row in queries.campaigns(store.con)]
        campaigns = [_campaign(answers, name, known) for name in ran]
        head = _head(landing, queries.summaries(store.con), commit)
    return head | {"campaigns": campaigns}


def _head(landing: Landing, summaries: list[AttemptSummary], commit: str) -> dict[str, Any]:
    manifests = [_manifest(landing, s) for s in summaries]
    facts = manifests[0]["platform"]["facts"]
    packages = {name: p["version"] for name, p in facts["packages"].items() if "nvidia" not in name}
    formats = {_trace_format(landing, m) for m in manifests if m["trace"]}
    return {
        "commit": commit,
        "units": sorted({m["unit"]["id"] for m in manifests}),
        "platform_sha256": sorted({m["platform_sha256"] for m in manifests}),
        **{name: facts[name] for name in FACTS},
        "packages": packages,
        "trace_formats": sorted(formats),
    }


def _manifest(landing: Landing, summary: AttemptSummary) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(landing.manifest(summary.attempt).read_bytes())
    return body


def _trace_format(landing: Landing, manifest: dict[str, Any]) -> int:
    first = calls_files(manifest["trace"]["files"])[0]
    schema = pq.read_schema(landing.attempt(manifest["attempt"]) / first)
    return int(schema.metadata[b"fleet.trace_format"])


def _campaign(answers: Answers, campaign: str, known: list[Asked]) -> dict[str, Any]:
    summaries = queries.summaries(answers.store.con, campaign=campaign)
    ran = {s.execution_id for s in summaries}
    named = [
        a.about(vary)
        for a in known
        if a.execution_id in ran and a.name not in MUST
        for vary in dict.fromkeys(s.vary for s in summaries if s.execution_id == a.execution_id)
    ]
    controls = [a for a in known if a.execution_id in ran and a.name in MUST]
    answer = answers.campaign(campaign, named, controls)
    return {
        "campaign": campaign,
        "attempts": len(summaries),
        "states": sorted({s.state for s in summaries}),
        "controls_behave": {c.verdict.contract: not c.mismatches for c in answer.controls},
        "contracts": [
            _entry(answers, asked, verdict, answer.campaign)
            for asked, verdict in zip(named, answer.contracts, strict=True)
        ],
    }


def _entry(answers: Answers, asked: Asked, verdict: Verdict, campaign: str) -> dict[str, Any]:
    everything = queries.summaries(
        answers.store.con, execution_id=asked.execution_id, campaign=campaign
    )
    landed = [s for s in everything if s.vary == verdict.vary]
    found = answers.localised(campaign, asked.require, landed)
    figures = measured(answers.landing, landed)
    return {
        "contract": asked.name,
        "execution_id": asked.execution_id,
        "vary": list(verdict.vary),
        "scope": verdict.scope,
        "units": len(verdict.units),
        "varied": [
            [s.varied, _manifest(answers.landing, s).get("stress", {})] for s in landed if s.varied
        ],
        "verdict": verdict.verdict,
        "reason": verdict.reason,
        "attained_grade": verdict.attained_grade,
        "layer": verdict.layer,
        "records": verdict.records,
        "mismatches": verdict.mismatches,
        "exact": {
            arm: {grade: f"{n['exact']}/{n['total']}" for grade, n in grades.items()}
            for arm, grades in verdict.arms.items()
        },
        "logits_roots": sorted(verdict.roots.get("logits", ())),
        "modules_roots": sorted(verdict.roots.get("modules", ())),
        "fault": verdict.fault,
        "culprit": verdict.culprit and {name: verdict.culprit[name] for name in CULPRIT},
        "also": [] if found is None else list(found.also),
        "tokens_per_s": figures.tokens_per_s,
        "load_s": figures.load_s,
        "peak_bytes": figures.peak_bytes,
        "kernels": figures.kernels,
        "traced": [_watched(answers.landing, s) for s in landed if s.trace],
    }


def _watched(landing: Landing, summary: AttemptSummary) -> dict[str, Any]:
    """One certification replay that was traced throughout: what was seen of it, and at what cost.

    ``gap`` and ``doubt`` are None where all calls were seen and the hooks changed no bit.
    """
    manifest = _manifest(landing, summary)
    folder, volatile = landing.attempt(summary.attempt), manifest["volatile"]
    trace = read_trace(landing, summary.attempt)
    return {
        "attempt": summary.attempt,
        "digests": {"calls": manifest["trace"]["digests"], "rows": volatile["digests"]},
        "coverage": trace and coverage(trace),
        "gap": summary.trace["gap"],
        "doubt": summary.trace["doubt"],
        "trace_bytes": sum((folder / name).stat().st_size for name in manifest["trace"]["files"]),
        "generate_s": volatile["generate_s"] - volatile["load_s"],
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        landed = unpacked(Path(sys.argv[1]), Path(folder))
        summary = summary_of(landed, sys.argv[2], Path(folder) / "store.duckdb")
        print(json.dumps(summary, indent=1))
