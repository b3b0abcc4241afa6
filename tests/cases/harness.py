"""One pair of replays from a small config folder to its verdict, with a fault in at most one place.

Everything is the product: contract, driver, fresh processes, ledger, store, judge. Only the
launcher differs (plain subprocesses), because it can put a fault into exactly one process. Ten
questions, two arms, four tokens each: a pair takes two process starts and hardly anything else.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from fleet.evidence.landing import Landing
from fleet.evidence.ledger import Entry, read_chain
from fleet.judge.verdict import Verdict
from fleet.replay.task import ReplayTask
from fleet.report.answers import Answers, Asked, CampaignAnswer, asked_of
from fleet.schedule.claims import own_claim
from fleet.schedule.driver import AttemptEnd, Campaign, Limits
from fleet.schedule.launcher import Gone
from fleet.schedule.plan import plan
from fleet.schedule.resolve import Resolved, resolve_contract
from fleet.store.ingest import ingest
from fleet.store.open import open_reader, open_writer
from fleet.store.rebuild import rebuild
from tests.campaigns import write_contract, write_dataset
from tests.contract_text import contract_text
from tests.process_launcher import ProcessLauncher, RunningChild

pair = pytest.mark.pair
"""Declares what the fixture ``outcome`` is: arguments of :func:`run_pair` behind its folder."""

SAMPLES = 10
ARMS = ("controlled", "current")
RECORDS = SAMPLES * len(ARMS)
LIMITS = Limits(start_s=60, replay_s=60, end_s=20, retries=0)

TEMPLATES = {
    "current": r"{{ question }}\nAnswer: ",
    "controlled": r"Choose. {{ question }}\nLetter: ",
}


@dataclass(frozen=True)
class ContractSpec:
    """What a case's contract says where it is not the ordinary one."""

    grade: str = "logits"
    batch_size: int = 1
    clock: str | None = None
    parser: str = "letter"
    template: str = TEMPLATES["current"]
    extra: str = ""

    def toml(self) -> str:
        """The contract file."""
        return contract_text(
            "ten",
            self.grade,
            self.batch_size,
            self.parser,
            TEMPLATES | {"current": self.template},
            self.clock,
            self.extra,
        )


ORDINARY = ContractSpec()

RACY_CONTROL = ContractSpec(
    extra='[control]\ninject = "racy_linear:layers.0"\n'
    '[expect]\nverdict = "FAIL"\nfirst_broken_grade = "logits"\n'
)


def write_configs(folder: Path, contracts: Mapping[str, ContractSpec]) -> Path:
    """A config folder with these contracts and one dataset of ten questions."""
    for name, spec in contracts.items():
        write_contract(folder, name, spec.toml())
    lines = [json.dumps(_question(i), ensure_ascii=False) + "\n" for i in range(SAMPLES)]
    write_dataset(folder, "ten", "".join(lines).encode("utf-8"))
    return folder


def _question(i: int) -> dict[str, Any]:
    place = "café" if i == 2 else "cafe"
    return {
        "id": f"s{i:02d}",
        "question": f"What costs {i} at the {place}?",
        "answer": "ABCD"[i % 4],
    }


@dataclass(frozen=True)
class World:
    """The folders of one case, and the contracts that were resolved in it."""

    root: Path
    contracts: dict[str, Resolved]

    @classmethod
    def make(cls, root: Path, **contracts: ContractSpec) -> World:
        """Write the config folder and resolve every contract of it."""
        configs = write_configs(root / "configs", contracts)
        resolved = {
            name: resolve_contract(name, [configs], root / "cache", lambda _: None)
            for name in contracts
        }
        return cls(root, resolved)

    @property
    def configs(self) -> Path:
        return self.root / "configs"

    @property
    def store(self) -> Path:
        return self.root / "store.duckdb"

    @property
    def landing(self) -> Landing:
        return Landing.open(self.root / "landing", create=True)

    def asked(self, name: str) -> Asked:
        """One contract as the judge is asked about it."""
        resolved = self.contracts[name]
        return asked_of(name, resolved.execution_id, resolved.loaded.contract)

    def copy(self, root: Path) -> World:
        """The same landing in another place, to be damaged there; the store is not taken along."""
        shutil.copytree(self.root / "landing", root / "landing")
        return replace(self, root=root)


@dataclass
class CaseRunning:
    """A running child whose end or result may be made to go wrong at the driver's side."""

    child: RunningChild
    deadline_s: float | None
    interrupt: bool
    left_alive: bool
    late: bool = False

    def __post_init__(self) -> None:
        self.process, self.watcher = self.child.process, self.child.watcher

    def prepare(self) -> None:
        self.child.prepare()

    def go(self, token: str) -> None:
        self.child.go(token)

    def kill(self) -> None:
        self.child.kill()

    def result(self, deadline_s: float) -> str:
        if self.interrupt:
            time.sleep(0.1)
            raise KeyboardInterrupt
        return self.child.result(self.deadline_s or deadline_s)

    def end(self, deadline_s: float) -> Gone:
        if self.left_alive:
            return Gone(True, True, self.watcher)
        gone = self.child.end(deadline_s)
        if self.late:
            landing = Landing.open(Path(self.child.task.landing))
            for path in landing.parts(self.child.task.attempt):
                path.rename(not_yet(path))
        return gone


def not_yet(part: Path) -> Path:
    """What a late writer's part is until it lands."""
    return part.with_name(f".{part.name}")


@dataclass
class CaseLauncher(ProcessLauncher):
    """Beside faults in the child: what the driver of the n-th attempt sees.

    Args:
        deadlines: attempt -> seconds until the driver calls it a hang.
        unobserved: attempts whose death nobody sees.
        interrupted: attempts during which the driver is interrupted.
        left_alive: attempts whose process is said to be gone and lives on.
        late: attempts of which no row has landed when they are given up (:func:`not_yet`).
    """

    deadlines: Mapping[int, float] = field(default_factory=dict)
    unobserved: Collection[int] = ()
    interrupted: Collection[int] = ()
    left_alive: Collection[int] = ()
    late: Collection[int] = ()
    _alive: list[CaseRunning] = field(default_factory=list)

    def start(  # type: ignore[override]
        self,
        task: ReplayTask,
        environment: Mapping[str, str],
        num_cpus: int,
        deadline_s: float,
    ) -> CaseRunning:
        n = self.started
        self.observe_death = n not in self.unobserved
        child = super().start(task, environment, num_cpus, deadline_s)
        lives = n in self.left_alive
        running = CaseRunning(
            child, self.deadlines.get(n), n in self.interrupted, lives, n in self.late
        )
        if lives:
            self._alive.append(running)
        return running

    def __exit__(self, *_: object) -> None:
        for running in self._alive:
            running.child.end(20)


@dataclass(frozen=True)
class Outcome:
    """A verdict on a campaign of a world, with everything it came from."""

    world: World
    campaign: str
    answer: CampaignAnswer
    ends: tuple[AttemptEnd, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The verdict on the first contract."""
        return self.answer.contracts[0]

    @property
    def attempts(self) -> list[str]:
        """Attempt ids in the order they were planned."""
        return [e.attempt for e in self.ledger() if e.kind == "planned"]

    def ledger(self) -> list[Entry]:
        """The campaign's chain."""
        return read_chain(self.world.landing, self.campaign)

    def part(self, index: int) -> Path:
        """The first part of the n-th attempt."""
        return self.world.landing.parts(self.attempts[index])[0]


def run_pair(
    root: Path,
    faults: Mapping[int, str] | None = None,
    spec: ContractSpec = ORDINARY,
    limits: Limits = LIMITS,
    files: Mapping[str, str] | None = None,
    **launcher: Any,
) -> Outcome:
    """Two replays of one contract, and the verdict on them.

    Args:
        root: an empty folder.
        faults: attempt (0, 1, ... in the order started) -> name of a function of ``faults``.
        spec: the contract.
        limits: of the driver; no retries by default.
        files: name -> text of files beside the contract.
        launcher: further fields of :class:`CaseLauncher`.
    """
    for name, text in (files or {}).items():
        path = root / "configs" / "contracts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    world = World.make(root, case=spec)
    return run_campaign(world, ["case"], faults, limits, **launcher)


def run_campaign(
    world: World,
    named: list[str],
    faults: Mapping[int, str] | None = None,
    limits: Limits = LIMITS,
    controls: tuple[str, ...] = (),
    **launcher: Any,
) -> Outcome:
    """One campaign over contracts of a world; controls run first, as in the product."""
    with CaseLauncher(faults=faults or {}, **launcher) as starts:
        campaign = Campaign(
            landing=world.landing,
            launcher=starts,
            contracts={name: world.contracts[name] for name in (*named, *controls)},
            scratch=world.root / "scratch",
            limits=limits,
        )
        claims = {name: (own_claim(world.contracts[name]),) for name in named}
        slots = plan([(n, 2) for n in named], [(n, 2) for n in controls], claims=claims)
        ends = campaign.run(slots)
    return judged(world, campaign.id, named, controls, tuple(ends))


def judged(
    world: World,
    campaign: str,
    named: list[str] | None = None,
    controls: tuple[str, ...] = (),
    ends: tuple[AttemptEnd, ...] = (),
    bring: Callable[[World], None] | None = None,
) -> Outcome:
    """Ingest what landed (or rebuild the store) and judge the campaign."""
    (bring or ingested)(world)
    with open_reader(world.store) as store:
        answer = Answers(store, world.landing).campaign(
            campaign,
            [world.asked(name) for name in named or ["case"]],
            [world.asked(name) for name in controls],
        )
    return Outcome(world, campaign, answer, ends)


def again(outcome: Outcome, bring: Callable[[World], None] | None = None) -> Outcome:
    """The same question after something happened to the landing."""
    return judged(outcome.world, outcome.campaign, ends=outcome.ends, bring=bring)


def copied(outcome: Outcome, root: Path) -> Outcome:
    """The same evidence in a folder of its own, judged there."""
    return judged(outcome.world.copy(root), outcome.campaign, ends=outcome.ends)


def ingested(world: World) -> None:
    """Bring the store up to date."""
    with open_writer(world.store) as writer:
        ingest(writer, world.landing)


def rebuilt(world: World) -> None:
    """Make the store anew from the landing."""
    rebuild(world.store, world.landing)
