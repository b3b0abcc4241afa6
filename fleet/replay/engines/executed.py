"""Which kernels a device executed: names and launches, by torch's profiler.

A setting says what was asked for, a class what was chosen, and the names of the kernels what ran.
Knows no model: it is given something to run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

TRANSFERS = ("Memcpy", "Memset")
"""Beginnings of names that are no kernels."""


def kernels_of(run: Callable[[], object]) -> Counter[str]:
    """Kernel name -> launches while ``run`` runs on the current CUDA device."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        run()
        torch.cuda.synchronize()
    names = (e.name for e in profiler.events() or () if e.device_type == DeviceType.CUDA)
    return Counter(name for name in names if not name.startswith(TRANSFERS))


def by_phase(generate: Callable[[int], object]) -> dict[str, dict[str, int]]:
    """The kernels of a prefill, and of the one decode step that follows it.

    Args:
        generate: generates that many tokens for one prompt, from its beginning.
    """
    one, two = kernels_of(lambda: generate(1)), kernels_of(lambda: generate(2))
    return {"prefill": dict(sorted(one.items())), "decode": dict(sorted((two - one).items()))}
