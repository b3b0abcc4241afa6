"""A fleet that faults happen to: Ray nodes of one host, each with an environment of its own, and a
contract whose parser does, once, what a test orders it to do at a sample on a node.

``sound`` holds what must be true of every landing, whatever happened.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from ray.cluster_utils import Cluster

from fleet.evidence.landing import Landing
from fleet.evidence.ledger import NIGHT, Entry, campaigns, read_chain
from fleet.evidence.manifest import Process
from fleet.evidence.process import is_alive
from fleet.schedule.nodes import NODE_LABEL
from tests.campaigns import CONTRACT, write_configs, write_contract
from tests.integration.command_line import fleet
from tests.integration.test_ray_cluster import command, processes_with, until

NIGHT_ID = "n1"

PARSER = """import os
from pathlib import Path

ORDERS = Path({orders!r})


def parse(text, record):
    node = os.environ.get("TEST_NODE", "head")
    order = ORDERS / f"{{node}}.{name}.{{record['id']}}"
    try:
        order.rename(order.with_suffix(".taken"))
    except FileNotFoundError:
        return text
    exec(order.with_suffix(".taken").read_text(), {{"orders": ORDERS}})
    return text


def is_correct(answer, record):
    return False
"""
"""An order is taken by the first attempt that finds it."""

HOLD = """
import time
(orders / "holding-{tag}").touch()
while not (orders / "release-{tag}").exists():
    time.sleep(0.05)
"""
KILL = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"

FLEET = """[night]
budget_minutes = 600
contracts = [{contracts}]
"""


@dataclass
class FaultFleet:
    """One folder of a project, and the cluster whose nodes are its fleet. The first node is the
    head: drivers are its, so it stays."""

    root: Path
    cluster: Cluster = field(default_factory=Cluster)
    nodes: dict[str, Any] = field(default_factory=dict)

    @property
    def orders(self) -> Path:
        return self.root / "orders"

    @property
    def landing(self) -> Landing:
        return Landing(self.root / "var" / "landing")

    # what there is

    def add(self, label: str, num_cpus: int = 1, **environment: str) -> None:
        """Start a node, or start it again."""
        self.nodes[label] = self.cluster.add_node(
            num_cpus=num_cpus,
            labels={NODE_LABEL: label},
            include_dashboard=False,
            env_vars={"TEST_NODE": label, **environment},
        )

    def raylet(self, label: str) -> int:
        """Its pid."""
        (found,) = self.nodes[label].all_processes["raylet"]
        return int(found.process.pid)

    def kill(self, label: str) -> None:
        """The whole machine: the raylet and whatever it started."""
        raylet = self.raylet(label)
        for pid in (raylet, *_children(raylet)):
            os.kill(pid, signal.SIGKILL)
        self.forget(label)

    def kill_raylet(self, label: str) -> None:
        """The raylet alone."""
        os.kill(self.raylet(label), signal.SIGKILL)

    def forget(self, label: str) -> None:
        """Of a node that is dead already."""
        self.cluster.remove_node(self.nodes.pop(label), allow_graceful=False)

    def anew(self, *labels: str) -> None:
        """Another cluster in the place of this one, whose head is gone."""
        self.cluster.shutdown()
        self.cluster, self.nodes = Cluster(), {}
        for label in labels:
            self.add(label)

    def contract(self, name: str, text: str = CONTRACT) -> None:
        """One that takes orders."""
        parser = PARSER.format(orders=str(self.orders), name=name)
        (self.root / "configs" / "contracts" / f"{name}.py").write_text(parser)
        text = text.replace('parser = "letter"', f'parser = "file:{name}.py"')
        write_contract(self.root / "configs", name, text)

    def fleet_of(self, **nodes: tuple[str, ...]) -> None:
        """``fleets/rack.toml``: node -> the contracts that may run there."""
        every = dict.fromkeys(name for names in nodes.values() for name in names)
        text = FLEET.format(contracts=", ".join(f'"{name}"' for name in every))
        for label, names in nodes.items():
            listed = ", ".join(f'"{name}"' for name in names)
            text += f'[[nodes]]\nlabel = "{label}"\ncontracts = [{listed}]\n'
        folder = self.root / "configs" / "fleets"
        folder.mkdir(exist_ok=True)
        (folder / "rack.toml").write_text(text)

    # what is done

    def order(self, node: str, contract: str, sample: str, code: str) -> None:
        """To be done by the next attempt of a contract that comes to a sample on a node."""
        (self.orders / f"{node}.{contract}.{sample}").write_text(code)

    def hold(self, node: str, contract: str, sample: str = "s2") -> None:
        """It waits there until :meth:`release`."""
        self.order(node, contract, sample, HOLD.format(tag=f"{node}-{contract}"))

    def until_held(self, node: str, contract: str) -> None:
        until(lambda: (self.orders / f"holding-{node}-{contract}").exists(), 120)

    def until_marked(self, name: str) -> None:
        until(lambda: (self.orders / name).exists(), 120)

    def until_ended(self, label: str, contract: str, complete: int) -> None:
        """So many attempts of it are complete there."""
        until(
            lambda: [s for _, s, _ in self.attempts(label, contract)].count("COMPLETE") == complete,
            150,
        )

    def until_given_up(self, label: str, attempt: str) -> None:
        def ended() -> bool:
            chain = self.chain(f"{NIGHT_ID}.{label}")
            return any(e.kind == "given_up" and e.attempt == attempt for e in chain)

        until(ended, 150)

    def until_rows(self, attempt: str, count: int) -> None:
        until(lambda: len(self.rows(attempt)) == count, 60)

    def until_no_process(self, attempt: str) -> None:
        until(lambda: processes_with(f"FLEET_NONCE={attempt}") == [], 60)

    def release(self, node: str, contract: str) -> None:
        (self.orders / f"release-{node}-{contract}").touch()

    @contextmanager
    def night(self, *argv: str) -> Iterator[subprocess.Popen[str]]:
        """``fleet campaign rack`` while the block lasts."""
        asked = ("campaign", "rack", "--campaign-id", NIGHT_ID, *argv)
        with self.driver(*asked) as child:
            yield child

    @contextmanager
    def driver(self, *argv: str) -> Iterator[subprocess.Popen[str]]:
        given = command(self.root, *argv, "--address", str(self.cluster.address), "--json")
        with subprocess.Popen(**given, start_new_session=True) as child:
            try:
                yield child
            finally:
                child.kill()

    def told(self, child: subprocess.Popen[str], code: int, limit_s: float = 200) -> dict[str, Any]:
        """The document that a driver ended with."""
        out, err = child.communicate(timeout=limit_s)
        assert child.returncode == code, (child.returncode, out[-2000:], err)
        found: dict[str, Any] = json.loads(out)
        return found

    def ask(self, *argv: str) -> dict[str, Any]:
        """A reader's document."""
        found = fleet(self.root, *argv, "--json")
        assert found.stdout, found.stderr
        document: dict[str, Any] = json.loads(found.stdout)
        return document

    # what the ledger says

    def chain(self, name: str) -> list[Entry]:
        """Of a campaign, or of a unit's in the night."""
        return read_chain(self.landing, name)

    def attempts(self, label: str, contract: str) -> list[tuple[int, str, str | None]]:
        """(replay, state, cause) of each attempt of a contract on a unit of the night."""
        entries = self.chain(f"{NIGHT_ID}.{label}")
        planned = {
            e.attempt: e.body["replay"]
            for e in entries
            if e.kind == "planned" and e.body["contract"] == contract
        }
        return [
            (planned[e.attempt], e.body["state"], self._cause(e))
            for e in entries
            if e.kind in ("accepted", "given_up") and e.attempt in planned
        ]

    def _cause(self, end: Entry) -> str | None:
        """Of an accepted attempt its manifest says it."""
        body = end.body
        if end.kind == "accepted":
            body = json.loads(self.landing.manifest(end.attempt).read_bytes())
        return None if body["cause"] is None else str(body["cause"]["code"])

    def open_attempt(self, label: str, contract: str) -> str:
        """The one that runs there now."""
        entries = self.chain(f"{NIGHT_ID}.{label}")
        (*_, last) = [e for e in entries if e.kind == "planned" and e.body["contract"] == contract]
        return last.attempt

    def seconds_from(self, begun_s: float, label: str, attempt: str) -> float:
        """From a moment until the ledger gave an attempt up."""
        (end,) = [
            e
            for e in self.chain(f"{NIGHT_ID}.{label}")
            if e.kind == "given_up" and e.attempt == attempt
        ]
        return end.at_s - begun_s

    def entries(self) -> int:
        """Of all chains."""
        return len(list(self.landing.ledger.glob("*/*.json")))

    def node_ids(self, label: str) -> set[str]:
        """Ray's ids of the node that attempts of a unit ran on."""
        accepted = [e.attempt for e in self.chain(f"{NIGHT_ID}.{label}") if e.kind == "accepted"]
        found = [json.loads(self.landing.manifest(a).read_bytes()) for a in accepted]
        return {manifest["freshness"]["scheduler"]["node"] for manifest in found}

    def left_out(self) -> list[tuple[str, str]]:
        """(contract, code) of the night's own chain."""
        entries = self.chain(f"{NIGHT}{NIGHT_ID}")
        return [(e.body["contract"], e.body["code"]) for e in entries if e.kind == "left_out"]

    def rows(self, attempt: str) -> list[tuple[str, str]]:
        """(arm, sample) of every row that landed."""
        found = []
        for path in sorted(self.landing.attempt(attempt).glob("part-*.parquet")):
            table = pq.ParquetFile(path).read(["attempt", "arm", "sample_id"]).to_pydict()
            assert set(table["attempt"]) == {attempt}
            found += list(zip(table["arm"], table["sample_id"], strict=True))
        return found

    def sound(self) -> dict[str, Any]:
        """One end for each attempt, no record twice, no process left, and a rebuild that says the
        same as the store; returns what ``fleet status`` says."""
        planned: list[str] = []
        for name in campaigns(self.landing):
            entries = self.chain(name)
            ends = Counter(e.attempt for e in entries if e.kind in ("accepted", "given_up"))
            here = [e.attempt for e in entries if e.kind == "planned"]
            assert ends == dict.fromkeys(here, 1), name
            planned += here
            for entry in entries:
                if entry.kind == "started":
                    assert not is_alive(Process(**entry.body["process"])), entry
        assert len(set(planned)) == len(planned)
        landed = {path.name for path in (self.landing.root / "attempts").iterdir()}
        assert landed <= set(planned)
        for attempt in planned:
            assert processes_with(f"FLEET_NONCE={attempt}") == []
            assert set(Counter(self.rows(attempt)).values()) <= {1}
        before = self.status()
        assert fleet(self.root, "store", "rebuild").returncode == 0
        assert self.status() == before
        return before

    def status(self) -> dict[str, Any]:
        """By contract and platform, without what the clock changes."""
        rows = [row for row in self.ask("status")["contracts"] if row["platform"]]
        return {
            f"{row['contract']} {row['platform']}": {k: v for k, v in row.items() if k != "age_s"}
            for row in rows
        }

    def verdicts(self) -> dict[str, str]:
        """Contract -> verdict; of contracts on one platform."""
        return {row["contract"]: row["state"] for row in self.status().values()}


@contextmanager
def fault_fleet(root: Path, **nodes: Mapping[str, str]) -> Iterator[FaultFleet]:
    """Nodes by label, each with its environment; the first is the head."""
    write_configs(root / "configs")
    made = FaultFleet(root)
    made.orders.mkdir()
    try:
        for label, environment in nodes.items():
            made.add(label, **environment)
        yield made
    finally:
        for path in made.orders.glob("holding-*"):
            (made.orders / path.name.replace("holding", "release")).touch()
        made.cluster.shutdown()


def _children(pid: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue
        if int(text[text.rindex(")") + 2 :].split()[1]) == pid:
            found.append(int(path.parent.name))
    return found
