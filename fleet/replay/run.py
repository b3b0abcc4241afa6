"""One replay from entry to manifest, the same for every engine (the order is the protocol).

freshness -> pinned content -> inputs -> seeded load -> read-back -> generation -> read-back ->
manifest. What contradicts the contract ends the attempt as VOID with its cause; memory and disk
that ran out end it as FAILED; anything else rises to the driver, which saw the process die or
raise. Knows no other replay, no store and no verdict.
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
from fleet.contract.canonical import to_text
from fleet.contract.model import Contract
from fleet.contract.vary import environment, varied_contract
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


def run_replay(task: ReplayTask, entry: AtEntry, ids: dict[str, str] | None = None) -> Manifest:
    """Run one attempt and close it with its manifest.

    Args:
        task: what to run.
        entry: the entry facts of this process.
        ids: identity under the scheduler (node, worker, actor), kept as evidence.

    Raises:
        OSError: the manifest itself could not be written.
        AttemptFailed: what landed here could not be brought to the landing.
    """
    writer = PartWriter(task.folder)
    seen = _Progress()
    state: State = "COMPLETE"
    cause: Cause | None = None
    tally: Tally | None = None
    try:
        _replay(task, entry, ids or {}, seen, writer)
        tally = _tally(task, writer, seen.trace)
    except AttemptEnded as ended:
        state = "VOID" if isinstance(ended, AttemptVoid) else "FAILED"
        cause = Cause(ended.code, ended.text, ended.details)
    except EvidenceError as error:
        state, cause = "VOID", Cause(error.code, error.text)
    except UsageError as error:
        state, cause = "FAILED", Cause("load-error", str(error))
    except MemoryError as error:
        state, cause = "FAILED", Cause("out-of-memory", f"MemoryError {error}".strip())
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        state, cause = "FAILED", Cause("disk-full", f"{error.strerror}: {error.filename}")
    return _close(task, entry, seen, writer, tally, state, cause)


def _replay(
    task: ReplayTask, entry: AtEntry, ids: dict[str, str], seen: _Progress, writer: PartWriter
) -> None:
    started = time.monotonic()
    own = task.typed_contract()
    contract, stress = varied_contract(own, task.varied), Stress.of(task, own)
    set_by_us = determinism.environment(contract) | environment(task.vary, task.varied)
    watch = open_watch(task.device)
    seen.freshness = freshness.observe(task, entry, ids, watch)
    uuid = task.device.uuid if task.device else None
    facts = read_platform(task.attempt, entry.environment, set_by_us, uuid)
    seen.platform = {"format": PLATFORM_FORMAT, "facts": facts.facts}
    seen.platform_sha256 = to_text(facts.digest)
    seen.unit = dict(read_unit(task.node_label, task.device))
    freshness.require_fresh(task, entry, seen.freshness)
    freshness.require_given(entry, set_by_us | device_environment(task.device))
    pinned.execution(task, own)
    samples, parsers = pinned.samples(task), pinned.parsers(task, contract)
    checkpoint = pinned.folder_of(task)
    importing = time.monotonic()
    if contract.model.engine != "synthetic":
        determinism.apply(contract)
    engine = make_engine(contract, checkpoint)
    seen.volatile["import_s"] = time.monotonic() - importing
    inputs = observe.prepare(task, contract, engine, samples)
    seen.envelope = observe.envelope(task, contract, inputs)
    seen.warnings.extend(observe.input_warnings(inputs))
    on_disk = pinned.weights(task, checkpoint)
    seen.stages["checkpoint"] = task.digests["checkpoint"]
    seen.volatile["prepare_s"] = time.monotonic() - started
    kernels = _kernels(task, contract)
    seen.freshness["device_first_used_after_s"] = since_boot_s()
    _load(task, contract, engine, on_disk.digests, seen)
    pinned.require_untouched(checkpoint, on_disk)
    seen.effective["kernel_cache_at_load"] = kernels
    seen.volatile["load_s"] = time.monotonic() - started
    stress.after_load()
    ran = stress.ran if task.varied else None
    with _tracing(task, engine, seen) as session, stress.while_samples_run():
        for records in observe.generate(
            task, contract, engine, inputs, samples, parsers, session, ran
        ):
            writer.add(records)
            watch.sample()
    writer.flush()
    seen.volatile["generate_s"] = time.monotonic() - started
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


def _kernels(task: ReplayTask, contract: Contract) -> str:
    return to_text(caches.kernels_digest(contract, Path(task.scratch), task.attempt))


def _require_kernels(task: ReplayTask, contract: Contract, before: str, seen: _Progress) -> None:
    """A pinned kernel cache is read-only: the claim is "given these kernels"."""
    after = _kernels(task, contract)
    seen.effective_end["kernel_cache_at_end"] = after
    if contract.determinism.kernel_cache == "pinned" and after != before:
        raise AttemptVoid("setting-not-in-force", "the pinned kernel cache changed in the replay")


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
