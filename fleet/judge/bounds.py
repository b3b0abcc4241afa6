"""How much repetition proves: two bounds at 95 %, never merged into one.

Records of one process are one draw of whatever is chosen once per process (a kernel, a code path),
so many records bound the rate per record and say nothing of the rate per process. Knows no attempt.
"""

from __future__ import annotations

from fleet.contract.model import Require

CONFIDENCE_MISS = 0.05
MIN_REPLAYS = 6


def record_bound(n_eff: int) -> float:
    """Largest share of differing records that 0 of ``n_eff`` still allows: 1 - 0.05 ** (1 / n_eff).

    The one-sided Clopper-Pearson limit for zero events (C. J. Clopper, E. S. Pearson, Biometrika
    26, 1934); about 3 / n_eff, the rule of three (J. A. Hanley, A. Lippman-Hand, JAMA 249, 1983).

    Args:
        n_eff: distinct inputs; a repeated input is no second trial.
    """
    if n_eff < 1:
        raise ValueError(f"a bound needs at least one distinct input, got {n_eff}")
    return float(1.0 - CONFIDENCE_MISS ** (1.0 / n_eff))


def process_bound(replays: int) -> float | None:
    """Largest share p <= 0.5 of a minority kind of process that equal replays still allow.

    ``replays`` processes all agree with probability (1-p)^R + p^R; p is bounded where that falls
    to 0.05 (the same inversion as Clopper-Pearson's, with either kind able to be the one seen).

    Args:
        replays: equal COMPLETE replays, each its own process.

    Returns:
        None for fewer than six: even p = 0.5 cannot be excluded then, so it is not bounded.
    """
    if replays < MIN_REPLAYS:
        return None
    low, high = 0.0, 0.5
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if _all_agree(middle, replays) else (low, middle)
    return low


def replays_for(bound: float) -> int:
    """The fewest equal replays whose :func:`process_bound` is at most ``bound``.

    Args:
        bound: 0 < bound < 0.5; 0.001 takes 2,995 replays.
    """
    if not 0.0 < bound < 0.5:
        raise ValueError(f"a share of a minority lies between 0 and 0.5, got {bound}")
    low, high = MIN_REPLAYS - 1, MIN_REPLAYS
    while (reached := process_bound(high)) is None or reached > bound:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        reached = process_bound(middle)
        low, high = (low, middle) if reached is not None and reached <= bound else (middle, high)
    return high


def fewest_replays(require: Require) -> int:
    """How many equal replays a PASS takes: the contract's own number, or what its bound takes."""
    if require.process_bound is None:
        return require.replays
    return max(require.replays, replays_for(require.process_bound))


def _all_agree(p: float, replays: int) -> bool:
    return bool((1.0 - p) ** replays + p**replays >= CONFIDENCE_MISS)
