"""Warm a node's pinned kernel cache before any attempt, for each contract that compiles.

What a backend compiles at its first load would otherwise change the cache under a replay, which is
VOID. What claims vary makes other shapes, and those are covered too, each key-value cache by a
process of its own. Nothing of it is evidence, so processes run side by side, as many as fit on the
device. What one of them adds another sees, so they go in rounds until a round of a contract adds
nothing. Knows no verdict; a contract that cannot be warmed says why in its own attempts.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from fleet.contract.model import COMPILED, Contract
from fleet.errors import AttemptFailed
from fleet.schedule.claims import Claims
from fleet.schedule.driver import SLOT_ZERO, Campaign
from fleet.schedule.resolve import Resolved

AT_ONCE = 4
AT_MOST = 4
"""Rounds until nothing was added. A compiler that always adds something has no pinned cache; its
contracts need a cold one."""

Outcome = Mapping[str, Any] | str
"""What was compiled, or the cause why not."""


def warm(
    campaign: Campaign, claims: Claims | None = None, every_engine: bool = False
) -> dict[str, Outcome]:
    """Compile what the campaign's contracts will use; contract -> outcome.

    Args:
        campaign: its contracts, launcher and scratch folder.
        claims: of the contracts; exact repeats where there are none.
        every_engine: also engines that compile nothing as a rule.
    """
    known = claims or {}
    chosen = [
        r
        for r in campaign.contracts.values()
        if r.checkpoint is not None and _compiles(r, known.get(r.name, ()), every_engine)
    ]
    if not chosen:
        return {}
    campaign.on_event(f"warming the kernel cache for {', '.join(r.name for r in chosen)}")
    jobs = [_Job(r, k) for r in chosen for k in _kinds(r.loaded.contract, known.get(r.name, ()))]
    with ThreadPoolExecutor(_at_once(campaign, chosen)) as pool:
        for _ in range(AT_MOST):
            left = [job for job in jobs if not job.is_over]
            list(pool.map(lambda job: job.run(campaign), left))
    outcomes = {r.name: _outcome([j for j in jobs if j.resolved is r]) for r in chosen}
    for name, outcome in outcomes.items():
        if isinstance(outcome, str):
            campaign.on_event(f"{name} could not be warmed: {outcome}")
    return outcomes


def _compiles(resolved: Resolved, claims: Sequence[Sequence[str]], every_engine: bool) -> bool:
    """Into the pinned cache: some replay of a claim that varies it takes that one, and whoever asks
    for such a claim says that something is compiled."""
    contract = resolved.loaded.contract
    injected = contract.control is not None and contract.control.inject.startswith(COMPILED)
    usual = every_engine or injected or contract.model.engine == "gptqmodel"
    varied = any("kernel_cache" in vary for vary in claims)
    return varied or (usual and contract.determinism.kernel_cache == "pinned")


def _at_once(campaign: Campaign, chosen: list[Resolved]) -> int:
    """As many as the device holds twice over; one on a CPU, whose cores they would share."""
    device = campaign.launcher.place().device
    if device is None:
        return 1
    largest = max(
        sum(f.stat().st_size for f in r.checkpoint.glob("*.safetensors"))
        for r in chosen
        if r.checkpoint is not None
    )
    return max(1, min(AT_ONCE, device.total_bytes // max(1, 2 * largest)))


class _Kind(NamedTuple):
    """``vary`` and ``varied`` of the task of one process."""

    vary: tuple[str, ...]
    varied: dict[str, Any]


def _kinds(contract: Contract, claims: Sequence[Sequence[str]]) -> list[_Kind]:
    """Of processes that together cover the replays with the pinned cache: all that do not vary it,
    or where it is not the contract's own those that do. The reference is like an exact repeat; what
    else is varied makes no other shape."""
    pinned = contract.determinism.kernel_cache == "pinned"
    shown = [vary for vary in claims if ("kernel_cache" in vary) is not pinned]
    kinds = []
    for other_cache in (False, True):
        alike = [vary for vary in shown if ("cache" in vary) is other_cache]
        if alike or not other_cache:
            vary = ("batch",) if any("batch" in v for v in alike) else ()
            varied = {"cache": not contract.decoding.use_cache} if other_cache else {}
            kinds.append(_Kind(vary, {"kernel_cache": "pinned"} | varied))
    return kinds


@dataclass
class _Job:
    """One process a round, of one kind, until one adds nothing or fails."""

    resolved: Resolved
    kind: _Kind
    found: list[Mapping[str, Any]] = field(default_factory=list)
    why: str = ""

    @property
    def is_warm(self) -> bool:
        return bool(self.found) and bool(self.found[-1]["warm"])

    @property
    def is_over(self) -> bool:
        return self.is_warm or bool(self.why)

    def run(self, campaign: Campaign) -> None:
        try:
            self.found.append(_one_process(campaign, self.resolved, self.kind))
        except AttemptFailed as failed:
            self.why = str(failed)


def _outcome(jobs: Sequence[_Job]) -> Outcome:
    """Of one contract."""
    for job in jobs:
        if not job.is_warm:
            always = f'{AT_MOST} processes in a row added to the cache; write kernel_cache = "cold"'
            return job.why or always
    found = [each for job in jobs for each in job.found]
    return {
        "compiled": sum(each["compiled"] for each in found),
        "files": max(each["files"] for each in found),
        "seconds": sum(each["seconds"] for each in found),
    }


def _one_process(campaign: Campaign, resolved: Resolved, kind: _Kind) -> Mapping[str, Any]:
    task = campaign.task(SLOT_ZERO, resolved, f"prewarm-{secrets.token_hex(4)}")
    task = replace(task, vary=kind.vary, varied=kind.varied)
    environment = campaign.environment(task, resolved)
    threads = resolved.loaded.contract.determinism.num_threads
    try:
        return campaign.launcher.prewarm(task, environment, threads, campaign.limits.replay_s)
    finally:
        shutil.rmtree(campaign.scratch / task.attempt, ignore_errors=True)
