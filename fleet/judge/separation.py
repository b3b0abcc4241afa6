"""Do odd replays gather on one unit? Fisher's exact test, one-sided, in whole numbers.

Knows no unit and no threshold.
"""

from __future__ import annotations

from math import comb


def fisher_one_sided(odd: int, replays: int, odd_elsewhere: int, replays_elsewhere: int) -> float:
    """Chance of at least ``odd`` odd replays here, if the same odd ones had fallen on any replays.

    The upper tail of the hypergeometric distribution (R. A. Fisher, The Design of Experiments,
    1935, section II: the lady tasting tea). 1.0 where either side has no replay.

    Args:
        odd: odd replays on the unit.
        replays: all replays on the unit.
        odd_elsewhere: odd replays on all other units.
        replays_elsewhere: all replays on other units.
    """
    if not 0 <= odd <= replays or not 0 <= odd_elsewhere <= replays_elsewhere:
        raise ValueError(
            f"odd replays are some of all: {odd}/{replays}, {odd_elsewhere}/{replays_elsewhere}"
        )
    marked, total = odd + odd_elsewhere, replays + replays_elsewhere
    plain = total - marked
    here = max(odd, replays - plain)
    ways = comb(marked, here) * comb(plain, replays - here)
    tail = 0
    while ways:
        tail += ways
        ways = ways * (marked - here) * (replays - here)
        here += 1
        ways //= here * (plain - replays + here)
    return tail / comb(total, replays)
