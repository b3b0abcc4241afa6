"""Hand freed memory back to the system between the steps of an ingest.

The C library, Arrow and DuckDB each keep what they have freed for their own next use, where the
other two cannot reach it: a million records left 50 MB behind that way. Knows no store.
"""

from __future__ import annotations

import ctypes

import pyarrow as pa


def release_freed() -> None:
    """Return free pages of the C library (glibc only: malloc_trim(3)) and of Arrow's pool."""
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
