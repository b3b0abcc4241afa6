"""The units of a night: expected or there, in classes that what is known does not contradict."""

from __future__ import annotations

from fleet.contract.fleet_file import Facts, Fleet, Night, Node
from fleet.replay.task import Device
from fleet.schedule.launcher import Place
from fleet.schedule.roster import (
    Seen,
    apart,
    expected_units,
    platform_of_kinds,
    real_units,
    unit_name,
)

H200 = Facts(gpu_model="NVIDIA H200")
A, B = "sha256:" + "a" * 64, "sha256:" + "b" * 64


def fleet(*nodes: Node) -> Fleet:
    return Fleet(night=Night(budget_minutes=1, contracts=("a",)), nodes=nodes)


def gpu(uuid: str) -> Device:
    return Device(uuid, "NVIDIA H200", 0, 2**30)


def test_a_unit_is_called_by_its_device_or_by_its_node() -> None:
    assert unit_name("gpu:GPU-1:mig") == "GPU-1:mig"
    assert unit_name("cpu:host:name:left") == "left"
    assert Place("left", None).name == "left"
    assert Place("left", gpu("GPU-1")).name == "GPU-1"


def test_expected_units_share_a_nodes_cpus_and_its_contracts() -> None:
    two = Node(label="gpu-a", devices=2, cpus=16, contracts=("a",), platform=H200)
    found = expected_units(fleet(two, Node(label="left"), Node(label="right", devices=1)))
    assert [(u.name, u.node, u.kind, u.cpus, u.contracts) for u in found] == [
        ("gpu-a/0", "gpu-a", "NVIDIA H200", 8, ("a",)),
        ("gpu-a/1", "gpu-a", "NVIDIA H200", 8, ("a",)),
        ("left", "left", "CPU", None, None),
        ("right/0", "right", "NVIDIA device", None, None),
    ]


def test_nodes_that_ask_for_other_facts_are_of_other_classes() -> None:
    older = H200.model_copy(update={"driver": "1", "packages": {"torch": "2.0"}})
    one = Node(label="a", devices=1, platform=H200)
    other = Node(label="b", devices=1, platform=older)
    kinds = [unit.kind for unit in expected_units(fleet(one, other))]
    assert kinds == ["NVIDIA H200", "NVIDIA H200, driver 1, packages.torch 2.0"]


def test_an_expected_device_is_called_by_the_uuid_that_was_seen_there_last() -> None:
    seen = [Seen(f"gpu:G{n}", "gpu-a", A, float(n)) for n in range(3)]
    seen += [Seen("gpu:G9", "elsewhere", A, 9.0), Seen("cpu:m:gpu-a", "gpu-a", B, 9.0)]
    node = Node(label="gpu-a", devices=2)
    assert [u.name for u in expected_units(fleet(node), seen)] == ["G2", "G1"]
    more = Node(label="gpu-a", devices=4)
    assert [u.name for u in expected_units(fleet(more), seen)] == ["G2", "G1", "G0", "gpu-a/3"]


def test_only_what_the_fleet_expects_is_used_and_the_rest_is_said() -> None:
    nodes = fleet(Node(label="gpu-a", devices=2), Node(label="left"))
    there = [Place("gpu-a", gpu("G1"), 4), Place("left", gpu("G2")), Place("strange", None)]
    found, notes = real_units(nodes, there)
    assert [(u.name, u.cpus) for u in found if u.there] == [("G1", 2)]
    assert [u.node for u in found if not u.there] == ["gpu-a", "left"]
    assert notes == [
        "unit G2: not of this fleet, and not used", "unit strange: not of this fleet, and not used",
        "node gpu-a: 1 of 2 units missing", "node left: 1 of 1 units missing",
    ]  # fmt: skip


def test_units_of_one_class_that_showed_several_platforms_are_of_several() -> None:
    nodes = fleet(*(Node(label=label) for label in ("left", "right", "new")))
    seen = [
        Seen("cpu:m:left", "left", B, 1.0), Seen("cpu:m:left", "left", A, 2.0),
        Seen("cpu:m:right", "right", B, 2.0),
    ]  # fmt: skip
    units = expected_units(nodes, seen)
    assert [u.kind for u in units] == ["CPU [aaaaaaaa]", "CPU [bbbbbbbb]", "CPU"]
    assert platform_of_kinds(units, seen) == {"CPU [aaaaaaaa]": A, "CPU [bbbbbbbb]": B}


def test_a_unit_that_was_never_seen_is_taken_for_what_its_class_shows() -> None:
    nodes = fleet(Node(label="left"), Node(label="new"))
    seen = [Seen("cpu:m:left", "left", A, 1.0)]
    units = expected_units(nodes, seen)
    assert [u.kind for u in units] == ["CPU", "CPU"]
    assert platform_of_kinds(units, seen) == {"CPU": A}
    assert apart(units, ()) == units
