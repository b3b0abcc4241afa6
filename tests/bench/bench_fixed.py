"""Fixed cost of a replay: what is left of it beside importing, loading and generating.

    python -m tests.bench.bench_fixed [--replays 5]

Real replays on a local Ray. Whole: from the ledger's *planned* to its *accepted*. Taken off: the
import of torch and the engine's libraries, the load of the weights, and generation, as the manifest
has them. What is left is actor, probe, pinned content, inputs, landing, ledger, manifest and the
watched end of the process. Target 5 s.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fleet.evidence.landing import Landing
from fleet.evidence.ledger import Entry, read_chain
from fleet.evidence.manifest import Manifest
from fleet.replay.checkpoint import default_cache, silent
from fleet.schedule.cluster import RayCluster
from fleet.schedule.driver import Campaign, Limits
from fleet.schedule.plan import plan
from fleet.schedule.resolve import resolve_contract
from tests.bench.result import Result

CONFIGS = Path(__file__).parents[2] / "configs"
TARGET_S = 5.0
CONTRACTS = {"synthetic": "synthetic", "tiny-llama": "control-clean"}
SAMPLES = 4


def bench(launcher: RayCluster, name: str, replays: int, folder: Path) -> Result:
    """The fixed seconds of each replay of one contract."""
    resolved = resolve_contract(CONTRACTS[name], (CONFIGS,), default_cache(os.environ), silent)
    landing = Landing.open(folder / name, create=True)
    campaign = Campaign(
        landing=landing,
        launcher=launcher,
        contracts={resolved.name: resolved},
        scratch=folder / "scratch",
        limits=Limits(overlap=False),  # one that waits for another costs nothing
        samples=resolved.dataset.ids[:SAMPLES],
    )
    ends = campaign.run(plan([(resolved.name, replays)], []))
    odd = [f"{end.attempt}: {end.state} {end.cause}" for end in ends if end.state != "COMPLETE"]
    if odd:
        raise RuntimeError(f"{resolved.name}: {'; '.join(odd)}")
    chain = read_chain(landing, campaign.id)
    found = [_seconds(landing, end.attempt, chain) for end in ends]
    return Result(
        f"fixed cost per replay, {name}",
        TARGET_S,
        tuple(fixed for fixed, _ in found),
        "s",
        more={"whole_s": [whole for _, whole in found]},
    )


def _seconds(landing: Landing, attempt: str, chain: list[Entry]) -> tuple[float, float]:
    """(fixed, whole) seconds of one attempt."""
    at_s = {entry.kind: entry.at_s for entry in chain if entry.attempt == attempt}
    whole_s = at_s["accepted"] - at_s["planned"]
    took = Manifest.from_bytes(landing.manifest(attempt).read_bytes()).volatile
    # load_s and generate_s are when they ended, prepare_s is when loading began.
    return whole_s - took["import_s"] - (took["generate_s"] - took["prepare_s"]), whole_s


def run(quick: bool = False) -> Iterator[Result]:
    """One result per contract; ``quick`` for a smoke test."""
    with tempfile.TemporaryDirectory() as folder, RayCluster() as launcher:
        for name in ("synthetic",) if quick else CONTRACTS:
            yield bench(launcher, name, 1 if quick else 5, Path(folder))


def main() -> None:
    """Print one JSON line per contract."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--replays", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, RayCluster() as launcher:
        for name in CONTRACTS:
            result = bench(launcher, name, given.replays, Path(folder))
            print(json.dumps(result.to_json()), flush=True)


if __name__ == "__main__":
    main()
