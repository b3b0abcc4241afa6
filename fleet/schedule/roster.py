"""The units of a night and their classes: those that a fleet's TOML expects, or those there are.

Units are of one class when their nodes ask for the same facts, and what is known of them does not
say otherwise: of two that showed different platforms each is in a class of its own platform. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fleet.contract.fleet_file import Fleet, Node
from fleet.schedule.launcher import Place
from fleet.schedule.night_terms import Unit


@dataclass(frozen=True)
class Seen:
    """A unit that the store has evidence of. ``platform``: the class key it showed last."""

    unit: str
    node: str
    platform: str
    at_s: float

    @property
    def name(self) -> str:
        """As a slot names it."""
        return unit_name(self.unit)


def unit_name(unit: str) -> str:
    """``gpu:UUID`` -> UUID, ``cpu:MACHINE:LABEL`` -> label: a unit as a slot names it."""
    kind, _, rest = unit.partition(":")
    return {"gpu": rest, "cpu": rest.rpartition(":")[2]}.get(kind, unit)


def kind_of(node: Node) -> str:
    """The class that a node's units are expected to be of, in words."""
    facts = node.platform.flat()
    head = facts.pop("gpu_model" if node.devices else "cpu_model", None)
    head = head or ("NVIDIA device" if node.devices else "CPU")
    return ", ".join([str(head), *(f"{key} {value}" for key, value in facts.items())])


def expected_units(fleet: Fleet, seen: Sequence[Seen] = ()) -> list[Unit]:
    """As the file says; a device is called by its UUID where the store knows it, newest first, else
    by its node and its number."""
    found: list[Unit] = []
    for node in fleet.nodes:
        if node.devices == 0:
            found.append(_unit(node, node.label, node.cpus))
            continue
        here = [s for s in seen if s.node == node.label and s.unit.startswith("gpu:")]
        known = [s.name for s in sorted(here, key=lambda s: (-s.at_s, s.unit))][: node.devices]
        known += [f"{node.label}/{number}" for number in range(len(known), node.devices)]
        found += [_unit(node, name, node.cpus) for name in known]
    return apart(found, seen)


def real_units(
    fleet: Fleet, places: Iterable[Place], seen: Sequence[Seen] = ()
) -> tuple[list[Unit], list[str]]:
    """Units of expected nodes that are there, and those that are not; then, in words, which are
    missing and what is there that nobody expects."""
    nodes = {node.label: node for node in fleet.nodes}
    found: dict[str, list[Unit]] = {label: [] for label in nodes}
    notes: list[str] = []
    for place in places:
        node = nodes.get(place.node_label)
        if node is None or (node.devices > 0) != (place.device is not None):
            notes.append(f"unit {place.name}: not of this fleet, and not used")
        else:
            found[node.label].append(_unit(node, place.name, place.cpus))
    for node in fleet.nodes:
        here = found[node.label]
        missing = max(node.devices, 1) - len(here)
        if missing > 0:
            notes.append(f"node {node.label}: {missing} of {max(node.devices, 1)} units missing")
            absent = [_unit(node, f"{node.label}, missing {n}", 0) for n in range(missing)]
            here += [replace(unit, there=False) for unit in absent]
    return apart([unit for here in found.values() for unit in here], seen), notes


def _unit(node: Node, name: str, cpus: int | None) -> Unit:
    """Units of a node share its CPUs."""
    share = None if cpus is None else cpus // max(node.devices, 1)
    return Unit(name, node.label, kind_of(node), share, node.contracts)


def apart(units: Sequence[Unit], seen: Sequence[Seen]) -> list[Unit]:
    """The same, in classes by platform where units of one class showed several."""
    platforms = _platforms(units, seen)
    split = {kind for kind, found in _by_kind(units, platforms).items() if len(found) > 1}
    return [
        replace(unit, kind=f"{unit.kind} [{platforms[unit.name].partition(':')[2][:8]}]")
        if unit.kind in split and unit.name in platforms
        else unit
        for unit in units
    ]


def platform_of_kinds(units: Sequence[Unit], seen: Sequence[Seen]) -> dict[str, str]:
    """Class -> the platform that its units showed, of classes as :func:`apart` leaves them."""
    found = _by_kind(units, _platforms(units, seen))
    return {kind: next(iter(platforms)) for kind, platforms in found.items()}


def _platforms(units: Iterable[Unit], seen: Iterable[Seen]) -> dict[str, str]:
    """Unit -> the platform that it showed last."""
    newest = {s.name: s.platform for s in sorted(seen, key=lambda s: s.at_s)}
    return {unit.name: newest[unit.name] for unit in units if unit.name in newest}


def _by_kind(units: Iterable[Unit], platforms: Mapping[str, str]) -> dict[str, dict[str, None]]:
    found: dict[str, dict[str, None]] = {}
    for unit in units:
        if unit.name in platforms:
            found.setdefault(unit.kind, {})[platforms[unit.name]] = None
    return found
