"""Slot turnover: from the end of one replay's generation to the start of the next one's, over a
warm load by itself.

    python -m tests.bench.bench_turnover [--contract NAME]

Real replays on a local Ray, in campaigns with and without overlap in turns (on off off on ...), so
that neither has the warmer machine. The load by itself is that of the replays without overlap: from
the token to the first generation, with nothing beside it. Without a GPU nothing overlaps, and there
is no target.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from fleet.evidence.landing import Landing
from fleet.evidence.manifest import Manifest
from fleet.replay.checkpoint import default_cache, silent
from fleet.schedule.cluster import RayCluster
from fleet.schedule.driver import Campaign, Limits
from fleet.schedule.plan import plan
from fleet.schedule.resolve import Resolved, resolve_contract
from fleet.schedule.warming import warm
from tests.bench.result import Result

CONFIGS = Path(__file__).parents[2] / "configs"
TARGET = 1.1
CONTRACT = "qwen2-7b-shapes-awq-full@awq_gemm"
"""It generates for longer than the next replay prepares."""

ON_A_CPU = "control-clean"
ORDER = (True, False, False, True)
REPLAYS = 4


def replays(
    launcher: RayCluster, resolved: Resolved, overlap: bool, number: int, folder: Path
) -> list[Manifest]:
    """The manifests of one campaign, in the order run."""
    landing = Landing.open(folder / "landing", create=True)
    campaign = Campaign(
        landing=landing,
        launcher=launcher,
        contracts={resolved.name: resolved},
        scratch=default_cache(os.environ) / "scratch",
        limits=Limits(overlap=overlap, retries=0),
    )
    warm(campaign)
    ends = campaign.run(plan([(resolved.name, number)], []))
    odd = [f"{end.attempt}: {end.state} {end.cause}" for end in ends if end.state != "COMPLETE"]
    if odd:
        raise RuntimeError(f"{resolved.name}: {'; '.join(odd)}")
    return [Manifest.from_bytes(landing.manifest(end.attempt).read_bytes()) for end in ends]


def turnover(before: Manifest, after: Manifest) -> dict[str, float]:
    """Seconds between two generations, and where they went: closing the one before until its death
    was seen, waiting for a free device, loading."""
    ended, begun = (
        m.volatile[key]
        for m, key in ((before, "generation_ended_at_s"), (after, "generation_begun_at_s"))
    )
    token, used = (after.freshness[k] for k in ("token_at_s", "device_first_used_after_s"))
    parts = {"closing": token - ended, "device": used - token, "loading": begun - used}
    return {"whole": begun - ended} | parts


def bench(launcher: RayCluster, name: str, order: Sequence[bool], folder: Path) -> Iterator[Result]:
    """With overlap, and without."""
    resolved = resolve_contract(name, (CONFIGS,), default_cache(os.environ), silent)
    ran: dict[bool, list[list[Manifest]]] = {True: [], False: []}
    for number, overlap in enumerate(order):
        found = replays(launcher, resolved, overlap, REPLAYS, folder / str(number))
        ran[overlap].append(found)
    roots = {m.roots["logits"] for kind in ran.values() for each in kind for m in each}
    loads = [
        m.volatile["load_s"] - m.volatile["prepare_s"] for each in ran[False] for m in each
    ]  # fmt: skip
    alone_s = median(loads)
    on_device = launcher.place().device is not None
    for overlap in sorted(set(order), reverse=True):
        found = [turnover(*pair) for each in ran[overlap] for pair in pairwise(each)]
        more: dict[str, Any] = {
            "contract": name,
            "load_alone_s": loads,
            "turnover_s": found,
            "roots": len(roots),
        }
        yield Result(
            f"slot turnover over a load alone, overlap {'on' if overlap else 'off'}",
            TARGET if overlap and on_device else None,
            tuple(each["whole"] / alone_s for each in found),
            "x",
            more=more,
        )


def run(quick: bool = False, contract: str | None = None) -> Iterator[Result]:
    """Both results; ``quick`` for a smoke test."""
    with tempfile.TemporaryDirectory() as folder, RayCluster() as launcher:
        usual = CONTRACT if launcher.place().device is not None else ON_A_CPU
        order = ORDER[:2] if quick else ORDER
        yield from bench(launcher, contract or usual, order, Path(folder))


def main() -> None:
    """Print one JSON line per result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--contract")
    for result in run(contract=parser.parse_args().contract):
        print(json.dumps(result.to_json()), flush=True)


if __name__ == "__main__":
    main()
