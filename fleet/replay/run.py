"""One replay from entry to manifest, the same for every engine (the order is the protocol).

Prepare: entry facts -> pinned content -> imports -> inputs. Then, with the driver's token: the unit
is free -> seeded load -> read-back -> generation -> read-back -> manifest. Preparing touches no
device, so it may overlap with the replay before; the token says that this one is gone. What
contradicts the contract ends the attempt as VOID with its cause; memory and disk that ran out end
it as FAILED; anything else rises to the driver, which saw the process die or raise. Knows no other
replay, no store and no verdict.
"""

from __future__ import annotations

import errno
import platform as python_platform
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fleet
from fleet.contract.canonical import digest_json, to_text
from fleet.contract.model import Contract
from fleet.contract.parsers import Parser
from fleet.contract.vary import KERNELS_AT_END, KERNELS_AT_LOAD, environment, varied_contract
from fleet.errors import AttemptEnded, AttemptVoid, EvidenceError, UsageError
from fleet.evidence.landing import file_sha256, write_once
from fleet.evidence.manifest import Manifest
from fleet.evidence.modules import read_modules
from fleet.evidence.parts import PartWriter
from fleet.evidence.platform import PLATFORM_FORMAT
from fleet.evidence.rows import check_columns
from fleet.evidence.states import Cause, State
from fleet.evidence.tally import Tally, tally_rows
from fleet.replay import caches, determinism, freshness, observe, pinned
from fleet.replay.engines.protocol import Census, Engine
from fleet.replay.engines.registry import make_engine
from fleet.replay.gpu.watch import open_watch, require_healthy, since_boot_s
from fleet.replay.probe import AtEntry, read_platform, read_unit
from fleet.replay.ship import ship
from fleet.replay.software import require_frozen
from fleet.replay.stress import Stress
from fleet.replay.task import ReplayTask, device_environment

if TYPE_CHECKING:  # it brings torch, which the synthetic engine does without
    from fleet.replay.trace.session import TraceSession


@dataclass
class _Progress:
    """What is known so far: the manifest states it however the attempt ends."""

    platform: dict[str, Any] = field(default_factory=dict)
    platform_sha256: str = ""
    unit: dict[str, Any] = field(default_factory=dict)
    freshness: dict[str, Any] = field(default_factory=dict)
    stages: dict[str, str] = field(default_factory=dict)
    effective: dict[str, Any] = field(default_factory=dict)
    effective_end: dict[str, Any] = field(default_factory=dict)
    census: dict[str, Any] = field(default_factory=dict)
    envelope: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    volatile: dict[str, Any] = field(default_factory=dict)
    trace: dict[str, Any] = field(default_factory=dict)
    stress: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Ready:
    """What preparing made, for the engine to run on."""

    own: Contract
    contract: Contract
    engine: Engine
    samples: pinned.Samples
    parsers: Mapping[str, Parser]
    inputs: observe.Inputs
    checkpoint: Path | None
    on_disk: pinned.Weights


class Replay:
    """One attempt in this process: :meth:`prepare`, then, with the driver's token, :meth:`run`.

    Args:
        task: what to run.
        entry: the entry facts of this process.
        ids: identity under the scheduler (node, worker, actor), kept as evidence.
    """

    def __init__(self, task: ReplayTask, entry: AtEntry, ids: dict[str, str] | None = None) -> None:
        self._task, self._entry, self._ids = task, entry, ids or {}
        self._writer = PartWriter(task.folder)
        self._seen = _Progress()
        self._ended: tuple[State, Cause] | None = None
        self._ready: _Ready | None = None
        self._started = time.monotonic()

    def prepare(self) -> None:
        """All that needs no device; an end that is found here is kept for the manifest."""
        with self._ends():
            self._ready = _prepare(self._task, self._entry, self._ids, self._seen)
        self._seen.volatile["prepare_s"] = self._mark()

    def run(self, token: str) -> Manifest:
        """Load, generate, and close the attempt with its manifest.

        Args:
            token: the driver's, given once the process before this one was seen gone.

        Raises:
            OSError: the manifest itself could not be written.
            AttemptFailed: what landed here could not be brought to the landing.
        """
        waited = self._mark() - self._seen.volatile["prepare_s"]
        self._seen.volatile["waited_s"] = waited
        self._started += waited
        tally: Tally | None = None
        if self._ready is not None:
            with self._ends():
                self._run(self._ready, token)
                tally = _tally(self._task, self._writer, self._seen.trace)
        state, cause = self._ended or ("COMPLETE", None)
        return _close(self._task, self._entry, self._seen, self._writer, tally, state, cause)

    def _mark(self) -> float:
        """Seconds since the beginning, without those that were spent waiting for the token."""
        return time.monotonic() - self._started

    @contextmanager
    def _ends(self) -> Iterator[None]:
        """Whatever ends the attempt, as its state and cause."""
        try:
            yield
        except AttemptEnded as ended:
            state: State = "VOID" if isinstance(ended, AttemptVoid) else "FAILED"
            self._ended = state, Cause(ended.code, ended.text, ended.details)
        except EvidenceError as error:
            self._ended = "VOID", Cause(error.code, error.text)
        except UsageError as error:
            self._ended = "FAILED", Cause("load-error", str(error))
        except MemoryError as error:
            self._ended = "FAILED", Cause("out-of-memory", f"MemoryError {error}".strip())
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self._ended = "FAILED", Cause("disk-full", f"{error.strerror}: {error.filename}")

    def _run(self, ready: _Ready, token: str) -> None:
        task, seen, contract, engine = self._task, self._seen, ready.contract, ready.engine
        stress = Stress.of(task, ready.own)
        watch = open_watch(task.device)
        seen.freshness |= freshness.before_loading(task, watch, token)
        freshness.require_free(seen.freshness)
        kernels = _kernels(task, contract)
        stress.before_load()
        seen.freshness["device_first_used_after_s"] = since_boot_s()
        _load(task, contract, engine, ready.on_disk.digests, seen)
        pinned.require_untouched(ready.checkpoint, ready.on_disk)
        seen.effective[KERNELS_AT_LOAD] = to_text(digest_json(kernels))
        seen.volatile["load_s"] = self._mark()
        stress.after_load()
        ran = stress.ran if task.varied else None
        samples, parsers, inputs = ready.samples, ready.parsers, ready.inputs
        seen.volatile["generation_begun_at_s"] = since_boot_s()
        with _tracing(task, engine, seen) as session, stress.while_samples_run():
            for records in observe.generate(
                task, contract, engine, inputs, samples, parsers, session, ran
            ):
                self._writer.add(records)
                watch.sample()
        self._writer.flush()
        seen.volatile["generate_s"] = self._mark()
        seen.volatile["generation_ended_at_s"] = since_boot_s()
        seen.volatile["peak_bytes"] = watch.peak_bytes()
        _settings_at_the_end(engine, seen)
        steps = engine.decode_steps()
        seen.stress = stress.at_the_end(seen.effective, seen.effective_end, steps)
        if session is None:
            seen.census["executed"] = engine.executed(inputs[task.arms[0]][0])
        _weights_at_the_end(engine, seen)
        _say_where_digested(contract, seen)
        seen.volatile["device"] = watch.close()
        require_healthy(seen.volatile["device"])
        _require_kernels(task, contract, kernels, seen)


def _prepare(task: ReplayTask, entry: AtEntry, ids: dict[str, str], seen: _Progress) -> _Ready:
    own = task.typed_contract()
    contract = varied_contract(own, task.varied)
    set_by_us = determinism.environment(contract) | environment(task.vary, task.varied)
    seen.freshness = freshness.at_entry(task, entry, ids)
    uuid = task.device.uuid if task.device else None
    facts = read_platform(task.attempt, entry.environment, set_by_us, uuid)
    seen.platform = {"format": PLATFORM_FORMAT, "facts": facts.facts}
    seen.platform_sha256 = to_text(facts.digest)
    seen.unit = dict(read_unit(task.node_label, task.device))
    freshness.require_fresh(task, seen.freshness)
    if task.stack is not None:
        require_frozen(task.stack, facts.facts)
    freshness.require_given(entry, set_by_us | device_environment(task.device))
    pinned.execution(task, own)
    samples, parsers = pinned.samples(task), pinned.parsers(task, contract)
    checkpoint = pinned.folder_of(task)
    importing = time.monotonic()
    if contract.model.engine != "synthetic":
        determinism.apply(contract)
    engine = make_engine(contract, checkpoint, Path(task.dataset_file))
    seen.volatile["import_s"] = time.monotonic() - importing
    inputs = observe.prepare(task, contract, engine, samples)
    seen.envelope = observe.envelope(task, contract, inputs)
    seen.warnings.extend(observe.input_warnings(inputs))
    on_disk = pinned.weights(task, checkpoint)
    seen.stages["checkpoint"] = task.digests["checkpoint"]
    return _Ready(own, contract, engine, samples, parsers, inputs, checkpoint, on_disk)


@contextmanager
def _tracing(task: ReplayTask, engine: Engine, seen: _Progress) -> Iterator[TraceSession | None]:
    """A trace lands however the replay ends: a failing replay is the one that tells most."""
    if task.trace is None:
        yield None
        return
    from fleet.replay.trace.session import open_session

    packed = list(seen.census["kernels"])
    session = open_session(task, task.trace, engine, packed)
    try:
        yield session
    finally:
        seen.trace = session.close()


def _kernels(task: ReplayTask, contract: Contract) -> dict[str, str]:
    return caches.kernels(contract, Path(task.scratch), task.attempt)


def _require_kernels(
    task: ReplayTask, contract: Contract, before: Mapping[str, str], seen: _Progress
) -> None:
    """A pinned kernel cache is read-only: the claim is "given these kernels"."""
    after = _kernels(task, contract)
    seen.effective_end[KERNELS_AT_END] = to_text(digest_json(after))
    if contract.determinism.kernel_cache == "pinned" and after != before:
        names = sorted({name for name, _ in before.items() ^ after.items()})
        raise AttemptVoid(
            "setting-not-in-force",
            f"the pinned kernel cache changed in the replay: {len(names)} files, first {names[0]}; "
            "warming covers a bounded number of shapes: if another one compiled these, certifying "
            'again finds them there; else write kernel_cache = "cold"',
            {"kernels": names[:50]},
        )


def _load(
    task: ReplayTask,
    contract: Contract,
    engine: Engine,
    on_disk: Mapping[str, bytes],
    seen: _Progress,
) -> None:
    """Seeded from the nonce, so that whatever is initialised at random differs between replays."""
    _seed(contract, int(task.attempt, 16))
    census = engine.load(on_disk, task.campaign)
    _seed(contract, contract.determinism.seed)
    seen.census = asdict(census)
    _require_census(census)
    seen.stages["post_init_weights"] = to_text(engine.weights())
    _say_where_digested(contract, seen)
    settings = engine.settings()
    seen.effective = dict(settings.effective)
    seen.warnings.extend(engine.warnings())
    _require_place(task, seen)
    observe.require_in_force(settings, "after load")


def _say_where_digested(contract: Contract, seen: _Progress) -> None:
    """Weights, logits and calls. Never compared: the digests are the same on either side."""
    if contract.model.engine == "synthetic":
        return
    from fleet.replay.tensor_digests import where

    seen.volatile["digests"] = where()


def _require_place(task: ReplayTask, seen: _Progress) -> None:
    """The model runs on the kind of device that the slot has; only torch's engines have one."""
    got, wanted = seen.effective.get("model.device"), "cuda" if task.device else "cpu"
    if got not in (None, wanted):
        raise AttemptVoid("placement", f"the slot is for {wanted}, the model runs on {got}")


def _seed(contract: Contract, seed: int) -> None:
    """Every generator the engine could draw from; the synthetic one has no torch."""
    if contract.model.engine == "synthetic":
        random.seed(seed)
    else:
        determinism.seed_all(seed)


def _require_census(census: Census) -> None:
    """Every loaded tensor is the checkpoint's or declared; nothing trains, nothing is elsewhere."""
    checks = (
        ("weights-not-of-checkpoint", "not in the checkpoint", census.unmapped),
        ("weights-not-of-checkpoint", "differs from the checkpoint", census.altered),
        ("weights-not-of-checkpoint", "in the checkpoint and not loaded", census.missing),
        ("placement", "not on the slot's device", census.off_device),
        ("setting-not-in-force", "in training mode", census.training),
        ("setting-not-in-force", "requires a gradient", census.requires_grad),
    )
    for code, words, names in checks:
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise AttemptVoid(code, f"{names[0]}{more}: {words}", {"names": list(names)[:50]})


def _settings_at_the_end(engine: Engine, seen: _Progress) -> None:
    settings = engine.settings()
    seen.effective_end = dict(settings.effective)
    observe.require_in_force(settings, "at the end")


def _weights_at_the_end(engine: Engine, seen: _Progress) -> None:
    seen.stages["end_weights"] = to_text(engine.weights())
    if seen.stages["end_weights"] != seen.stages["post_init_weights"]:
        raise AttemptVoid("weights-changed", "parameters or buffers changed during the replay")


def _close(
    task: ReplayTask,
    entry: AtEntry,
    seen: _Progress,
    writer: PartWriter,
    tally: Tally | None,
    state: State,
    cause: Cause | None,
) -> Manifest:
    """Write the manifest, last. Rows of an attempt that ended early stay evidence."""
    if state != "COMPLETE":
        with suppress(OSError, EvidenceError):
            writer.flush()
    manifest = Manifest(
        attempt=task.attempt,
        campaign=task.campaign,
        slot=task.slot,
        purpose=task.purpose,
        contract=task.contract_name,
        execution_id=task.execution_id,
        state=state,
        cause=cause,
        num_samples=len(task.sample_ids),
        arms=task.arms,
        parts=tuple(writer.parts),
        roots=tally.roots if tally else {},
        arm_roots=tally.arm_roots if tally else {},
        stages=seen.stages,
        platform=seen.platform,
        platform_sha256=seen.platform_sha256,
        unit=seen.unit,
        process=entry.process,
        freshness=seen.freshness,
        effective=seen.effective,
        effective_end=seen.effective_end,
        census=seen.census,
        envelope=seen.envelope,
        logs=_logs(task.folder),
        warnings=tuple(seen.warnings),
        volatile=seen.volatile
        | {"fleet": fleet.__version__, "host": python_platform.node(), "closed_at_s": time.time()},
        traced=task.trace is not None,
        trace=seen.trace,
        vary=task.vary,
        varied=task.varied,
        stress=seen.stress,
    )
    write_once(task.folder / "manifest.json", manifest.to_bytes())
    ship(task)
    return manifest


def _tally(task: ReplayTask, writer: PartWriter, trace: Mapping[str, Any]) -> Tally:
    paths = [task.folder / part.name for part in writer.parts]
    check_columns(paths)
    modules = None
    if task.traces_everything:
        modules = read_modules(task.folder, trace["files"], trace["hooks"]).digests
    in_order = not {"order", "batch"} & task.varied.keys()
    return tally_rows(paths, task.arms, in_order=in_order, modules=modules)


def _logs(folder: Path) -> dict[str, str]:
    files = (folder / "stdout.txt", folder / "stderr.txt")
    return {path.stem: file_sha256(path) for path in files if path.exists()}
