"""Did a replay of a varied set really take what was planned for it: derived from what landed.

The plan is drawn again from the attempt id; the rows must have landed in exactly the order and the
batches of that plan; the counters of the manifest must be those of these rows and must say that
something was varied. Knows no other attempt and no verdict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleet.contract.canonical import digest_json, to_text
from fleet.contract.vary import (
    KERNELS_AT_END,
    KERNELS_AT_LOAD,
    RULE,
    USE_CACHE,
    Batch,
    Own,
    Varied,
    batch_plan,
    claim,
    draw,
    own_mates,
)
from fleet.errors import EvidenceError
from fleet.evidence.ledger import Entry
from fleet.evidence.manifest import Manifest
from fleet.evidence.rows import batch_places, decode_steps

THREADS = "torch.num_threads"

NEIGHBOURS_SHARE = 0.05
"""Of one core, for all neighbours together while samples ran. A fair scheduler gives n busy ones
beside t threads at least n / (n + t) of a core, half of it for one beside one: a tenth of that
leaves room for whatever else the host does, and none for neighbours that slept or were stopped."""

STREAM_SHARE = 0.5
"""Of the time in which samples ran, that the device had a launch of the neighbour stream at work.
Its queue is made never to run dry, so that the share is near one; with less than half of it, most
of the replay's kernels may have had the device to themselves. The other half leaves room for a host
that is so busy that the thread comes late."""


@dataclass
class Ran:
    """Counts batches as they run: which samples ran elsewhere, and beside others, than planned by
    the contract."""

    own: Own
    displaced: int = 0
    samples: int = 0
    other_mates: int = 0
    sizes: set[int] = field(default_factory=set)
    _arm: str = ""
    _place: int = 0

    def add(self, arm: str, positions: Sequence[int]) -> None:
        """The next batch of an arm; arms run one after the other."""
        if arm != self._arm:
            self._arm, self._place = arm, 0
        together = tuple(sorted(positions))
        self.sizes.add(len(together))
        for position in positions:
            self.displaced += position != self._place
            self.other_mates += own_mates(position, self.own) != together
            self._place += 1
        self.samples += len(together)

    def counters(self, varied: Varied) -> dict[str, Any]:
        """As the manifest has them: of what this replay varied, nothing else."""
        found: dict[str, Any] = {}
        if "order" in varied:
            found["order"] = {"displaced": self.displaced, "samples": self.samples}
        if "batch" in varied:
            mates = {"other_mates": self.other_mates, "samples": self.samples}
            found["batch"] = {"sizes": sorted(self.sizes)} | mates
        return found


def to_show(vary: Sequence[str], varied: Varied, own: Own) -> dict[str, Any]:
    """Name -> value that the counters must show.

    A reference has nothing to show but its caches: where an engine never has a key-value cache, or
    always, or compiles nothing, two replays without a difference between them would agree.
    """
    shown = {"cache": own.use_cache, "kernel_cache": own.kernel_cache}
    return {name: value for name, value in shown.items() if name in vary} | dict(varied)


def shortfall(varied: Varied, stress: Mapping[str, Any], on_device: bool) -> str | None:
    """Why the counters do not show that the stress was there, or None.

    Args:
        varied: what was planned, as :func:`to_show` says it.
        stress: counters by name.
        on_device: the replay had a GPU, whose memory is another.
    """
    for name, value in varied.items():
        counters = stress.get(name)
        if not isinstance(counters, Mapping):
            return f"{name}: no counter"
        why = _SHORT[name](value, counters, on_device)
        if why:
            return f"{name}: {why}"
    return None


def _order_short(_: Any, counters: Mapping[str, Any], __: bool) -> str | None:
    return None if counters["displaced"] > 0 else "no sample ran at another place"


def _batch_short(value: Any, counters: Mapping[str, Any], _: bool) -> str | None:
    if value["size"] not in counters["sizes"]:
        return f"no batch of {value['size']} rows ran, sizes seen {list(counters['sizes'])}"
    return None if counters["other_mates"] > 0 else "no sample had other batch-mates"


def _threads_short(value: Any, counters: Mapping[str, Any], _: bool) -> str | None:
    seen = counters["at_load"], counters["at_end"]
    return None if seen == (value, value) else f"{value} planned, read back {seen[0]} and {seen[1]}"


def _cache_short(value: Any, counters: Mapping[str, Any], _: bool) -> str | None:
    """Every decode step as planned, and the rule that was read back too."""
    if counters.get("in_force") is not value:
        return f"use_cache {value} planned, read back {counters.get('in_force')}"
    fit, other = ("cached", "uncached") if value else ("uncached", "cached")
    found: dict[str, Any] = {kind: counters.get(kind) for kind in (fit, other, "unclear")}
    if any(type(number) is not int for number in found.values()):
        return f"no counts, but {found}"
    if found[other] or found["unclear"] or found[fit] < 1:
        return f"{fit} decode steps planned, found {found}"
    return None


def _kernels_short(value: Any, counters: Mapping[str, Any], _: bool) -> str | None:
    """Compiled in a folder that was empty, or all there already and left as it was."""
    load, end = counters.get("at_load"), counters.get("at_end")
    if not isinstance(load, Mapping) or not isinstance(end, Mapping):
        return f"no counts, but {load!r} and {end!r}"
    if (seen := (load.get("in_force"), end.get("in_force"))) != (value, value):
        return f"{value} planned, read back {seen[0]} and {seen[1]}"
    if any(type(each.get(n)) is not int for each in (load, end) for n in ("files", "compiled")):
        return f"no counts, but {dict(load)} and {dict(end)}"
    if value == "pinned":
        if load["compiled"] < 1:
            return f"no compiled kernel in the pinned cache: {_NOTHING}"
        return None if load == end else f"the pinned cache changed: {dict(load)}, then {dict(end)}"
    if load["files"]:
        return f"{load['files']} files in the private cache before anything was loaded"
    return None if end["compiled"] > 0 else f"nothing was compiled in the private cache: {_NOTHING}"


_NOTHING = "all kernels of this contract came compiled, so there are no others to vary them with"


def _load_short(value: Any, counters: Mapping[str, Any], on_device: bool) -> str | None:
    """All of them at work until the last sample had run, and given the time to be felt. They do not
    load a device: there a stream has to show the same."""
    running, cpu_s, wall_s = (counters.get(key) for key in ("running", "cpu_s", "wall_s"))
    if running != value:
        return f"{running} neighbours ran to the end, planned {value}"
    if type(cpu_s) is not float or type(wall_s) is not float:
        return f"no times, but {cpu_s!r} and {wall_s!r}"
    if not 0 < NEIGHBOURS_SHARE * wall_s < cpu_s:
        return f"neighbours burned {cpu_s:g} s of CPU while samples ran for {wall_s:g} s"
    return _stream_short(counters) if on_device else None


def _stream_short(counters: Mapping[str, Any]) -> str | None:
    names = "device_launches", "device_busy_ms", "device_wall_s"
    launches, busy_ms, wall_s = (counters.get(name) for name in names)
    if type(launches) is not int or type(busy_ms) is not float or type(wall_s) is not float:
        return f"no counts of the device, but {launches!r}, {busy_ms!r} and {wall_s!r}"
    if launches < 1:
        return "no launch of the neighbour stream was completed on the device"
    if not 0 < STREAM_SHARE * wall_s <= busy_ms / 1000:
        busy = f"kept the device busy for {busy_ms / 1000:g} s"
        return f"the neighbour stream {busy} while samples ran for {wall_s:g} s"
    return None


def _memory_short(value: Any, counters: Mapping[str, Any], on_device: bool) -> str | None:
    """On the host every probed block must hold the pattern. On a device a block may be served from
    what loading left behind: half of them must."""
    if counters["byte"] != value:
        return f"filled with byte {counters['byte']}, planned {value}"
    if not 0 < counters["blocks"] == counters["filled"]:
        return f"{counters['filled']} of {counters['blocks']} fresh blocks hold the pattern"
    blocks, filled = counters.get("device_blocks", 0), counters.get("device_filled", 0)
    if on_device and not 0 < blocks <= 2 * filled:
        return f"{filled} of {blocks} fresh blocks of the device hold the pattern"
    return None


_SHORT = {
    "batch": _batch_short,
    "cache": _cache_short,
    "kernel_cache": _kernels_short,
    "load": _load_short,
    "memory": _memory_short,
    "order": _order_short,
    "threads": _threads_short,
}


def check_plan(planned: Entry, manifest: Manifest) -> None:
    """What the process says it varied is what the ledger planned, and the ledger drew it.

    Raises:
        EvidenceError: evidence-altered.
    """
    vary, varied = planned.body.get("vary", []), planned.body.get("varied", {})
    if (list(manifest.vary), manifest.varied) != (vary, varied):
        theirs = f"{list(manifest.vary)} {manifest.varied}"
        raise EvidenceError("evidence-altered", f"varied {theirs}, planned {vary} {varied}")
    if list(claim(vary)) != vary:
        raise EvidenceError("evidence-altered", f"the ledger's vary {vary} is not sorted")
    if not vary:
        if varied or manifest.stress:
            raise EvidenceError("evidence-altered", f"an exact repeat that took {varied}")
        return
    own = own_values(planned)
    drawn = draw(vary, planned.attempt, planned.body["replay"], own)
    if drawn != varied:
        raise EvidenceError("evidence-altered", f"planned {varied}, the attempt id draws {drawn}")


def own_values(planned: Entry) -> Own:
    """The contract's own values as the ledger has them.

    Raises:
        EvidenceError: they are not those of the rest of the entry.
    """
    own = Own(**planned.body["own"])
    if (own.batch_size, own.num_samples) != (
        planned.body["batch_size"],
        len(planned.body["sample_ids"]),
    ):
        raise EvidenceError("evidence-altered", f"the ledger's own values {own} are another plan's")
    return own


def check_stress(planned: Entry, manifest: Manifest, parts: Sequence[Path]) -> None:
    """The varied values were in force: in the rows, in the settings, by the counters.

    Raises:
        EvidenceError: stress-not-applied, or evidence-altered for counters of other rows.
    """
    own, varied = own_values(planned), manifest.varied
    ran = _as_planned(planned, own, varied, parts)
    threads = {
        "at_load": manifest.effective.get(THREADS),
        "at_end": manifest.effective_end.get(THREADS),
    }
    if "threads" in manifest.vary and set(threads.values()) != {
        varied.get("threads", own.num_threads)
    }:
        raise EvidenceError("stress-not-applied", f"threads read back: {threads}")
    derived = ran.counters(varied) | ({"threads": threads} if "threads" in varied else {})
    told = {name: manifest.stress.get(name) for name in derived}
    wanted = to_show(manifest.vary, varied, own)
    if told != derived or manifest.stress.keys() != wanted.keys():
        raise EvidenceError("evidence-altered", f"counters {manifest.stress}, rows say {derived}")
    why = shortfall(wanted, manifest.stress, bool(planned.body.get("device")))
    if why:
        raise EvidenceError("stress-not-applied", why)
    if "cache" in wanted:
        _check_cache(manifest, parts)
    if "kernel_cache" in wanted:
        _check_kernels(manifest, cold=wanted["kernel_cache"] == "cold")


def cache_in_force(effective: Mapping[str, Any]) -> Any:
    """``use_cache`` of the rule that was read back; None where none was."""
    rule = effective.get(RULE)
    return rule.get(USE_CACHE) if isinstance(rule, Mapping) else None


def _check_cache(manifest: Manifest, parts: Sequence[Path]) -> None:
    """The counters are those of these rows and of these settings."""
    counters, steps = manifest.stress["cache"], decode_steps(parts)
    counted = counters["cached"] + counters["uncached"]
    if counted != steps:
        raise EvidenceError(
            "evidence-altered", f"{counted} decode steps counted, rows have {steps}"
        )
    in_force = cache_in_force(manifest.effective_end)
    if counters["in_force"] is not in_force:
        raise EvidenceError("evidence-altered", f"use_cache {in_force} read back, not {counters}")


def _check_kernels(manifest: Manifest, cold: bool) -> None:
    """The digests of the folder say what the counters say."""
    load, end = manifest.effective.get(KERNELS_AT_LOAD), manifest.effective_end.get(KERNELS_AT_END)
    empty = to_text(digest_json({}))
    told = load == empty != end if cold else load == end != empty
    if not told or None in (load, end):
        counters = manifest.stress["kernel_cache"]
        raise EvidenceError("evidence-altered", f"kernels {load} and {end}, counted {counters}")


def _as_planned(planned: Entry, own: Own, varied: Varied, parts: Sequence[Path]) -> Ran:
    """Every row landed where the plan has it."""
    ids, arms = planned.body["sample_ids"], planned.body["arms"]
    ran, landed = Ran(own), batch_places(parts)
    for arm, batch in _batches(ids, arms, own, varied):
        for position in batch.positions:
            wanted = arm, position, ids[position], batch.ordinal
            found = next(landed, None)
            if found != wanted:
                raise EvidenceError("stress-not-applied", f"planned row {wanted}, landed {found}")
        ran.add(arm, batch.positions)
    return ran


def _batches(
    ids: Sequence[str], arms: Sequence[str], own: Own, varied: Varied
) -> Iterator[tuple[str, Batch]]:
    for arm in arms:
        for batch in batch_plan(ids, arm, own.batch_size, varied):
            yield arm, batch
