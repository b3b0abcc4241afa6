"""Inside one call: the operations that torch dispatches, in order, each with its source line.

Runs only inside the module in question. An operation is told by its name, the digests of what went
in and what came out, and the innermost line of Python that is not torch's own.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fleet.replay.trace.digesting import TensorDigests, walk
from fleet.replay.trace.late import settled

_TORCH = str(Path(torch.__file__).parent)
_HERE = str(Path(__file__).parent)


@dataclass(frozen=True)
class Operation:
    """One dispatched operation. ``where`` is ``file:line in function: source``."""

    name: str
    went_in: bytes | None
    came_out: bytes | None
    where: str


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records operations; with ``digests`` also what went in and came out, and from where."""

    def __init__(self, digests: TensorDigests | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._digests = digests
        self.operations: list[Operation] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and note it."""
        given = None if self._digests is None else walk((args, kwargs or {}), self._digests)
        if self._digests is not None:
            self._digests.launch()  # before the operation can write into what it was given
        result = func(*args, **(kwargs or {}))
        if self._digests is None or given is None:
            self.operations.append(Operation(str(func), None, None, ""))
        else:
            # An operation that writes into its argument has that argument as its result.
            after = walk((result, args), self._digests)
            self._digests.settle()
            went_in, came_out = settled(given.digest()), settled(after.digest())
            self.operations.append(Operation(str(func), went_in, came_out, _where()))
        return result


def _where() -> str:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((_TORCH, _HERE)):
            return _line(name, frame)
        frame = frame.f_back
    return ""


def _line(name: str, frame: FrameType) -> str:
    import linecache

    source = linecache.getline(name, frame.f_lineno).strip()
    short = "/".join(part for part in Path(name).parts[-3:] if part != "/")
    return f"{short}:{frame.f_lineno} in {frame.f_code.co_name}: {source}"


def first_difference(runs: Sequence[Sequence[Operation]]) -> dict[str, Any] | None:
    """The first operation that is not the same in all runs of one frozen call; None if all agree.

    ``how``: ``output`` (same input, other output), ``input`` (every result before it was the same,
    so the code between chose other inputs) or ``operation`` (another operation ran).
    """
    for index, row in enumerate(zip(*runs, strict=False)):
        if len({op.name for op in row}) > 1:
            return _told(index, row, "operation")
        if len({op.went_in for op in row}) > 1:
            return _told(index, row, "input")
        if len({op.came_out for op in row}) > 1:
            return _told(index, row, "output")
    lengths = {len(run) for run in runs}
    if len(lengths) > 1:
        longest = max(runs, key=len)
        return _told(min(lengths), [longest[min(lengths)]], "operation")
    return None


def _told(index: int, row: Sequence[Operation], how: str) -> dict[str, Any]:
    return {
        "index": index,
        "name": row[0].name,
        "how": how,
        "unique": len({(op.name, op.went_in, op.came_out) for op in row}),
        "runs": len(row),
        "where": row[0].where,
    }
