"""What is there against what is expected: present, missing, unexpected, different, quarantined."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fleet.contract.fleet_file import Facts, Fleet, LoadedFleet, Night, Node
from fleet.evidence.platform import unreadable
from fleet.schedule.inventory import Inventory, compare, print_inventory, quarantined_in
from fleet.schedule.launcher import NodeThere, UnitThere
from tests.unit.screens import shown

FACTS: dict[str, Any] = {
    "gpu_model": "NVIDIA H200", "driver": "550.1", "cpu_model": "X", "python": "3.11.7",
    "packages": {"torch": {"version": "2.13.0", "record_sha256": "0"}},
}  # fmt: skip
FINE = Facts(gpu_model="NVIDIA H200", packages={"torch": "2.13.0"})


def units(*uuids: str, **facts: Any) -> tuple[UnitThere, ...]:
    return tuple(UnitThere(uuid, "NVIDIA H200", FACTS | facts) for uuid in uuids)


def found(node: Node | None, *there: NodeThere, **quarantined: tuple[str, ...]) -> Inventory:
    night = Night(budget_minutes=1, contracts=("a",))
    fleet = None if node is None else LoadedFleet("rack", Path(), Fleet(night=night, nodes=(node,)))
    return compare(fleet, there, quarantined)


NODE = Node(label="gpu-a", devices=2, cpus=16, platform=FINE)


def test_a_node_that_is_as_expected_is_present() -> None:
    (row,) = found(NODE, NodeThere("gpu-a", 32, 1, units("G1", "G2"))).rows
    assert (row.label, row.state, row.differences) == ("gpu-a", "present", ())


def test_what_is_missing_and_what_nobody_expects_is_said() -> None:
    rows = found(NODE, NodeThere("other", 2, 1, (UnitThere(None, None, FACTS),))).rows
    assert [(row.label, row.state) for row in rows] == [
        ("gpu-a", "missing"), ("other", "unexpected"),
    ]  # fmt: skip
    (alone,) = found(None, NodeThere("other", 2, 1, units("G1"))).rows
    assert alone.state == "found"


def test_each_difference_names_its_key_what_was_expected_and_what_is_there() -> None:
    asked = Facts(
        gpu_model="NVIDIA A100", driver="550.1", packages={"torch": "2.12.0", "triton": "3.0"}
    )
    node = NODE.model_copy(update={"platform": asked})
    (row,) = found(node, NodeThere("gpu-a", 8, 1, units("G1"))).rows
    assert row.state == "different"
    assert [(d.key, d.expected, d.got, d.unit) for d in row.differences] == [
        ("devices", 2, 1, None),
        ("cpus", "16 or more", 8, None),
        ("platform.gpu_model", "NVIDIA A100", "NVIDIA H200", "G1"),
        ("platform.packages.torch", "2.12.0", "2.13.0", "G1"),
        ("platform.packages.triton", "3.0", "not installed", "G1"),
    ]
    assert row.to_json()["differences"][0] == {
        "key": "devices", "expected": 2, "got": 1, "unit": None,
    }  # fmt: skip


def test_what_cannot_be_read_is_different_and_never_taken_for_equal() -> None:
    asked = NODE.model_copy(update={"platform": Facts(driver="550.1")})
    there = units("G1", "G2", driver=unreadable("doctor", "no NVML"))
    (row,) = found(asked, NodeThere("gpu-a", 16, 1, there)).rows
    assert {d.got for d in row.differences} == {"unreadable: no NVML"}
    dead = UnitThere("G1", "NVIDIA H200", why="it died"), *units("G2")
    (row,) = found(asked, NodeThere("gpu-a", 16, 1, dead)).rows
    assert [(d.unit, d.got) for d in row.differences] == [("G1", "unreadable: it died")]
    (row,) = found(NODE, NodeThere("gpu-a", 16, 1, (), "NVML does not answer")).rows
    assert [(d.key, d.got) for d in row.differences] == [
        ("devices", "unreadable: NVML does not answer"),
    ]  # fmt: skip


def test_two_nodes_of_one_label_are_said() -> None:
    (row,) = found(NODE, NodeThere("gpu-a", 32, 2, units("G1", "G2"))).rows
    assert [(d.key, d.got) for d in row.differences] == [("label", "2 nodes of that label")]


def test_quarantined_units_stand_at_their_node_or_apart() -> None:
    told = found(
        NODE, NodeThere("gpu-a", 32, 1, units("G1", "G2")), G2=("why",), gone=("long ago",)
    )
    (row,) = told.rows
    assert (row.quarantined, told.quarantined) == ({"G2": ("why",)}, {"gone": ("long ago",)})
    assert row.state == "present"


def test_a_person_reads_all_of_it() -> None:
    text = shown(
        print_inventory,
        found(NODE, NodeThere("gpu-a", 8, 1, units("G1")), G1=("quarantined 2026-01-01",)),
    )
    for words in (
        "nodes, and fleet rack", "different", "NVIDIA H200, G1", "driver 550.1",
        "gpu-a: devices: expected 2, got 1", "gpu-a: unit G1 quarantined 2026-01-01",
    ):  # fmt: skip
        assert words in text, text
    nobody = shown(print_inventory, found(NODE, NodeThere("x", 1, 1, (), "no NVML")))
    assert "missing" in nobody and "x: devices: no NVML" in nobody


def test_where_nothing_landed_nobody_is_in_quarantine(tmp_path: Path) -> None:
    assert quarantined_in(tmp_path) == {}
    assert list(tmp_path.iterdir()) == []
