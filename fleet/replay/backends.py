"""Every backend that a checkpoint's quantisation method has: can it run here, in which dtype?

One answer per backend, in gptqmodel's own words where it refuses: a backend that cannot run is a
fact about this machine and this checkpoint, not a fault. Loads no weight; knows no contract but the
one it is asked about. A load can still fail later: only loading tells that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fleet.contract.model import Contract
from fleet.contract.variant import with_backend
from fleet.replay import capability

LONGEST = 300
"""Characters of a reason; what a loader says in full is in the attempt's log."""

DTYPES = ("float16", "bfloat16", "float32")


@dataclass(frozen=True)
class Backend:
    """``dtype``: the first in which it can run, None when it cannot; ``reason`` says why then."""

    name: str
    dtype: str | None
    reason: str = ""


def backends_of(
    contract: Contract, folder: Path, only: Sequence[str] | None = None
) -> list[Backend]:
    """All backends of the contract's method over this very checkpoint, by name.

    Args:
        contract: decides the method and the dtype to try first.
        folder: the checkpoint.
        only: the names to ask about (asking can compile a kernel); None for all.
    """
    return [
        _asked(name, contract, folder)
        if only is None or name in only
        else Backend(name, None, "not asked about")
        for name in capability.known_backends(contract.quantization.method)
    ]


def _asked(name: str, contract: Contract, folder: Path) -> Backend:
    """The contract's own dtype first; another where the dtype is all that is in the way."""
    why: dict[str, str] = {}
    for dtype in dtypes_of(contract.model.dtype):
        reasons = capability.cannot_run(with_backend(contract, name, dtype), folder)
        if not reasons:
            return Backend(name, dtype)
        why.setdefault(one_line(reasons), dtype)
    if len(why) == 1:
        return Backend(name, None, next(iter(why)))
    return Backend(name, None, "; ".join(f"{dtype}: {reason}" for reason, dtype in why.items()))


def dtypes_of(own: str) -> Iterator[str]:
    """The contract's, then the others in a fixed order."""
    yield own
    yield from (dtype for dtype in DTYPES if dtype != own)


def one_line(reasons: Sequence[str]) -> str:
    """The first reason, and how many more there are."""
    first = " ".join(reasons[0].split())
    first = first if len(first) <= LONGEST else f"{first[:LONGEST]}..."
    return first + (f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else "")
