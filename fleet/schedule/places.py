"""Where a verb finds and leaves things, as paths. Imported by every verb, so it imports little."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from fleet.evidence.landing import Landing
from fleet.evidence.mirror import mirrored
from fleet.evidence.remote import Remote
from fleet.store.open import Store, open_reader


@dataclass(frozen=True)
class Places:
    """Where things are. ``search`` holds contracts/ and datasets/; ``cache`` demo checkpoints.
    ``landing`` is a folder; ``remote``: the object storage that it mirrors, None for none.
    ``trusted``: key id -> name of those whose retractions count."""

    search: tuple[Path, ...]
    store: Path
    landing: Path
    cache: Path
    scratch: Path
    remote: Remote | None = None
    trusted: Mapping[str, str] = field(default_factory=dict)

    def of_stack(self, digest: str) -> Places:
        """Of replays on that software stack: kernels compiled on one are no other's."""
        return replace(self, scratch=self.scratch / digest.removeprefix("sha256:")[:12])

    def open_store(self) -> Store:
        """The store, to be read by whoever trusts these keys.

        Raises:
            StoreError: see :func:`open_reader`.
        """
        return open_reader(self.store, self.trusted)

    def open_landing(self, create: bool = False) -> Landing:
        """The landing, to be read and written; a mirror that is not there yet is made.

        Raises:
            StoreError: see :meth:`Landing.open`.
        """
        if create:
            return Landing.open(self.landing, True, self.remote)
        return mirrored(self.landing, self.remote)
