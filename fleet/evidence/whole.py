"""A file that is replaced in one step: whole, or as it was before.

For what may be written again, such as a cache or a report; evidence is written once. Knows nothing
of what is in it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Another name in the same folder, to be written to: it takes the place of ``path`` at the end,
    or is removed when anything was raised. Several processes may do so at once.

    Raises:
        OSError: the folder refuses it.
    """
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        yield unfinished
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
