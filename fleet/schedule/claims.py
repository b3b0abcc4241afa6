"""Which claims a campaign makes of each contract: one set of replays, and one verdict, for each.

A contract says what its replays vary; the command line may say otherwise. Whatever cannot be varied
is found here, before any process starts. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from fleet.contract.refuse import refuse_vary
from fleet.contract.vary import Own, cannot_vary, claim
from fleet.errors import ContractError, UsageError
from fleet.schedule.resolve import Resolved

Claims = dict[str, tuple[tuple[str, ...], ...]]
"""Contract -> what its sets of replays vary; nothing for an exact repeat."""


def own_claim(resolved: Resolved) -> tuple[str, ...]:
    """What the contract itself says its replays vary."""
    return claim(resolved.loaded.contract.require.vary)


def claims_of(
    named: Sequence[Resolved], asked: Sequence[tuple[str, ...]], trace: str = "never"
) -> Claims:
    """The claims of each contract.

    Args:
        named: the contracts.
        asked: of the command line, for all of them; each contract's own when there is none.
        trace: when replays are traced.

    Raises:
        UsageError: one of them cannot be made of one of the contracts.
    """
    found: Claims = {}
    for resolved in named:
        found[resolved.name] = tuple(asked) or (own_claim(resolved),)
        for vary in found[resolved.name]:
            _require_possible(resolved, vary)
            if vary and trace == "always":
                expected = "never or on-fail, because varied replays are not traced"
                raise UsageError(
                    "command line", "--trace", expected, "'always'", "leave out one of the two"
                )
    return found


def _require_possible(resolved: Resolved, vary: tuple[str, ...]) -> None:
    contract, where = resolved.loaded.contract, str(resolved.loaded.path)
    refuse_vary(contract, vary, where)
    own = Own.of(contract, len(resolved.dataset.ids), cores=1)
    why = cannot_vary(vary, own) if vary else None
    if why is not None:
        fix = "more samples, or another batch size; --vary none for an exact repeat"
        raise ContractError(where, "require.vary", "something that can be varied", why, fix)
