"""Whether a stress was there, from counters, from the plan and from fresh memory."""

from __future__ import annotations

import copy
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from fleet.contract.vary import VARIES, WORDS, Own, draw
from fleet.errors import AttemptVoid, EvidenceError
from fleet.evidence.ledger import Entry
from fleet.evidence.manifest import Manifest
from fleet.evidence.stress import Ran, check_plan, shortfall, to_show
from fleet.judge.varied import DEPENDS
from fleet.replay.stress import Stress
from tests.campaigns import FakeLauncher, certified, places_in, write_configs

OWN = Own(batch_size=2, num_threads=1, num_samples=5, cores=2)
ORDER = {"displaced": 3, "samples": 5}
BATCH = {"sizes": [1, 3], "other_mates": 4, "samples": 5}
THREADS = {"at_load": 2, "at_end": 2}
CACHE = {"in_force": False, "cached": 0, "uncached": 7, "unclear": 0}
EMPTY = {"in_force": "cold", "files": 0, "compiled": 0}
BUILT = {"in_force": "cold", "files": 3, "compiled": 1}
THERE = {"in_force": "pinned", "files": 7, "compiled": 2}
KERNELS = {"at_load": EMPTY, "at_end": BUILT}
LOAD = {"running": 3, "cpu_s": 0.6, "wall_s": 1.0}
STREAM = {"device_launches": 700, "device_busy_ms": 990.0, "device_wall_s": 1.0}
MEMORY = {"byte": 9, "blocks": 12, "filled": 12}
VARIED: dict[str, Any] = {
    "order": "ab", "batch": {"size": 3, "seed": "cd"}, "threads": 2, "memory": 9,
    "load": 3, "cache": False, "kernel_cache": "cold",
}  # fmt: skip
STRESS: dict[str, Any] = {
    "order": ORDER, "batch": BATCH, "threads": THREADS, "memory": MEMORY, "load": LOAD,
    "cache": CACHE, "kernel_cache": KERNELS,
}  # fmt: skip


def test_whatever_can_be_varied_has_counters_words_and_a_name_for_what_depends_on_it() -> None:
    assert set(VARIED) == set(STRESS) == set(VARIES)
    assert set(WORDS) == set(DEPENDS) == set(VARIES)
    assert list(VARIES) == sorted(VARIES)


def test_a_reference_has_nothing_to_show_and_full_counters_are_enough() -> None:
    assert shortfall({}, {}, on_device=True) is None
    assert shortfall(VARIED, STRESS, on_device=False) is None


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("order", {"displaced": 0}, "no sample ran at another place"),
        ("batch", {"sizes": [1, 2]}, "no batch of 3 rows ran, sizes seen [1, 2]"),
        ("batch", {"other_mates": 0}, "no sample had other batch-mates"),
        ("threads", {"at_end": 1}, "2 planned, read back 2 and 1"),
        ("threads", {"at_load": None}, "read back None and 2"),
        ("memory", {"filled": 11}, "11 of 12 fresh blocks hold the pattern"),
        ("memory", {"blocks": 0, "filled": 0}, "0 of 0 fresh blocks"),
        ("memory", {"byte": 8}, "filled with byte 8, planned 9"),
        ("cache", {"in_force": True}, "use_cache False planned, read back True"),
        ("cache", {"in_force": None}, "use_cache False planned, read back None"),
        (
            "cache",
            {"cached": 1},
            "uncached decode steps planned, found {'uncached': 7, 'cached': 1",
        ),
        ("cache", {"unclear": 1}, "uncached decode steps planned, found"),
        ("cache", {"uncached": 0}, "uncached decode steps planned, found {'uncached': 0"),
        ("cache", {"cached": None}, "no counts"),
        ("kernel_cache", {"at_end": THERE}, "cold planned, read back cold and pinned"),
        ("kernel_cache", {"at_load": BUILT}, "3 files in the private cache before anything was"),
        (
            "kernel_cache",
            {"at_end": BUILT | {"compiled": 0}},
            "nothing was compiled in the private",
        ),
        ("kernel_cache", {"at_end": EMPTY}, "all kernels of this contract came compiled"),
        ("kernel_cache", {"at_end": BUILT | {"compiled": True}}, "no counts"),
        ("kernel_cache", {"at_load": None}, "no counts, but None and"),
        ("load", {"running": 2}, "2 neighbours ran to the end, planned 3"),
        ("load", {"cpu_s": 0.05}, "burned 0.05 s of CPU while samples ran for 1 s"),
        ("load", {"wall_s": 0.0}, "burned 0.6 s of CPU while samples ran for 0 s"),
        ("load", {"cpu_s": -0.1, "wall_s": -9.0}, "burned -0.1 s of CPU"),
        ("load", {"cpu_s": float("nan")}, "burned nan s of CPU"),
        ("load", {"cpu_s": None}, "no times, but None and 1.0"),
    ],
)
def test_a_short_counter_is_named(name: str, changes: dict[str, Any], words: str) -> None:
    short = STRESS | {name: STRESS[name] | changes}
    assert words in (shortfall(VARIED, short, on_device=False) or "")


@pytest.mark.parametrize(
    ("load", "end", "words"),
    [
        (THERE, THERE, None),
        (EMPTY, BUILT, "pinned planned, read back cold and cold"),
        (
            THERE | {"compiled": 0},
            THERE | {"compiled": 0},
            "no compiled kernel in the pinned cache",
        ),
        (THERE, THERE | {"files": 8}, "the pinned cache changed"),
        (THERE, THERE | {"compiled": 3}, "the pinned cache changed"),
    ],
)
def test_pinned_kernels_are_there_and_stay_as_they_are(
    load: dict[str, Any], end: dict[str, Any], words: str | None
) -> None:
    counters = {"kernel_cache": {"at_load": load, "at_end": end}}
    found = shortfall({"kernel_cache": "pinned"}, counters, on_device=False)
    assert found is None if words is None else words in (found or "")


@pytest.mark.parametrize("name", sorted(VARIED))
def test_a_missing_counter_is_named(name: str) -> None:
    there = {key: value for key, value in STRESS.items() if key != name}
    assert shortfall(VARIED, there, on_device=False) == f"{name}: no counter"


def test_a_reference_shows_its_own_cache_and_an_exact_repeat_nothing() -> None:
    assert to_show(("order",), {}, OWN) == to_show((), {}, OWN) == {}
    assert to_show(("cache", "order"), {}, OWN) == {"cache": True}
    assert to_show(("cache",), {"cache": False}, OWN) == {"cache": False}
    assert to_show(("kernel_cache", "order"), {}, OWN) == {"kernel_cache": "cold"}
    other = {"kernel_cache": "pinned"}
    assert to_show(("kernel_cache",), other, OWN) == other
    task: Any = type("Task", (), {"vary": ("cache",), "varied": {}, "device": None})()
    rule = {"decoding.generation_config": {"use_cache": True}}
    steps = {"cached": 7, "uncached": 0, "unclear": 0}
    shown = Stress(task, Ran(OWN)).at_the_end({}, rule, steps)
    assert shown == {"cache": {"in_force": True} | steps}
    with pytest.raises(AttemptVoid, match="cached decode steps planned, found"):
        Stress(task, Ran(OWN)).at_the_end({}, rule, steps | {"cached": 0, "uncached": 7})
    with pytest.raises(AttemptVoid, match="no counts"):
        Stress(task, Ran(OWN)).at_the_end({}, rule)


def test_neighbours_on_the_host_are_no_load_of_a_device_and_its_stream_is_none_of_the_host() -> (
    None
):
    without = shortfall({"load": 3}, STRESS, on_device=True)
    assert without == "load: no counts of the device, but None, None and None"
    assert shortfall({"load": 3}, {"load": LOAD | STREAM}, on_device=True) is None
    assert "no times" in (shortfall({"load": 3}, {"load": STREAM | {"running": 3}}, True) or "")
    asleep = LOAD | STREAM | {"cpu_s": 0.0}
    assert "burned 0 s of CPU" in (shortfall({"load": 3}, {"load": asleep}, on_device=True) or "")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"device_launches": 0, "device_busy_ms": 0.0}, "no launch of the neighbour stream"),
        ({"device_launches": 0}, "no launch of the neighbour stream"),
        ({"device_launches": True}, "no counts of the device, but True, 990.0 and 1.0"),
        ({"device_launches": None}, "no counts of the device, but None"),
        ({"device_busy_ms": None}, "no counts of the device, but 700, None"),
        ({"device_wall_s": None}, "no counts of the device, but 700, 990.0 and None"),
        ({"device_busy_ms": 499.0}, "kept the device busy for 0.499 s while samples ran for 1 s"),
        ({"device_wall_s": 2.0}, "kept the device busy for 0.99 s while samples ran for 2 s"),
        ({"device_wall_s": 0.0}, "while samples ran for 0 s"),
        ({"device_wall_s": -1.0, "device_busy_ms": -1.0}, "while samples ran for -1 s"),
        ({"device_busy_ms": float("nan")}, "kept the device busy for nan s"),
    ],
)
def test_a_stream_that_left_the_device_idle_is_short(changes: dict[str, Any], words: str) -> None:
    counters = {"load": LOAD | STREAM | changes}
    assert words in (shortfall({"load": 3}, counters, on_device=True) or "")
    assert shortfall({"load": 3}, counters, on_device=False) is None


def test_on_a_device_half_of_its_fresh_blocks_must_hold_the_pattern() -> None:
    varied = {"memory": 9}
    for blocks, filled, short in ((5, 5, False), (4, 2, False), (5, 2, True), (0, 0, True)):
        counters = {"memory": MEMORY | {"device_blocks": blocks, "device_filled": filled}}
        assert (shortfall(varied, counters, on_device=True) is not None) is short
    assert shortfall(varied, {"memory": MEMORY}, on_device=True) is not None


def test_what_ran_is_counted_against_the_contracts_own_plan() -> None:
    ran = Ran(OWN)
    for arm in ("a", "b"):
        for positions in ((0, 1), (2, 3), (4,)):
            ran.add(arm, positions)
    assert (ran.displaced, ran.other_mates, ran.samples) == (0, 0, 10)
    ran = Ran(OWN)
    for positions in ((2, 3), (0, 1), (4,)):
        ran.add("a", positions)
    assert ran.counters({"order": "x"}) == {"order": {"displaced": 4, "samples": 5}}
    ran = Ran(OWN)
    for positions in ((0, 2, 3), (1, 4)):
        ran.add("a", positions)
    mates = {"sizes": [2, 3], "other_mates": 5, "samples": 5}
    assert ran.counters({"batch": {"size": 3, "seed": ""}}) == {"batch": mates}


PROBE = """
from fleet.replay.memory import probe_host
found = probe_host(90)
print(found["byte"], found["blocks"], found["filled"])
"""


@pytest.mark.parametrize(("given", "filled"), [("90", 6), ("91", 0), ("0", 0)])
def test_fresh_memory_holds_the_pattern_that_the_process_was_given(given: str, filled: int) -> None:
    environment = {"MALLOC_PERTURB_": given, "PYTHONPATH": ":".join(sys.path)}
    run = subprocess.run(
        [sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == ["90", "6", str(filled)]


def planned(root: Any) -> tuple[Entry, Manifest]:
    """The plan and the manifest of a varied replay."""
    from fleet.evidence.landing import Landing
    from fleet.evidence.ledger import campaigns, read_chain

    write_configs(root / "configs")
    launcher = FakeLauncher()
    certified(root, "toy", launcher=launcher, claims=(("batch", "order"),))
    landing = Landing.open(places_in(root).landing)
    attempt = launcher.tasks[-1].attempt
    chain = read_chain(landing, campaigns(landing)[0])
    (entry,) = (e for e in chain if e.kind == "planned" and e.attempt == attempt)
    return entry, Manifest.from_bytes(landing.manifest(attempt).read_bytes())


def test_a_plan_is_drawn_again_and_must_be_the_ledgers(tmp_path: Any) -> None:
    entry, manifest = planned(tmp_path)
    check_plan(entry, manifest)
    other = draw(("batch", "order"), "0" * 16, 1, Own(**entry.body["own"]))
    forged = {
        "values of another attempt": ({"varied": other}, {"varied": other}),
        "a reference with values": ({"replay": 0}, {}),
        "a varied replay without": ({"varied": {}}, {"varied": {}}),
        "own values of another plan": ({"own": entry.body["own"] | {"batch_size": 2}}, {}),
        "an unsorted claim": ({"vary": ["order", "batch"]}, {"vary": ("order", "batch")}),
        "another claim in the manifest": ({}, {"vary": ("order",)}),
        "an exact repeat that varies": ({"vary": []}, {"vary": ()}),
    }
    for story, (in_ledger, in_manifest) in forged.items():
        body = copy.deepcopy(dict(entry.body)) | in_ledger
        with pytest.raises((EvidenceError, ValueError)):
            check_plan(replace(entry, body=body), replace(manifest, **in_manifest))
            pytest.fail(story)


def test_a_manifest_of_an_exact_repeat_has_no_key_of_a_varied_one(tmp_path: Any) -> None:
    _, manifest = planned(tmp_path)
    assert b'"varied":' in manifest.to_bytes()
    exact = replace(manifest, vary=(), varied={}, stress={})
    assert b'"varied"' not in exact.to_bytes()
    assert b'"stress"' not in exact.to_bytes()
    assert Manifest.from_bytes(exact.to_bytes()) == exact
    assert Manifest.from_bytes(manifest.to_bytes()) == manifest
    empty = exact.to_bytes()[:-1] + b',"varied":{}}'
    with pytest.raises(EvidenceError):
        Manifest.from_bytes(empty)


def test_a_replay_whose_threads_went_back_is_void() -> None:
    task: Any = type("Task", (), {"vary": ("threads",), "varied": {"threads": 2}, "device": None})()
    stress = Stress(task, Ran(OWN))
    two, one = {"torch.num_threads": 2}, {"torch.num_threads": 1}
    assert stress.at_the_end(two, two) == {"threads": THREADS}
    with pytest.raises(AttemptVoid) as void:
        stress.at_the_end(two, one)
    assert void.value.code == "stress-not-applied"


@pytest.mark.torch
def test_a_device_whose_cache_is_refilled_gives_the_pattern_and_another_does_not() -> None:
    import torch

    from fleet.replay.gpu.prefill import SIZES, prefill

    memory: Any = torch.utils.deterministic
    before = memory.fill_uninitialized_memory
    cache: dict[int, list[torch.Tensor]] = {}

    def cached(size: int, **kind: Any) -> torch.Tensor:
        held = cache.setdefault(size, [])
        if not held:
            held.append(torch.zeros(size, **kind))
        return held[0]

    def fresh(size: int, **kind: Any) -> torch.Tensor:
        return torch.zeros(size, **kind)

    cpu, plenty = torch.device("cpu"), 2**34
    all_of_them = {"device_blocks": len(SIZES), "device_filled": len(SIZES)}
    assert prefill(90, cpu, plenty, cached) == all_of_them
    assert prefill(90, cpu, plenty, fresh)["device_filled"] == 0
    assert prefill(90, cpu, 0, cached)["device_blocks"] == len(SIZES)
    assert memory.fill_uninitialized_memory is before
