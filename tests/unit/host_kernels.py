"""The device's kernels compiled as C++ and run on the host, behind the driver that they have there.

Needs a C++ compiler. ``edits`` are replaced in the source before: what a fault in it would do.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

from fleet.replay.gpu.digests.compiled import SOURCE
from fleet.replay.gpu.digests.driver import CudaDriver, declared
from fleet.replay.gpu.digests.jobs import Copies, Grid, Table

SHIM = Path(__file__).with_name("cuda_on_host.cpp")
COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")


def compiled(folder: Path, edits: Mapping[str, str] | None = None, *options: str) -> ctypes.CDLL:
    """The kernels as a library in that folder; every edit must change the source."""
    text = SOURCE.read_text(encoding="ascii")
    for old, new in (edits or {}).items():
        assert old in text
        text = text.replace(old, new)
    source, library = folder / "kernels.cu", folder / "kernels.so"
    source.write_text(text, encoding="ascii")
    assert COMPILER is not None
    command = [
        COMPILER, "-std=c++17", "-O1", "-shared", "-fPIC", "-Wall", "-Werror",
        "-Wno-unknown-pragmas", f'-DKERNELS="{source}"', *options, str(SHIM), "-o", str(library),
    ]  # fmt: skip
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(library))


STREAM = 0x700000007


class HostDriver(CudaDriver):
    """A device on the host: its memory is the host's, its one stream runs at once. Modules are
    loaded and kernels launched as on a device, by calls to what stands in for the driver there."""

    def __init__(self, library: ctypes.CDLL, sm_count: int = 3) -> None:
        self.sm_count = sm_count
        self.launched: list[Grid] = []
        self.gathered: list[int] = []
        self._library = declared(library)
        self._functions = self._load(b"image")
        self.seed = ctypes.c_ulonglong.in_dll(library, "drawn_from")

    def stream(self) -> int:
        return STREAM

    def outlives(self, ring: torch.Tensor) -> None:
        pass

    def gather(self, copies: Copies, stream: int) -> None:
        self.gathered.append(copies.count)
        super().gather(copies, stream)

    def launch(self, cut: Grid, table: Table, stream: int) -> None:
        self.launched.append(cut)
        super().launch(cut, table, stream)

    def take(self, ring: torch.Tensor, streams: Iterable[int]) -> bytes:
        assert list(streams) == [STREAM]
        found = ring.numpy().tobytes()
        ring.zero_()
        return found
