"""Which samples a screening runs: the first, one of every input shape, and those nearest to a tie.

A race can live in one row count, one phase or one shape, so every distinct shape of a prefill is
covered; each sample decodes too. Pure: lengths in, sample ids out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Shape = tuple[int, int]
"""(rows, longest prompt in tokens) of one batch: what a prefill runs on."""


@dataclass(frozen=True)
class Selection:
    """``sample_ids`` in dataset order, whole batches; ``shapes``: every distinct one, all covered.

    ``near``: (arm, sample id) of the records chosen for their margins.
    """

    sample_ids: tuple[str, ...]
    shapes: tuple[Shape, ...]
    near: tuple[tuple[str, str], ...]


def select(
    ids: Sequence[str],
    lengths: Mapping[str, Sequence[int]],
    batch_size: int,
    near: Sequence[tuple[str, str]],
) -> Selection:
    """Choose whole batches, so that a sample meets the batch that it meets in a full run.

    Args:
        ids: the dataset's sample ids, in order.
        lengths: arm -> prompt length in tokens of every sample.
        batch_size: rows of a batch.
        near: (arm, sample id) of records known to stand near a tie, nearest first.
    """
    chosen = {0}
    seen: dict[Shape, None] = {}
    for arm in sorted(lengths):
        for batch, shape in enumerate(_shapes(lengths[arm], batch_size)):
            if shape not in seen:
                seen[shape] = None
                chosen.add(batch)
    position = {sample: i for i, sample in enumerate(ids)}
    known = tuple((arm, sample) for arm, sample in near if sample in position)
    chosen |= {position[sample] // batch_size for _, sample in known}
    samples = tuple(
        sample for i, sample in enumerate(ids) if i // batch_size in chosen
    )  # fmt: skip
    return Selection(samples, tuple(sorted(seen)), known)


def _shapes(lengths: Sequence[int], batch_size: int) -> list[Shape]:
    batches = (lengths[i : i + batch_size] for i in range(0, len(lengths), batch_size))
    return [(len(batch), max(batch)) for batch in batches]
