"""Inside one call: the operations that torch dispatches, in order, each with its source line.

Runs only inside the module in question. An operation is told by its name, the digests of what went
in and what came out, and the innermost line of Python that is not torch's own.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fleet.evidence.operations import Operation
from fleet.replay.trace.digesting import TensorDigests, walk
from fleet.replay.trace.late import settled

_TORCH = str(Path(torch.__file__).parent)
_HERE = str(Path(__file__).parent)


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
            self.operations.append(
                Operation(str(func), went_in, came_out, _where(), not given.unhashed)
            )
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
