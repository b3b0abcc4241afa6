"""A status held against the units that a fleet is expected to have (``fleet status --fleet``).

A PASS on a platform that no unit of the fleet shows is STALE; a unit about which no evidence speaks
is UNTESTED: a PASS of scope same-class speaks for every unit of its platform, one of scope
same-unit for the units that ran it. A FAIL and a VOID stay what they are. Holds no verdict rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from fleet.contract.vary import claim, in_words
from fleet.report.status import StatusRow


@dataclass(frozen=True)
class FleetUnit:
    """``name``: as a slot names it. ``platform``: the one it shows, "" where it shows none that its
    node may have; ``missing`` says why. ``contracts``: those that a night runs on it.
    ``label``: of the platform."""

    name: str
    platform: str
    contracts: tuple[str, ...]
    missing: str = ""
    label: str = ""


@dataclass(frozen=True)
class InFleet:
    """A fleet as the store knows it. ``names``: unit as evidence calls it -> as a slot does."""

    name: str
    units: tuple[FleetUnit, ...]
    names: dict[str, str]

    @property
    def contracts(self) -> tuple[str, ...]:
        """All that a night runs anywhere."""
        return tuple(dict.fromkeys(name for unit in self.units for name in unit.contracts))


def in_fleet(rows: Sequence[StatusRow], fleet: InFleet) -> list[StatusRow]:
    """The rows, with what is no more in the fleet and what was never tested of it."""
    shown = {unit.platform for unit in fleet.units}
    contracts: dict[str, list[StatusRow]] = {}
    for row in rows:
        contracts.setdefault(row.contract, []).append(_shown(row, shown, fleet.name))
    return [row for own in contracts.values() for row in (*own, *_untested(own, fleet))]


def _shown(row: StatusRow, platforms: set[str], fleet: str) -> StatusRow:
    if row.state != "PASS" or row.platform in platforms or row.verdict is None:
        return row
    note = f"no unit of fleet {fleet} shows this platform"
    verdict = replace(row.verdict, state="STALE")
    return replace(row, state="STALE", verdict=verdict, behaves=False, note=note, expires_at_s=None)


def _untested(rows: Sequence[StatusRow], fleet: InFleet) -> Iterator[StatusRow]:
    """Of what a night would run of one contract: a row for each platform of which units were left
    out, and for each reason that a unit shows none."""
    head = next((row for row in rows if row.asked), rows[0])
    vary = claim(head.asked.require.vary) if head.asked else head.vary
    own = [row for row in rows if row.vary == vary]
    left: dict[tuple[str, str, str], list[str]] = {}
    for unit in fleet.units:
        if head.contract in unit.contracts and not any(_about(r, unit, fleet) for r in own):
            left.setdefault((unit.platform, unit.label, unit.missing), []).append(unit.name)
    for (platform, label, missing), names in left.items():
        why = missing or f"unit{'s' * (len(names) > 1)} {', '.join(names)}: no replay that counts"
        words = f"{in_words(vary)}: {why}: fleet campaign {fleet.name}"
        yield StatusRow(
            head.contract, head.execution_id, platform, label, "UNTESTED", None, None, words,
            claim=vary, untested=tuple(names),
        )  # fmt: skip


def _about(row: StatusRow, unit: FleetUnit, fleet: InFleet) -> bool:
    """Does evidence of this row speak of the unit?"""
    if row.verdict is None or not unit.platform or row.platform != unit.platform:
        return False
    ran = {fleet.names.get(u["unit"], u["unit"]) for u in row.verdict.units}
    of_class = row.verdict.verdict == "PASS" and row.verdict.scope == "same-class"
    return of_class or unit.name in ran
