"""Process identity, freshness and private caches: what makes one replay one fresh process."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.contract.canonical import digest_json
from fleet.contract.load import load_contract
from fleet.contract.model import Contract
from fleet.errors import AttemptVoid, EvidenceError
from fleet.evidence import process
from fleet.evidence.manifest import Process
from fleet.replay import caches, freshness
from fleet.replay.gpu.watch import HostWatch
from fleet.replay.probe import AtEntry, at_entry
from fleet.replay.task import ReplayTask
from tests.campaigns import CONTRACT, planned_in, write_configs, write_contract


def test_this_process_lives_and_is_told_by_pid_and_start_tick() -> None:
    me = process.identity()
    assert (me.pid, process.is_alive(me)) == (os.getpid(), True)
    assert not process.is_alive(replace(me, start_tick=me.start_tick + 1))
    assert process.identity() == me


def test_a_process_that_ended_is_gone_even_as_a_zombie() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    seen = process.identity(child.pid)
    assert process.is_alive(seen)
    assert child.stdin is not None
    child.stdin.close()
    while os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT) is None:
        pass
    assert not process.is_alive(seen)  # not yet reaped
    child.wait()
    assert not process.is_alive(seen)


@pytest.mark.parametrize("change", [{"boot_id": "another"}, {"pid_namespace": "pid:[1]"}])
def test_absence_proves_nothing_from_another_boot_or_namespace(change: dict[str, str]) -> None:
    elsewhere = replace(process.identity(), **change)
    assert not process.can_observe(elsewhere)
    with pytest.raises(EvidenceError, match="cannot-observe"):
        process.is_alive(elsewhere)


def test_a_process_that_never_was_has_no_identity() -> None:
    with pytest.raises(EvidenceError, match="cannot-observe"):
        process.identity(10**8)


def test_a_name_with_brackets_and_spaces_does_not_shift_the_fields(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "7").mkdir()
    fields = " ".join(["S", "1", *("0" for _ in range(17)), "4242", "0"])
    (tmp_path / "7" / "stat").write_text(f"7 (a) b) (c) {fields}")
    monkeypatch.setattr(process, "PROC", tmp_path)
    assert process.start_tick(7) == 4242


def test_the_environment_is_the_one_that_was_given_and_not_the_one_made_since() -> None:
    program = (
        "import os; os.environ['LATE'] = '1'; os.environ['GIVEN'] = 'changed';"
        "from fleet.evidence.process import given_environment as g; e = g();"
        "print(e['GIVEN'], e['EMPTY'] == '', 'LATE' in e, e['EQUALS'])"
    )
    given = {"GIVEN": "1", "EMPTY": "", "EQUALS": "a=b", "PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [sys.executable, "-c", program], env=given, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["1", "True", "False", "a=b"]


def test_entry_facts_name_parents_and_see_an_import_that_came_too_early() -> None:
    entry = at_entry()
    assert entry.process_tree[0] == os.getppid()
    program = (
        "import sys, types; sys.modules['torch'] = types.ModuleType('torch');"
        "from fleet.replay.probe import at_entry; print(at_entry().imported)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "('torch',)"


# freshness, as the worker judges it


@pytest.fixture
def task(tmp_path: Path) -> ReplayTask:
    write_configs(tmp_path / "configs")
    _, planned, places = planned_in(tmp_path)
    resolved = planned.named[0]
    return ReplayTask(
        attempt="ab" * 8,
        campaign="c",
        slot=0,
        purpose="certify",
        contract_name="toy",
        contract_file=str(resolved.loaded.path),
        contract=resolved.loaded.contract.model_dump(mode="python"),
        execution_id=resolved.execution_id,
        digests=resolved.digests,
        checkpoint=None,
        dataset_file=str(resolved.dataset.file),
        sample_ids=resolved.dataset.ids,
        arms=("controlled", "current"),
        landing=str(places.landing),
        scratch=str(places.scratch),
        node_label="n",
        predecessor=Process(process.boot_id(), process.pid_namespace(), 10**8, 1),
    )


def entry(task: ReplayTask, imported: tuple[str, ...] = (), **environment: str) -> AtEntry:
    given = {"FLEET_NONCE": task.attempt} | environment
    return AtEntry(process.identity(), given, imported, (1,))


def judged(task: ReplayTask, seen: AtEntry) -> str:
    try:
        observed = freshness.at_entry(task, seen, {})
        freshness.require_fresh(task, observed)
        freshness.require_free(observed | freshness.before_loading(task, HostWatch(), "t"))
    except AttemptVoid as ended:
        return f"{ended.code}: {ended.text}"
    return "fresh"


def test_a_process_with_its_nonce_after_a_dead_predecessor_is_fresh(task: ReplayTask) -> None:
    assert judged(task, entry(task)) == "fresh"
    assert judged(replace(task, predecessor=None), entry(task)) == "fresh"


def test_a_process_is_not_fresh_for_three_reasons(task: ReplayTask) -> None:
    assert "imported before entry: torch" in judged(task, entry(task, ("torch",)))
    assert "nonce" in judged(task, entry(task, FLEET_NONCE="another"))
    assert "still lives" in judged(replace(task, predecessor=process.identity()), entry(task))


def test_a_predecessor_elsewhere_cannot_be_observed(task: ReplayTask) -> None:
    elsewhere = replace(process.identity(), boot_id="another")
    with pytest.raises(EvidenceError, match="cannot-observe"):
        judged(replace(task, predecessor=elsewhere), entry(task))


def test_a_variable_that_was_not_given_is_a_setting_not_in_force(task: ReplayTask) -> None:
    given = entry(task, PYTHONHASHSEED="0")
    freshness.require_given(given, {"PYTHONHASHSEED": "0"})
    with pytest.raises(AttemptVoid, match="PYTHONHASHSEED: contract '1', process '0'"):
        freshness.require_given(given, {"PYTHONHASHSEED": "1"})
    with pytest.raises(AttemptVoid, match="process None"):
        freshness.require_given(given, {"OMP_NUM_THREADS": "1"})


def test_a_task_crosses_a_process_border_whole(task: ReplayTask) -> None:
    assert ReplayTask.from_json(task.to_json()) == task
    assert ReplayTask.from_json(replace(task, predecessor=None).to_json()).predecessor is None


# caches


@pytest.fixture
def contracts(tmp_path: Path) -> dict[str, Contract]:
    pinned = CONTRACT.replace('kernel_cache = "cold"', 'kernel_cache = "pinned"')
    paths = {
        "cold": write_contract(tmp_path, "cold"),
        "pinned": write_contract(tmp_path, "p", pinned),
    }
    return {kind: load_contract(str(path), [tmp_path]).contract for kind, path in paths.items()}


def test_a_cold_cache_is_private_to_its_attempt(contracts: dict[str, Contract]) -> None:
    one = caches.environment(contracts["cold"], Path("/s"), "a1")
    two = caches.environment(contracts["cold"], Path("/s"), "a2")
    ours = caches.DIGEST_KERNELS  # what digests runs is none of the contract's kernels
    assert set(one) == {*caches.KERNEL_FOLDERS, *caches.PRIVATE_FOLDERS, ours}
    assert set(one.values()) & set(two.values()) == {one[ours]}
    assert len(set(one.values())) == len(one)


def test_a_pinned_cache_is_shared_for_kernels_and_for_nothing_else(
    contracts: dict[str, Contract],
) -> None:
    one = caches.environment(contracts["pinned"], Path("/s"), "a1")
    two = caches.environment(contracts["pinned"], Path("/s"), "a2")
    shared = {*caches.KERNEL_FOLDERS, caches.DIGEST_KERNELS}
    assert {name for name in one if one[name] == two[name]} == shared
    kernels = caches.pinned_kernels(Path("/s"))
    assert not Path(one[caches.DIGEST_KERNELS]).is_relative_to(kernels)


def test_kernels_are_counted_where_the_process_keeps_them(tmp_path: Path) -> None:
    def counted(root: Path) -> tuple[str, int, int]:
        found = caches.counted(tmp_path, "a1", caches.kernel_folders(root))
        return found["in_force"], found["files"], found["compiled"]

    cold, pinned = tmp_path / "a1" / "kernels", caches.pinned_kernels(tmp_path)
    assert (counted(cold), counted(pinned)) == (("cold", 0, 0), ("pinned", 0, 0))
    files = {
        "triton/k/kernel.cubin": b"\x7fELF code",
        "triton/k/kernel.json": b"{}",
        "triton/h/cuda_utils.cpython-311-x86_64-linux-gnu.so": b"\x7fELF of Triton itself",
        "torch_extensions/x/main.cpp": b"int main() {}",
        "torch_extensions/x/.ninja_log": b"",
        "cuda/0/1": b"a form of its own",
        "cuda/index": b"",
    }
    for name, data in files.items():
        (cold / name).parent.mkdir(parents=True, exist_ok=True)
        (cold / name).write_bytes(data)
    assert (counted(cold), counted(pinned)) == (("cold", 6, 2), ("pinned", 0, 0))
    assert counted(tmp_path / "a2" / "kernels") == ("neither", 0, 0)
    one_moved = caches.kernel_folders(cold) | {"TRITON_CACHE_DIR": str(pinned / "triton")}
    assert caches.counted(tmp_path, "a1", one_moved)["in_force"] == "neither"
    assert caches.counted(tmp_path, "a1", {})["in_force"] == "neither"


def test_the_digest_of_kernels_sees_names_and_bytes(
    tmp_path: Path, contracts: dict[str, Contract]
) -> None:
    def digest() -> bytes:
        return digest_json(caches.kernels(contracts["pinned"], tmp_path, "a1"))

    seen = [digest()]
    kernel = tmp_path / "kernels" / "triton" / "k.so"
    kernel.parent.mkdir(parents=True)
    kernel.write_bytes(b"1")
    seen.append(digest())
    kernel.write_bytes(b"2")
    seen.append(digest())
    kernel.rename(kernel.with_name("l.so"))
    seen.append(digest())
    assert len(set(seen)) == 4
    assert digest_json(caches.kernels(contracts["cold"], tmp_path, "a1")) == seen[0]
