"""What a campaign asks the node of its unit before anything is planned, each in a fresh process.

Nothing of it is evidence and no weight is loaded. Knows no ledger and no verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fleet.errors import CannotRunError
from fleet.replay import caches
from fleet.replay.backends import Backend
from fleet.replay.task import device_environment
from fleet.schedule.driver import ONE, SLOT_ZERO, Campaign
from fleet.schedule.launcher import Problem

_WITHOUT_WEIGHTS = {
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "GPTQMODEL_OFFLINE": "1",
}
"""Environment of a process that prepares inputs and loads nothing."""


def preflight(campaign: Campaign) -> None:
    """Raise what the node says it cannot run.

    Raises:
        CannotRunError: naming the contract, the reason, and what can run.
    """
    _require_units(campaign)
    for problem in problems(campaign):
        where = str(campaign.contracts[problem.contract].loaded.path)
        raise CannotRunError(where, problem.key, problem.expected, problem.got, problem.fix)


def problems(campaign: Campaign) -> Sequence[Problem]:
    """Why some of the contracts cannot run on the unit."""
    tasks = [campaign.task(SLOT_ZERO, r, "0" * 16) for r in campaign.contracts.values()]
    real = [t for t in tasks if t.checkpoint is not None]
    return campaign.launcher.preflight(real, _environment(campaign)) if real else []


def _require_units(campaign: Campaign) -> None:
    several = [r for r in campaign.contracts.values() if r.loaded.contract.require.scope != ONE]
    if not several or len(places := campaign.launcher.places()) > 1:
        return
    raise CannotRunError(
        str(several[0].loaded.path),
        "require.scope",
        "two units of one kind, which same-class compares",
        f"one: {places[0].name}",
        'a cluster with two nodes or devices (--address), or scope = "same-unit"',
    )


def prompt_lengths(campaign: Campaign, name: str) -> Mapping[str, Sequence[int]]:
    """Arm -> prompt length in tokens of every sample of a contract's dataset."""
    task = campaign.task(SLOT_ZERO, campaign.contracts[name], "0" * 16)
    return campaign.launcher.prompt_lengths(task, _WITHOUT_WEIGHTS | device_environment(None))


def backends(campaign: Campaign, name: str, only: Sequence[str] | None = None) -> Sequence[Backend]:
    """What the node says of the backends of a contract's quantisation method; of those in ``only``,
    where some are named."""
    task = campaign.task(SLOT_ZERO, campaign.contracts[name], "0" * 16)
    return campaign.launcher.backends(task, _environment(campaign), only)


def _environment(campaign: Campaign) -> dict[str, str]:
    """For a process that must know what the slot's device can run; what it compiles to find out
    goes where the replays will look for it."""
    kernels = caches.kernel_folders(caches.pinned_kernels(campaign.scratch.resolve()))
    return _WITHOUT_WEIGHTS | kernels | device_environment(campaign.launcher.place().device)
