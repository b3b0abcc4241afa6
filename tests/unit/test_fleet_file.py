"""A fleet's TOML: found like a contract, strict like one, and refused in one clear message."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.contract.fleet_file import Facts, LoadedFleet, list_fleets, load_fleet
from fleet.contract.load import BUILTIN, load_contract
from fleet.errors import FleetFileError
from fleet.evidence.platform import FACTS

GOOD = """schema = 1
[night]
budget_minutes = 480
contracts = ["a", "b@awq_torch"]
[[nodes]]
label = "gpu-a"
devices = 2
cpus = 16
contracts = ["a"]
platform.gpu_model = "NVIDIA H200"
platform.packages.torch = "2.13.0"
[[nodes]]
"""
HOST = "this-host"


def write(root: Path, text: str, name: str = "rack") -> Path:
    path = root / "fleets" / f"{name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def load(root: Path, name: str = "rack") -> LoadedFleet:
    return load_fleet(name, [root], HOST, ("control-racy",))


def test_a_fleet_says_its_night_and_what_each_node_must_be(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    found = load(tmp_path)
    assert (found.name, found.fleet.night.budget_minutes, found.fleet.night.seed) == (
        "rack", 480, 0,
    )  # fmt: skip
    first, second = found.fleet.nodes
    assert (first.label, first.devices, first.cpus, first.contracts) == ("gpu-a", 2, 16, ("a",))
    assert first.platform.flat() == {"gpu_model": "NVIDIA H200", "packages.torch": "2.13.0"}
    assert (second.devices, second.cpus, second.contracts) == (0, None, None)


def test_a_node_without_a_label_is_called_by_the_host_that_reads_the_file(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    assert load(tmp_path).fleet.nodes[1].label == HOST


def test_every_expected_fact_is_a_fact_of_the_platform() -> None:
    assert set(Facts.model_fields) <= set(FACTS)


def test_the_first_folder_wins_and_a_path_is_a_file(tmp_path: Path) -> None:
    other = write(tmp_path / "two", GOOD.replace("480", "7"))
    write(tmp_path / "one", GOOD)
    one, two = tmp_path / "one", tmp_path / "two"
    assert load_fleet("rack", [one, two], HOST).fleet.night.budget_minutes == 480
    assert load_fleet(str(other), [one], HOST).fleet.night.budget_minutes == 7
    assert list_fleets([one, two]) == ["rack"]


@pytest.mark.parametrize("name", list_fleets([BUILTIN]))
def test_every_shipped_fleet_loads_with_its_contracts(name: str) -> None:
    found = load_fleet(name, [BUILTIN], HOST)
    assert [load_contract(c, [BUILTIN]).name for c in found.fleet.night.contracts]


def node(line: str) -> tuple[str, str]:
    return "devices = 2\n", f"devices = 2\n{line}\n"


BAD = {
    "an unknown table": (("[night]", "[nigth]"), "nigth", "an unknown key", '"night"'),
    "an unknown key": (("budget_minutes", "budget"), "night.budget", "unknown", "budget_minutes"),
    "an unknown key of a node": (node("device = 1"), "nodes[0].device", "unknown", '"devices"'),
    "a fact that is none": (
        node('platform.driver_ = "x"'), "nodes[0].platform.driver_", "unknown", '"driver"',
    ),
    "a variable as a fact": (
        node('platform.environment = "x"'), "nodes[0].platform.environment", "unknown", "remove",
    ),
    "a budget in words": (("480", '"480"'), "night.budget_minutes", "'480' (string)", "without"),
    "no budget": (("budget_minutes = 480\n", ""), "night.budget_minutes", "no such key", "[night]"),
    "no minute": (("480", "0"), "night.budget_minutes", "0 (integer)", "correct"),
    "no contract": (('["a", "b@awq_torch"]', "[]"), "night.contracts", "[] (list)", "correct"),
    "a contract that is a path": (('["a", ', '["x/a", '), "night.contracts[0]", "'x/a'", "correct"),
    "a contract that is a number": (('["a", ', "[7, "), "night.contracts[0]", "7", "correct"),
    "a label that is none": (('"gpu-a"', '"gpu a"'), "nodes[0].label", "'gpu a'", "correct"),
    "devices below none": (("devices = 2", "devices = -1"), "nodes[0].devices", "-1", "correct"),
    "a version that is a number": (
        ('"2.13.0"', "2.13"), "nodes[0].platform.packages.torch", "2.13 (float)", "correct",
    ),
    "true for a number": (("cpus = 16", "cpus = true"), "nodes[0].cpus", "true", "correct"),
    "a contract twice": (('["a", ', '["a", "a", '), "night.contracts", "'a' twice", "drop one"),
    "a contract twice on a node": (
        ('contracts = ["a"]', 'contracts = ["a", "a"]'), "nodes[0].contracts", "twice", "drop",
    ),
    "a control": (
        ('["a", ', '["control-racy", '), "night.contracts", "control-racy", "every night",
    ),
    "a contract of a node alone": (
        ('contracts = ["a"]', 'contracts = ["c"]'), "nodes[0].contracts", "'c'", "add c to",
    ),
    "a newer file": (("schema = 1", "schema = 2"), "schema", "newer than the code", "update"),
    "no TOML": (("[night]", "[night"), "line 2", "'", "correct line 2"),
    "infinity": (("480", "inf"), "night.budget_minutes", "inf", "correct"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_understood_is_refused_with_file_key_and_fix(
    tmp_path: Path, case: str
) -> None:
    (old, new), key, got, fix = BAD[case]
    assert GOOD.count(old) >= 1
    path = write(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(FleetFileError) as caught:
        load(tmp_path)
    error = caught.value
    assert (error.where, error.key) == (str(path.resolve()), key)
    assert got in error.got and fix in error.fix, str(error)
    assert error.expected


def test_no_nodes_and_one_label_twice_are_refused(tmp_path: Path) -> None:
    head = GOOD.partition("[[nodes]]")[0]
    write(tmp_path, head)
    with pytest.raises(FleetFileError, match="tables in double brackets, at least one"):
        load(tmp_path)
    write(tmp_path, head.replace("[night]", "nodes = []\n[night]"))
    with pytest.raises(FleetFileError, match="tables in double brackets, at least one"):
        load(tmp_path)
    write(tmp_path, head + "[[nodes]]\n[[nodes]]\n")
    with pytest.raises(FleetFileError, match=f"'{HOST}' 2 times"):
        load(tmp_path)


def test_an_unknown_fleet_suggests_the_nearest_and_a_missing_file_is_said(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    with pytest.raises(FleetFileError, match=r"only these: rack\n  next: did you mean .rack"):
        load(tmp_path, "rakc")
    with pytest.raises(FleetFileError, match="no such file"):
        load(tmp_path, str(tmp_path / "no.toml"))
