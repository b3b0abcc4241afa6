"""Jobs that wait for one launch together, with copies of their bytes in an arena on the device.

A call's copies are enqueued before it returns, so what becomes of the tensors afterwards does not
matter; a job is kept from then on. The arena is used from its begin again after every launch: on
one stream the copies that overwrite it come after the launch that reads it. Addresses are numbers
here: knows no torch and no driver.
"""

from __future__ import annotations

from fleet.replay.gpu.digests.jobs import MAX_JOBS, Content, Copies, Table

ARENA_BYTES = 64 << 20
STAGED_BYTES = 8 << 20
"""The largest tensor that is copied: above, a launch has enough to do with it alone."""


class Staging:
    """The jobs of one launch. ``kept``: how many of them have all that they need."""

    def __init__(self) -> None:
        self.table, self.copies = Table(), Copies()
        self._arena = self.kept = self._num_jobs = 0
        self._kept_used = self._used = 0
        self._leaves = [0] * MAX_JOBS

    def open(self, arena: int) -> None:
        """Begin a call; jobs that an earlier one left without their copies are forgotten."""
        self._arena, self._num_jobs, self._used = arena, self.kept, self._kept_used
        self.copies.clear()

    def fits(self, room: int, most: int) -> bool:
        """Is there a place for one more, of at most so many, which takes ``room`` in the arena?"""
        num_jobs = self._num_jobs
        return num_jobs < MAX_JOBS and num_jobs < most and self._used + room <= ARENA_BYTES

    def add(self, address: int, content: Content, room: int) -> None:
        """One more, to be copied, or with ``room`` 0 to be read where it is."""
        if room:
            target = self._arena + self._used
            self.copies.put(address, target, content.num_bytes)
            self._used += room
            address = target
        self.table.put(self._num_jobs, address, content)
        self._leaves[self._num_jobs] = content.num_leaves
        self._num_jobs += 1

    def keep(self) -> None:
        """The copies are enqueued."""
        self.kept, self._kept_used = self._num_jobs, self._used
        self.copies.clear()

    def take(self) -> list[int]:
        """The leaves of all that is kept; it is launched now, or lost."""
        leaves = self._leaves[: self.kept]
        self.kept = self._num_jobs = self._kept_used = self._used = 0
        return leaves
