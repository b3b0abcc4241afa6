"""What a cluster's nodes are, beside what a fleet's TOML expects (``fleet doctor --address``).

Compares facts that are readable without a model; a fact that cannot be read is different from any
that is asked for. The variables of a process are left out: a replay is given others. Pure, but for
reading the decisions about units.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.text import Text

from fleet.contract.fleet_file import LoadedFleet, Node
from fleet.evidence import decisions
from fleet.evidence.landing import Landing
from fleet.report import screen
from fleet.schedule.launcher import NodeThere, UnitThere
from fleet.schedule.roster import unit_name

State = Literal["present", "different", "missing", "unexpected", "found"]


@dataclass(frozen=True)
class Difference:
    """``key`` of the TOML. ``unit``: the device whose fact it is, None for the node's own."""

    key: str
    expected: Any
    got: Any
    unit: str | None = None

    def in_words(self) -> str:
        """For a person."""
        where = f" on {self.unit}" if self.unit else ""
        return f"{self.key}{where}: expected {self.expected}, got {self.got}"


@dataclass(frozen=True)
class Row:
    """One label. ``there``: None where it is missing; ``quarantined``: unit -> why."""

    label: str
    state: State
    there: NodeThere | None
    differences: tuple[Difference, ...] = ()
    quarantined: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        there = asdict(self.there) if self.there else dict.fromkeys(("cpus", "nodes", "why"))
        return there | {
            "label": self.label,
            "state": self.state,
            "units": [asdict(unit) for unit in self.there.units] if self.there else [],
            "differences": [asdict(each) for each in self.differences],
            "quarantined": {unit: list(words) for unit, words in self.quarantined.items()},
        }


@dataclass(frozen=True)
class Inventory:
    """``fleet``: the name of what was expected, if anything was. ``quarantined``: of units that no
    node shows."""

    fleet: str | None
    rows: tuple[Row, ...]
    quarantined: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The document."""
        return {
            "schema": 1,
            "fleet": self.fleet,
            "nodes": [row.to_json() for row in self.rows],
            "quarantined_elsewhere": {u: list(words) for u, words in self.quarantined.items()},
        }


def quarantined_in(folder: Path) -> dict[str, tuple[str, ...]]:
    """Unit, as a slot names it -> its quarantines in words; nothing where nothing has landed."""
    if not (folder / "FORMAT.json").exists():
        return {}
    found = decisions.quarantined(Landing.open(folder))
    return {unit_name(unit): tuple(d.in_words() for d in told) for unit, told in found.items()}


def compare(
    loaded: LoadedFleet | None,
    there: Sequence[NodeThere],
    quarantined: Mapping[str, tuple[str, ...]],
) -> Inventory:
    """Expected nodes in the order of the file, then those that nobody expects."""
    by_label = {node.label: node for node in there}
    expected = {} if loaded is None else {node.label: node for node in loaded.fleet.nodes}
    rows = [_row(node, by_label.get(label)) for label, node in expected.items()]
    other: State = "found" if loaded is None else "unexpected"
    rows += [Row(node.label, other, node) for node in there if node.label not in expected]
    rows = [replace(row, quarantined=_on(row, quarantined)) for row in rows]
    shown = {unit for row in rows for unit in row.quarantined}
    rest = {unit: words for unit, words in quarantined.items() if unit not in shown}
    return Inventory(loaded.name if loaded else None, tuple(rows), rest)


def _on(row: Row, quarantined: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    names = [unit.uuid or row.label for unit in row.there.units] if row.there else []
    return {name: quarantined[name] for name in (*names, row.label) if name in quarantined}


def _row(node: Node, there: NodeThere | None) -> Row:
    if there is None:
        return Row(node.label, "missing", None)
    differences = tuple(_differences(node, there))
    return Row(node.label, "different" if differences else "present", there, differences)


def _differences(node: Node, there: NodeThere) -> Iterator[Difference]:
    if there.nodes != 1:
        yield Difference("label", "one node", f"{there.nodes} nodes of that label")
    if there.why:
        yield Difference("devices", node.devices, f"unreadable: {there.why}")
    elif there.devices != node.devices:
        yield Difference("devices", node.devices, there.devices)
    if node.cpus is not None and there.cpus < node.cpus:
        yield Difference("cpus", f"{node.cpus} or more", there.cpus)
    for unit in there.units:
        for key, expected in node.platform.flat().items():
            got = f"unreadable: {unit.why}" if unit.why else fact_of(unit.facts, key)
            if got != expected:
                yield Difference(f"platform.{key}", expected, got, unit.uuid)


def fact_of(facts: Mapping[str, Any], key: str) -> Any:
    """A package's version is its fact; what could not be read says why."""
    name, _, package = key.partition(".")
    value = facts.get(name)
    if isinstance(value, dict) and "unreadable_in" in value:
        return f"unreadable: {value['why']}"
    if not package:
        return value
    found = value.get(package) if isinstance(value, dict) else None
    return found["version"] if found else "not installed"


def print_inventory(console: Console, found: Inventory) -> None:
    """One line per unit, then what differs and who is in quarantine."""
    title = "nodes" if found.fleet is None else f"nodes, and fleet {found.fleet}"
    table = screen.table(console, title, "node", "state", "CPUs", "device", "platform")
    for row in found.rows:
        if row.there is None:
            table.add_row(Text(row.label), row.state, "-", "-", "-")
            continue
        for unit in row.there.units:
            device = f"{unit.name}, {unit.uuid}" if unit.uuid else "CPU"
            cells = (Text(device), Text(_summary(unit)))
            table.add_row(Text(row.label), row.state, str(row.there.cpus), *cells)
    console.print(table)
    for row in found.rows:
        for each in row.differences:
            screen.verbatim(console, f"{row.label}: {each.in_words()}")
        if row.there and row.there.why and row.state in ("found", "unexpected"):
            screen.verbatim(console, f"{row.label}: devices: {row.there.why}")
        for name, words in row.quarantined.items():
            screen.verbatim(console, f"{row.label}: unit {name} {'; '.join(words)}")
    for name, words in found.quarantined.items():
        screen.verbatim(console, f"unit {name}, not of these nodes, {'; '.join(words)}")


def _summary(unit: UnitThere) -> str:
    if unit.why:
        return f"unreadable: {unit.why}"
    model = unit.facts.get("gpu_model" if unit.uuid else "cpu_model")
    torch = fact_of(unit.facts, "packages.torch")
    driver = f", driver {fact_of(unit.facts, 'driver')}" if unit.uuid else ""
    return f"{model}{driver}, python {unit.facts.get('python')}, torch {torch}"
