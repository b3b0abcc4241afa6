"""Drive one campaign: plan, write the ledger before acting, start, watch, accept.

Every planned attempt ends in *accepted* (its manifest closed it) or *given up* (FAILED when its
death was observed, LOST when not). Only FAILED and LOST are retried, inside a budget; VOID never
is. Beside the lanes of a night and the command line this is the one place that catches broadly:
whatever a replay does, the campaign goes on and the ledger says what happened. Knows no verdict.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from fleet.contract.canonical import from_text, sha256, to_text
from fleet.contract.model import Contract
from fleet.contract.stack import LoadedStack
from fleet.contract.vary import Own, draw, varied_contract
from fleet.contract.vary import environment as varied_environment
from fleet.errors import AttemptFailed, EvidenceError, StoreError
from fleet.evidence.landing import Landing
from fleet.evidence.ledger import Ledger
from fleet.evidence.manifest import Manifest
from fleet.evidence.mirror import pull
from fleet.evidence.states import RETRIED, Cause, Purpose, State
from fleet.replay import caches, determinism
from fleet.replay.task import ReplayTask, device_environment
from fleet.schedule.interrupts import Interrupts
from fleet.schedule.launcher import Gone, Launcher, Place, Running
from fleet.schedule.metrics import meter_of
from fleet.schedule.plan import Slot, Work, told
from fleet.schedule.planned import planned_body
from fleet.schedule.resolve import Resolved
from fleet.schedule.resume import Done, Key, done, give_up_open, key_of, repeats, require_same

Say = Callable[[str], None]
Feed = Callable[[], Sequence[Slot]]
Follow = Callable[[Sequence["AttemptEnd"]], Sequence[Slot]]


@dataclass(frozen=True)
class Limits:
    """Every wait has its own bound and its own cause, in seconds; ``retries``: of an attempt that
    could not finish; ``overlap``: on a device, prepare the next replay while one runs."""

    start_s: float = 120.0
    replay_s: float = 7200.0
    end_s: float = 30.0
    retries: int = 1
    overlap: bool = True


@dataclass(frozen=True)
class AttemptEnd:
    """How one attempt ended, as the ledger has it."""

    attempt: str
    slot: Slot
    state: State
    cause: Cause | None


class _Live(NamedTuple):
    """An attempt that was started and has no end yet; ``after``: the one before it on its unit."""

    slot: Slot
    task: ReplayTask
    running: Running
    after: str | None


class _Turn(NamedTuple):
    """Slots that run at a time, each on its own unit; how often they were tried before."""

    slots: tuple[Slot, ...]
    tries: int = 0


class _Begun(NamedTuple):
    """A turn whose attempts prepare; ``ended``: those that never started."""

    turn: _Turn
    live: list[_Live]
    ended: list[AttemptEnd]


@dataclass
class Campaign:
    """One run of a plan. Make it, then call :meth:`run` once.

    Args:
        landing: where evidence goes.
        launcher: what starts fresh processes.
        contracts: resolved contracts by name.
        scratch: folder for private caches of the attempts.
        purpose: what the attempts are for; only ``certify`` can help a PASS.
        samples: a subset of sample ids (``fleet replay``); None for the whole dataset.
        arms: a subset of arms; None for all.
        cores: bounds a varied number of threads.
        feed: asked for more slots when those there are have begun, until it has none.
        night: the one that this is a unit's part of.
        unit_is_down: its node went away while it ran; what had not begun was not run.
        stack: the frozen software that every replay must find in effect; None for whatever is.
    """

    landing: Landing
    launcher: Launcher
    contracts: dict[str, Resolved]
    scratch: Path
    limits: Limits = Limits()
    purpose: Purpose = "certify"
    samples: tuple[str, ...] | None = None
    arms: tuple[str, ...] | None = None
    on_event: Say = lambda _: None
    id: str = field(default_factory=lambda: new_campaign_id())
    cores: int = field(default_factory=lambda: os.cpu_count() or 1)
    feed: Feed = lambda: ()
    night: str = ""
    unit_is_down: bool = False
    stack: LoadedStack | None = None
    _stopped: bool = False
    _before: Mapping[Key, Done] = field(default_factory=dict)
    _last: dict[Place, _Live] = field(default_factory=dict)
    _alive: list[_Live] = field(default_factory=list)
    _total: int = 0
    _interrupts: Interrupts = field(default_factory=Interrupts)

    def run(
        self, slots: Sequence[Slot], argv: Sequence[str] = (), follow: Follow = lambda _: []
    ) -> list[AttemptEnd]:
        """Run every slot that no earlier driver of this id ran; the end of every attempt, retries
        and earlier ones included.

        Args:
            slots: what is planned before anything runs.
            argv: the command line, for the ledger.
            follow: asked for further slots whenever all ran, with the ends so far, until it has
                none: what a failure is looked into with.

        Raises:
            UsageError, CannotRunError: an earlier driver's chain cannot be gone on with.
            KeyboardInterrupt, SystemExit: after the ledger says so.
        """
        self._total = len(slots)
        with self._interrupts:
            ledger, ends = self._open(slots, argv)
            try:
                while slots:
                    reused, missing = self._reused(slots)
                    ends += [*reused, *self._all(ledger, missing)]
                    slots = [] if self.unit_is_down else follow(ends)
                    self._total += len(slots)
            finally:
                self._end_all(ledger)
                ledger.append("closed")
        return ends

    def _end_all(self, ledger: Ledger) -> None:
        """Interrupted, or the ledger cannot be written: no process is left either way."""
        for live in tuple(self._alive):
            live.running.kill()
        for live in tuple(self._alive):
            self._give_up_as(ledger, live, self._end(ledger, live), _INTERRUPTED)

    def stop(self) -> None:
        """From another thread: end what runs, as an interrupt would, and begin nothing more. What
        is being started meanwhile is the launcher's to end (:meth:`Launcher.stop`)."""
        self._stopped = True
        for live in tuple(self._alive):
            live.running.kill()

    @property
    def is_stopped(self) -> bool:
        """Was it told to?"""
        return self._stopped

    def _reused(self, slots: Sequence[Slot]) -> tuple[list[AttemptEnd], list[Slot]]:
        """(ends of what was done already, what is left)."""
        found = [(slot, self._done_before(slot)) for slot in slots]
        ends = [AttemptEnd(d.attempt, slot, d.state, d.cause) for slot, d in found if d]
        if ends:
            self.on_event(f"{len(ends)} of {len(slots)} replays of {self.id} are there already")
        return ends, [slot for slot, d in found if d is None]

    def _done_before(self, slot: Slot) -> Done | None:
        """A repeat of a frozen call is no slot of a plan: what is there is in the ends."""
        repeats = slot.work is not None and slot.work.repeats_a_call
        return None if repeats else self._before.get(key_of(slot, self.purpose))

    def _open(self, slots: Sequence[Slot], argv: Sequence[str]) -> tuple[Ledger, list[AttemptEnd]]:
        """The chain, and the ends of an earlier driver's repeats of frozen calls."""
        ledger, entries = Ledger.continued(self.landing, self.id)
        for resolved in self.contracts.values():
            self.landing.write_contract(from_text(resolved.execution_id), resolved.body())
        named = [resolved.asked() for resolved in self.contracts.values()]
        driver = secrets.token_hex(8)  # drawn, so that no two drivers write this entry alike
        if entries:
            require_same(entries, named)
            ledger.append("resumed", argv=list(argv), driver=driver)
            give_up_open(ledger, entries, self.launcher, self.limits.end_s)
            self._before = done(self.landing, entries)
            there = repeats(self.landing, entries)
            return ledger, [AttemptEnd(d.attempt, slot, d.state, d.cause) for slot, d in there]
        ledger.append("campaign", contracts=named, argv=list(argv), driver=driver)
        # a control that the user named controls this campaign no less than one that was added
        controls = {slot.contract for slot in slots if slot.role == "control"}
        controls |= {name for name, r in self.contracts.items() if r.loaded.contract.expect}
        ledger.append("controls", contracts=sorted(controls))
        return ledger, []

    def _together(self, slots: Sequence[Slot]) -> Iterator[list[Slot]]:
        """Replays of one claim about several units run at a time, each on its own."""
        group: list[Slot] = []
        for slot in slots:
            if group and not self._joins(group, slot):
                yield group
                group = []
            group.append(slot)
        if group:
            yield group

    def _joins(self, group: Sequence[Slot], slot: Slot) -> bool:
        one_set = (slot.contract, slot.vary, slot.work) == (
            group[0].contract, group[0].vary, group[0].work,
        )  # fmt: skip
        return one_set and self.place_of(slot) not in map(self.place_of, group)

    def place_of(self, slot: Slot) -> Place:
        """Always the same one, but for a claim about several units, which takes them by turns."""
        resolved = self.contracts.get(slot.contract)
        if resolved is None or resolved.loaded.contract.require.scope == ONE:
            return self.launcher.place()
        places = self.launcher.places()
        return places[slot.replay % len(places)]

    def _all(self, ledger: Ledger, slots: Sequence[Slot]) -> Iterator[AttemptEnd]:
        """Run every slot, what is fed meanwhile, and again what may be retried.

        While replays run on devices, those of the next turn prepare beside them.
        """
        turns = deque(_Turn(tuple(group)) for group in self._together(slots))
        ahead: _Begun | None = None
        while ahead or turns or (yield from self._feed(turns)):
            now = ahead or self._begin_turn(ledger, turns.popleft())
            self._let_go(ledger, now)
            if not turns and all(map(self._on_device, now.turn.slots)):
                yield from self._feed(turns)
            beside = bool(turns) and self._may_overlap(now.turn, turns[0])
            ahead = self._begin_turn(ledger, turns.popleft()) if beside else None
            ended = [*now.ended, *(self._watch(ledger, live) for live in now.live)]
            yield from ended
            unfinished = [end for end in ended if end.state in RETRIED]
            if unfinished and not self.launcher.is_up():
                self.unit_is_down = True
                yield from [self._went_away(ledger, live) for live in tuple(self._alive)]
                return
            turns.extendleft(reversed(list(self._again(now.turn, unfinished))))

    def _feed(self, turns: deque[_Turn]) -> Generator[AttemptEnd, None, bool]:
        """Ask for more until there is something to run, or no more; was there any?"""
        while not turns and not self._stopped and (fed := list(self.feed())):
            reused, slots = self._reused(fed)
            self._total += len(fed)
            turns.extend(_Turn(tuple(group)) for group in self._together(slots))
            yield from reused
        return bool(turns)

    def _again(self, turn: _Turn, unfinished: Sequence[AttemptEnd]) -> Iterator[_Turn]:
        for end in unfinished:
            if turn.tries < self.limits.retries:
                self.on_event(f"{end.slot.contract} replay {end.slot.replay}: {end.cause}; again")
                yield _Turn((end.slot,), turn.tries + 1)

    def _may_overlap(self, now: _Turn, following: _Turn) -> bool:
        """Preparing uses processor and memory: beside a replay on the CPU it would disturb it."""
        both = (*now.slots, *following.slots)
        if not self.limits.overlap or not all(map(self._on_device, both)):
            return False
        threads: Counter[str] = Counter()
        for slot in both:
            threads[self.place_of(slot).node_label] += self._threads(slot.contract)
        return all(threads[p.node_label] <= p.cpus for p in map(self.place_of, both))

    def _on_device(self, slot: Slot) -> bool:
        engine = self.contracts[slot.contract].loaded.contract.model.engine
        return engine != "synthetic" and self.place_of(slot).device is not None

    def _begin_turn(self, ledger: Ledger, turn: _Turn) -> _Begun:
        begun = [self._begin(ledger, slot) for slot in turn.slots]
        ended = [one for one in begun if isinstance(one, AttemptEnd)]
        return _Begun(turn, [one for one in begun if isinstance(one, _Live)], ended)

    def _let_go(self, ledger: Ledger, begun: _Begun) -> None:
        """Whatever ran on their units before was watched to its end."""
        for live in begun.live:
            token = secrets.token_hex(16)
            ledger.append("go", live.task.attempt, token=token, after=live.after)
            live.running.go(token)

    def _begin(self, ledger: Ledger, slot: Slot) -> AttemptEnd | _Live:
        resolved = self.contracts[slot.contract]
        self._unless_stopped()
        task = self.task(slot, resolved, secrets.token_hex(8))
        place = f"[{slot.index + 1}/{self._total}]"
        self.on_event(f"{place} {slot.contract} {told(slot, task)}: attempt {task.attempt}")
        own = self._own(task.typed_contract(), task.sample_ids)
        ledger.append("planned", task.attempt, **planned_body(slot, task, own, self.night))
        try:
            with self._interrupts.let_through():
                running = self._start(task, resolved)
        except AttemptFailed as failed:
            why = _INTERRUPTED if self._stopped else failed
            never_was = why.code == "unschedulable"
            return self._give_up(ledger, slot, task, "FAILED" if never_was else "LOST", why)
        except BaseException:
            self._give_up(ledger, slot, task, "LOST", _INTERRUPTED)
            raise
        unit = self.place_of(slot)
        before = self._last.get(unit)
        live = _Live(slot, task, running, before and before.task.attempt)
        self._last[unit] = live
        self._alive.append(live)  # first, so that it is ended if the ledger cannot be written
        process = vars(running.process)
        ledger.append("started", task.attempt, process=process, watcher=dict(running.watcher))
        self._unless_stopped()  # asked once it can be found: whoever stops it later kills it
        running.prepare()
        return live

    def _unless_stopped(self) -> None:
        if self._stopped:
            raise KeyboardInterrupt

    def _watch(self, ledger: Ledger, live: _Live) -> AttemptEnd:
        begun_s = time.monotonic()
        end = self._watched(ledger, live)
        meter_of(self.launcher).attempt_ended(end.state, time.monotonic() - begun_s)
        return end

    def _watched(self, ledger: Ledger, live: _Live) -> AttemptEnd:
        slot, task, running = live.slot, live.task, live.running
        failed: AttemptFailed | None = None
        digest = ""
        try:
            with self._interrupts.let_through():
                digest = running.result(self.limits.replay_s)
        except AttemptFailed as error:
            failed = error
        except Exception as error:
            failed = AttemptFailed("engine-error", f"{type(error).__name__}: {error}"[:500])
        self._unless_stopped()
        gone = self._end(ledger, live)
        if failed is None:
            failed = self._unacceptable(task, digest)
        if failed is None and gone.gone and gone.seen_alive:
            return self._accept(ledger, slot, task, digest)
        unseen = AttemptFailed("death-not-observed", "the process was told to end")
        return self._give_up_as(ledger, live, gone, failed or unseen)

    def _start(self, task: ReplayTask, resolved: Resolved) -> Running:
        environment = self.environment(task, resolved)
        threads = self._threads(resolved.name)
        return self.launcher.start(task, environment, threads, self.limits.start_s)

    def _threads(self, contract: str) -> int:
        return self.contracts[contract].loaded.contract.determinism.num_threads

    def environment(self, task: ReplayTask, resolved: Resolved) -> dict[str, str]:
        """What the process is given before it starts; the nonce keeps cached workers out."""
        contract = varied_contract(resolved.loaded.contract, task.varied)
        environment = determinism.environment(contract) | device_environment(task.device)
        environment |= varied_environment(task.vary, task.varied)
        environment |= caches.environment(contract, Path(task.scratch), task.attempt)
        return environment | {"FLEET_NONCE": task.attempt}

    def _unacceptable(self, task: ReplayTask, digest: str) -> AttemptFailed | None:
        """The manifest on disk must be the one the process says it wrote."""
        try:
            pull(self.landing, f"attempts/{task.attempt}/")
            data = self.landing.manifest(task.attempt).read_bytes()
            Manifest.from_bytes(data)
        except StoreError as error:
            return AttemptFailed("landing-unreachable", str(error))
        except (OSError, EvidenceError) as error:
            return AttemptFailed("engine-error", f"no readable manifest: {error}")
        if to_text(sha256(data)) != digest:
            return AttemptFailed("engine-error", "the manifest on disk is not the one returned")
        return None

    def _accept(self, ledger: Ledger, slot: Slot, task: ReplayTask, digest: str) -> AttemptEnd:
        manifest = Manifest.from_bytes(self.landing.manifest(task.attempt).read_bytes())
        ledger.append("accepted", task.attempt, manifest_sha256=digest, state=manifest.state)
        return AttemptEnd(task.attempt, slot, manifest.state, manifest.cause)

    def _give_up(
        self, ledger: Ledger, slot: Slot, task: ReplayTask, state: State, failed: AttemptFailed
    ) -> AttemptEnd:
        cause = Cause(failed.code, failed.text, failed.details)
        there = self.landing.landed(task.attempt)
        ledger.append("given_up", task.attempt, state=state, cause=cause.to_json(), landed=there)
        return AttemptEnd(task.attempt, slot, state, cause)

    def _give_up_as(
        self, ledger: Ledger, live: _Live, gone: Gone, failed: AttemptFailed
    ) -> AttemptEnd:
        """FAILED when its death was seen. Of one that only the scheduler calls dead nobody knows,
        and one that the scheduler cannot reach may have been seen to die."""
        code = failed.code
        if gone.gone and code == "node-unreachable":
            code = "killed"
        elif not gone.gone and code == "killed":
            code = "death-not-observed" if self.launcher.is_up() else "node-unreachable"
        failed = AttemptFailed(code, failed.text, failed.details)
        state: State = "FAILED" if gone.gone else "LOST"
        return self._give_up(ledger, live.slot, live.task, state, failed)

    def _went_away(self, ledger: Ledger, live: _Live) -> AttemptEnd:
        """It was preparing when its unit went away."""
        failed = AttemptFailed("node-unreachable", "its node went away while it was preparing")
        return self._give_up_as(ledger, live, self._end(ledger, live), failed)

    def _end(self, ledger: Ledger, live: _Live) -> Gone:
        task, running = live.task, live.running
        gone = running.end(self.limits.end_s)
        self._alive.remove(live)
        ledger.append(
            "gone",
            task.attempt,
            seen_alive=gone.seen_alive,
            gone=gone.gone,
            watcher=dict(gone.watcher),
        )
        shutil.rmtree(self.scratch / task.attempt, ignore_errors=True)
        return gone

    def task(self, slot: Slot, resolved: Resolved, attempt: str) -> ReplayTask:
        contract = resolved.loaded.contract
        work = slot.work or Work(self.purpose, self.samples, self.arms)
        ids = work.samples or resolved.dataset.ids
        own, place = self._own(contract, ids), self.place_of(slot)
        before = self._last.get(place)
        return ReplayTask(
            attempt=attempt,
            campaign=self.id,
            slot=slot.index,
            purpose=work.purpose,
            contract_name=resolved.name,
            contract_file=str(resolved.loaded.path.resolve()),
            contract=contract.model_dump(mode="python"),
            execution_id=resolved.execution_id,
            digests=resolved.digests,
            checkpoint=str(resolved.checkpoint) if resolved.checkpoint else None,
            dataset_file=str(resolved.dataset.file.resolve()),
            sample_ids=ids,
            arms=work.arms or tuple(sorted(contract.arms)),
            landing=str(self.landing.staging.resolve()),
            remote=self.landing.remote.url if self.landing.remote else None,
            scratch=str(self.scratch.resolve()),
            node_label=place.node_label,
            predecessor=before and before.running.process,
            trace=work.trace,
            device=None if contract.model.engine == "synthetic" else place.device,
            vary=slot.vary,
            varied=draw(slot.vary, attempt, slot.replay, own),
            stack=self.stack.to_task() if self.stack else None,
        )

    def _own(self, contract: Contract, ids: Sequence[str]) -> Own:
        return Own.of(contract, len(ids), self.cores)


ONE = "same-unit"
"""The scope of a claim about one unit."""

SLOT_ZERO = Slot(0, "", 0, "named")
_INTERRUPTED = AttemptFailed("driver-gone", "the driver was interrupted")


def new_campaign_id() -> str:
    """Sortable by time, unique: ``20260102T030405Z-1a2b3c``."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
