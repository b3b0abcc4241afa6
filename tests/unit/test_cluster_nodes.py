"""Which nodes of a Ray cluster run replays."""

from __future__ import annotations

from typing import Any

from fleet.schedule.nodes import usable


def node(name: str, cpus: float | None, alive: bool = True) -> dict[str, Any]:
    resources = {} if cpus is None else {"CPU": cpus}
    return {"NodeID": name, "Alive": alive, "Resources": resources}


def names(*nodes: dict[str, Any]) -> list[str]:
    return [found["NodeID"] for found in usable(nodes)]


def test_a_head_without_cpus_runs_the_driver_alone() -> None:
    assert names(node("head", None), node("a", 8.0), node("gone", 8.0, alive=False)) == ["a"]
    assert names(node("head", 0.5), node("a", 1.0)) == ["a"]


def test_where_no_node_has_any_they_are_asked_all_the_same() -> None:
    """So that the refusal names the node and what it lacks."""
    assert names(node("head", None), node("gone", 1.0, alive=False)) == ["head"]
