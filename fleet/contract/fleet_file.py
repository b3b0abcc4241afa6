"""A fleet's TOML: the nodes that are expected, what they must be, and what a night runs on them.

Strict like a contract: whatever cannot be understood is refused with file, key and fix. Knows no
cluster: what is really there is for the doctor to say. The name is the file name without ``.toml``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from fleet.contract.config_file import Kind
from fleet.contract.model import Name, NonNegative, Positive, Table, tuples
from fleet.contract.named import list_files
from fleet.errors import FleetFileError, UsageError

FOLDER = "fleets"

ContractName = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}(@[A-Za-z0-9_]+(:[a-z0-9]+)?)?$")
]


class Facts(Table):
    """Platform facts that every unit of a node must show; what is left out is not asked.

    ``packages``: name -> version.
    """

    gpu_model: str | None = None
    compute_capability: str | None = None
    sm_count: Positive | None = None
    mig_profile: str | None = None
    ecc_mode: str | None = None
    driver: str | None = None
    cublas: str | None = None
    cudnn: str | None = None
    cpu_model: str | None = None
    os: str | None = None
    glibc: str | None = None
    python: str | None = None
    packages: dict[Name, str] = Field(default_factory=dict)

    def flat(self) -> dict[str, str | int]:
        """What is asked: ``gpu_model``, ``packages.torch`` and so on."""
        found = {k: v for k, v in self.model_dump().items() if k != "packages" and v is not None}
        return found | {f"packages.{name}": v for name, v in sorted(self.packages.items())}


class Night(Table):
    """What a night runs, in at most so many minutes. ``seed`` decides what nothing else does."""

    budget_minutes: Positive
    seed: NonNegative = 0
    contracts: Annotated[tuple[ContractName, ...], Field(min_length=1)]

    @model_validator(mode="before")
    @classmethod
    def _lists(cls, data: Any) -> Any:
        return tuples(data, "contracts")


class Node(Table):
    """One expected node. ``label``: of the node label ``fleet.dev/node``, or the host name of a
    node without one; the machine that reads the file when it is left out.

    ``devices``: how many NVIDIA devices, 0 for a CPU. ``cpus``: at least so many, shared by the
    devices. ``contracts``: those of the night that run here, all when left out.
    """

    label: Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")] = ""
    devices: NonNegative = 0
    cpus: Positive | None = None
    contracts: tuple[ContractName, ...] | None = None
    platform: Facts = Facts()

    @model_validator(mode="before")
    @classmethod
    def _lists(cls, data: Any) -> Any:
        return tuples(data, "contracts")


class Fleet(Table):
    """The whole file."""

    night: Night
    nodes: Annotated[tuple[Node, ...], Field(min_length=1)]

    @model_validator(mode="before")
    @classmethod
    def _lists(cls, data: Any) -> Any:
        return tuples(data, "nodes")


@dataclass(frozen=True)
class LoadedFleet:
    """A fleet and where it was read."""

    name: str
    path: Path
    fleet: Fleet


def list_fleets(search: Sequence[Path]) -> list[str]:
    """Names of all fleets in the search path, sorted."""
    return list_files(search, FOLDER)


def load_fleet(
    name_or_file: str, search: Sequence[Path], host: str, controls: Sequence[str] = ()
) -> LoadedFleet:
    """Load one fleet by name or by file.

    Args:
        name_or_file: a name in the search path; with a ``/``, or ending in ``.toml``, a file.
        search: folders that hold ``fleets/``, first wins.
        host: the label of a node that has none in the file.
        controls: contracts that every night carries by itself, so that none may be named.

    Raises:
        FleetFileError: it cannot be found, read or understood.
    """
    path, fleet = Kind(FOLDER, "fleet").load(name_or_file, search, Fleet, FleetFileError)
    nodes = [n if n.label else n.model_copy(update={"label": host}) for n in fleet.nodes]
    fleet = fleet.model_copy(update={"nodes": tuple(nodes)})
    for fault in _faults(fleet, str(path), controls):
        raise fault
    return LoadedFleet(path.stem, path, fleet)


def _faults(fleet: Fleet, where: str, controls: Sequence[str]) -> Iterator[UsageError]:
    """What each key says alone, and not beside the others."""
    night = fleet.night.contracts
    lists = [("night.contracts", night)]
    lists += [(f"nodes[{i}].contracts", n.contracts or ()) for i, n in enumerate(fleet.nodes)]
    for key, names in lists:
        for name, times in Counter(names).items():
            if times > 1:
                yield FleetFileError(
                    where, key, "each contract once", f"{name!r} twice", "drop one"
                )
            elif name in controls:
                fix = "leave it out: every night carries its controls on every unit"
                yield FleetFileError(where, key, "contracts to certify", f"the control {name}", fix)
            elif name not in night:
                expected = f"contracts of the night: {', '.join(night)}"
                fix = f"add {name} to [night] contracts, or remove it here"
                yield FleetFileError(where, key, expected, repr(name), fix)
    for label, times in Counter(node.label for node in fleet.nodes).items():
        if times > 1:
            expected, got = "a label for each node", f"{label!r} {times} times"
            yield FleetFileError(where, "nodes.label", expected, got, "two nodes are two labels")
