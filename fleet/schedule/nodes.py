"""What Ray says of its nodes: which run replays, and by which label each is known. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fleet.errors import CannotRunError

NODE_LABEL = "fleet.dev/node"
"""Node label that names a unit; a node without it is named by its host name."""


def usable(nodes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that run replays: a head that offers no CPU is there for the driver alone."""
    alive = [node for node in nodes if node["Alive"]]
    return [node for node in alive if node["Resources"].get("CPU", 0) >= 1] or alive


def label_of(node: Mapping[str, Any]) -> str:
    """Its label, else its host name."""
    return str(node.get("Labels", {}).get(NODE_LABEL) or node["NodeManagerHostname"])


def has_labels(node: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """All of these, with these values."""
    found = node.get("Labels", {})
    return all(found.get(name) == value for name, value in labels.items())


def no_node(wanted: str, there: Iterable[str]) -> CannotRunError:
    """That there is none such."""
    only = f"only: {', '.join(sorted(there)) or 'none'}"
    return CannotRunError("the cluster", "", wanted, only, "start it, with its labels")


def no_device(wanted: str, got: str) -> CannotRunError:
    """That no device is the one wanted."""
    fix = "fleet doctor shows the devices; FLEET_DEVICE=cpu runs on the CPU"
    return CannotRunError("FLEET_DEVICE", "", wanted, got, fix)
