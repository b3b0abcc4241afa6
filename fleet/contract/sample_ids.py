"""Sample ids in dataset order, held as one text and the places where each of them ends.

A million ids take a tenth of a gigabyte as Python strings, and the driver holds them from the plan
to the verdict. Knows no dataset and no attempt.
"""

from __future__ import annotations

import hashlib
import io
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import overload
from weakref import WeakValueDictionary


class SampleIds(Sequence[str]):
    """Equal to any list or tuple of the same ids, and shown as the list.

    ``text`` is their UTF-8 without anything between; ``ends`` (int64) is 0 and then where each
    ends, which together are the buffers of an Arrow column.
    """

    def __init__(self, ids: Iterable[str] = ()) -> None:
        self.text, self.ends = bytearray(), array("q", [0])
        for sample in ids:
            self.text += sample.encode("utf-8")
            self.ends.append(len(self.text))

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __iter__(self) -> Iterator[str]:
        for start, end in pairwise(self.ends):
            yield self.text[start:end].decode("utf-8")

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[at] for at in range(len(self))[index]]
        at = range(len(self))[index]
        return self.text[self.ends[at] : self.ends[at + 1]].decode("utf-8")

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SampleIds):
            return self.text == other.text and self.ends == other.ends
        if isinstance(other, list | tuple):
            return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))
        return NotImplemented

    def __repr__(self) -> str:
        shown = io.StringIO()
        for at, sample in enumerate(self):
            shown.write(", " if at else "[")
            shown.write(repr(sample))
        return shown.getvalue() + "]" if self else "[]"


_HELD: WeakValueDictionary[bytes, SampleIds] = WeakValueDictionary()


def held_once(ids: Iterable[str]) -> SampleIds:
    """The ids packed, or the equal ones that are alive: a data set and every replay of it name the
    same samples. Nobody may change them."""
    packed = SampleIds(ids)
    hasher = hashlib.sha256(packed.ends)
    hasher.update(packed.text)
    return _HELD.setdefault(hasher.digest(), packed)
