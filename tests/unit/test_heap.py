"""Freed memory goes back to the system, so that the next step of an ingest does not add to it."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from fleet.store.heap import release_freed


def resident_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc_trim is glibc's")
def test_blocks_freed_below_one_that_lives_go_back() -> None:
    blocks = [bytes([i % 256]) * 20_000 for i in range(4000)]
    last = bytes(20_000)
    held = resident_bytes()
    blocks.clear()
    release_freed()
    assert held - resident_bytes() > 40_000_000
    assert len(last) == 20_000
