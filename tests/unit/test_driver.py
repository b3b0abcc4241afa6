"""The driver: the ledger before the act, an end for every planned attempt, retries within a budget.

The launcher is a fake; ``script`` says what goes wrong with which attempt.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleet.errors import AttemptFailed, CannotRunError
from fleet.evidence.landing import Landing
from fleet.evidence.ledger import Entry, campaigns, ends, read_chain
from fleet.evidence.manifest import Manifest
from fleet.evidence.summarise import summarise
from fleet.replay.task import ReplayTask
from fleet.schedule.asking import preflight
from fleet.schedule.driver import AttemptEnd, Campaign, Limits, new_campaign_id
from fleet.schedule.interrupts import SIGNALS, Interrupts
from fleet.schedule.launcher import Problem
from tests.campaigns import (
    CONTROLS,
    QUICK,
    SAMPLES,
    FakeLauncher,
    Script,
    places_in,
    planned_in,
    raises,
    write_configs,
)

ONE_RETRY = replace(QUICK, retries=1)


@pytest.fixture(autouse=True)
def configs(tmp_path: Path) -> None:
    write_configs(tmp_path / "configs")


def campaign(root: Path, launcher: FakeLauncher, limits: Limits = QUICK, **fields: Any) -> Campaign:
    _, planned, places = planned_in(root, purpose="replay")
    contracts = {r.name: r for r in planned.named}
    landing = Landing.open(places.landing, create=True)
    return Campaign(landing, launcher, contracts, places.scratch, limits, **fields)


def run(
    root: Path, launcher: FakeLauncher, limits: Limits = QUICK, **fields: Any
) -> list[AttemptEnd]:
    _, planned, _ = planned_in(root, purpose="replay")
    return campaign(root, launcher, limits, **fields).run(planned.slots, ["certify", "toy"])


def chain(root: Path) -> list[Entry]:
    landing = Landing.open(places_in(root).landing)
    (name,) = campaigns(landing)
    return read_chain(landing, name)


def kinds(root: Path) -> list[str]:
    return [entry.kind for entry in chain(root)]


def told(found: list[AttemptEnd]) -> list[tuple[str, str | None]]:
    return [(end.state, end.cause.code if end.cause else None) for end in found]


ONE_ATTEMPT = ["planned", "started", "go", "gone", "accepted"]


def test_a_clean_campaign_is_two_attempts_one_after_the_other(tmp_path: Path) -> None:
    assert told(run(tmp_path, FakeLauncher())) == [("COMPLETE", None)] * 2
    assert kinds(tmp_path) == ["campaign", "controls", *ONE_ATTEMPT, *ONE_ATTEMPT, "closed"]


def test_the_plan_says_everything_before_the_process_starts(tmp_path: Path) -> None:
    seen: list[list[str]] = []
    launcher = FakeLauncher(at_start={0: lambda _: seen.append(kinds(tmp_path))})
    run(tmp_path, launcher)
    assert seen == [["campaign", "controls", "planned"]]
    opened, _, planned = chain(tmp_path)[:3]
    assert opened.body["argv"] == ["certify", "toy"]
    assert [c["name"] for c in opened.body["contracts"]] == ["toy"]
    body = planned.body
    assert (body["slot"], body["replay"], body["role"], body["contract"]) == (0, 0, "named", "toy")
    assert (body["purpose"], body["vary"], body["node"]) == ("certify", [], "test-node")
    assert body["sample_ids"] == [f"s{i}" for i in range(SAMPLES)]
    assert body["arms"] == ["controlled", "current"]


def test_the_accepted_entry_holds_the_manifests_digest_and_every_attempt_is_complete(
    tmp_path: Path,
) -> None:
    run(tmp_path, FakeLauncher())
    landing, entries = Landing.open(places_in(tmp_path).landing), chain(tmp_path)
    for attempt, end in ends(entries):
        assert end is not None
        manifest = Manifest.from_bytes(landing.manifest(attempt).read_bytes())
        assert end.body["manifest_sha256"] == "sha256:" + manifest.digest.hex()
        assert summarise(landing, attempt, entries).state == "COMPLETE"


def test_every_attempt_has_its_own_nonce_environment_and_predecessor(tmp_path: Path) -> None:
    launcher = FakeLauncher()
    run(tmp_path, launcher)
    one, two = launcher.tasks
    assert one.attempt != two.attempt
    assert [e["FLEET_NONCE"] for e in launcher.environments] == [one.attempt, two.attempt]
    assert one.predecessor is None
    assert two.predecessor is not None and two.predecessor.start_tick == int(one.attempt, 16)
    private = [launcher.environments[i]["XDG_CACHE_HOME"] for i in (0, 1)]
    assert one.attempt in private[0] and two.attempt in private[1]
    assert all(e["PYTHONHASHSEED"] == "0" for e in launcher.environments)


@pytest.mark.parametrize("code", ["killed", "out-of-memory", "hang", "disk-full", "engine-error"])
def test_what_could_not_finish_is_failed_and_tried_again(tmp_path: Path, code: str) -> None:
    launcher = FakeLauncher(script={0: raises(AttemptFailed(code, "why"))})
    assert told(run(tmp_path, launcher, ONE_RETRY)) == [
        ("FAILED", code),
        ("COMPLETE", None),
        ("COMPLETE", None),
    ]
    planned = [e for e in chain(tmp_path) if e.kind == "planned"]
    assert [e.body["slot"] for e in planned] == [0, 0, 1]
    assert len({e.attempt for e in planned}) == 3


def test_retries_have_a_budget_and_the_campaign_goes_on(tmp_path: Path) -> None:
    broken = raises(AttemptFailed("killed", "signal 9"))
    found = run(tmp_path, FakeLauncher(script={0: broken, 1: broken}), ONE_RETRY)
    assert told(found) == [("FAILED", "killed"), ("FAILED", "killed"), ("COMPLETE", None)]


def test_a_void_attempt_is_never_tried_again(tmp_path: Path) -> None:
    def change_dataset(task: ReplayTask) -> None:
        with Path(task.dataset_file).open("a") as file:
            file.write("\n")

    found = run(tmp_path, FakeLauncher(script={0: change_dataset}), ONE_RETRY)
    assert told(found) == [("VOID", "pinned-content-changed")] * 2


def test_a_death_that_nobody_saw_is_lost_and_whatever_landed_is_not_accepted(
    tmp_path: Path,
) -> None:
    found = run(tmp_path, FakeLauncher(observed={0: (True, False), 1: (False, True)}))
    assert told(found) == [("LOST", "death-not-observed"), ("FAILED", "death-not-observed")]
    assert "accepted" not in kinds(tmp_path)


def test_a_fault_and_an_unseen_death_together_keep_the_faults_cause(tmp_path: Path) -> None:
    launcher = FakeLauncher(
        script={0: raises(AttemptFailed("node-unreachable", "gone"))}, observed={0: (True, False)}
    )
    assert told(run(tmp_path, launcher))[0] == ("LOST", "node-unreachable")


@pytest.mark.parametrize(("code", "state"), [("start", "LOST"), ("unschedulable", "FAILED")])
def test_a_process_that_did_not_start_has_an_end_too(tmp_path: Path, code: str, state: str) -> None:
    launcher = FakeLauncher(at_start={0: raises(AttemptFailed(code, "no answer"))})
    assert told(run(tmp_path, launcher)) == [(state, code), ("COMPLETE", None)]
    assert kinds(tmp_path)[2:5] == ["planned", "given_up", "planned"]


def test_a_replay_that_raises_anything_does_not_end_the_campaign(tmp_path: Path) -> None:
    found = run(tmp_path, FakeLauncher(script={0: raises(RuntimeError("[odd] words"))}))
    assert told(found) == [("FAILED", "engine-error"), ("COMPLETE", None)]
    assert found[0].cause is not None
    assert found[0].cause.text == "RuntimeError: [odd] words"


def after(root: Path, change: Callable[[Path], None]) -> FakeLauncher:
    """The manifest of the first attempt is changed between its return and its acceptance."""

    class Meddled(FakeLauncher):
        def start(self, task: ReplayTask, *rest: Any) -> Any:
            running = super().start(task, *rest)
            if running.number == 0:
                result = running.result

                def then_change(deadline_s: float) -> str:
                    digest = result(deadline_s)
                    change(task.folder / "manifest.json")
                    return digest

                running.result = then_change  # type: ignore[method-assign]
            return running

    return Meddled()


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b"{}"),
        lambda path: path.write_bytes(
            path.read_bytes().replace(b'"traced":false', b'"traced":true')
        ),
    ],
    ids=["gone", "no manifest", "another one"],
)
def test_a_manifest_that_is_not_the_one_returned_is_not_accepted(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    found = run(tmp_path, after(tmp_path, change))
    assert told(found) == [("FAILED", "engine-error"), ("COMPLETE", None)]


@pytest.mark.parametrize("where", ["at_start", "script"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(15)])
def test_an_interrupt_leaves_an_end_for_every_planned_attempt(
    tmp_path: Path, where: str, error: BaseException
) -> None:
    launcher = FakeLauncher(**{where: {1: raises(error)}})
    with pytest.raises(type(error)):
        run(tmp_path, launcher)
    found = [(end and end.kind, end and end.body.get("state")) for _, end in ends(chain(tmp_path))]
    state = "FAILED" if where == "script" else "LOST"
    assert found == [("accepted", "COMPLETE"), ("given_up", state)]
    assert kinds(tmp_path)[-1] == "closed"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_comes_while_the_driver_writes_waits_for_the_next_wait(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the death of a process and its acceptance there must be no gap."""
    before = {n: signal.signal(n, signal.default_int_handler) for n in SIGNALS}
    end = Campaign._end

    def interrupted(self: Campaign, *args: Any) -> Any:
        signal.raise_signal(number)  # to this thread: sent to the process, another may take it late
        return end(self, *args)

    monkeypatch.setattr(Campaign, "_end", interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, FakeLauncher())
        assert {signal.getsignal(n) for n in SIGNALS} == {signal.default_int_handler}
    finally:
        for n, handler in before.items():
            signal.signal(n, handler)
    assert kinds(tmp_path)[2:] == [*ONE_ATTEMPT, "planned", "given_up", "closed"]


def test_signals_are_held_and_then_delivered_to_whom_they_belong() -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda n, _: came.append(n))
    try:
        with Interrupts() as held:
            signal.raise_signal(signal.SIGTERM)
            assert came == []
            with held.let_through():
                assert came == [signal.SIGTERM]
                signal.raise_signal(signal.SIGTERM)
                assert len(came) == 2
            signal.raise_signal(signal.SIGTERM)
            assert len(came) == 2
        assert len(came) == 3
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_signal_that_is_ignored_stays_so_and_pushes_no_other_out() -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda n, _: came.append(n))
    ignored = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts():
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGTERM)
        assert came == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGHUP, ignored)


def test_controls_that_were_named_are_controls_of_the_campaign(tmp_path: Path) -> None:
    _, planned, places = planned_in(tmp_path, CONTROLS[0], "toy")
    contracts = {r.name: r for r in (*planned.named, *planned.controls)}
    landing = Landing.open(places.landing, create=True)
    Campaign(landing, FakeLauncher(), contracts, places.scratch, QUICK).run([])
    (entry,) = [e for e in chain(tmp_path) if e.kind == "controls"]
    assert entry.body["contracts"] == sorted(CONTROLS)


def test_a_node_that_cannot_run_a_contract_says_so_before_anything_is_planned(
    tmp_path: Path,
) -> None:
    problem = Problem("toy", "quantization.backend", "a, b", "'c': no CUDA", "choose one")
    made = campaign(tmp_path, FakeLauncher(problems=[problem]))
    made.contracts = {n: replace(r, checkpoint=tmp_path) for n, r in made.contracts.items()}
    with pytest.raises(CannotRunError, match="expected a, b, got 'c': no CUDA") as raised:
        preflight(made)
    assert raised.value.where.endswith("toy.toml")
    assert campaigns(made.landing) == []


def test_one_sample_of_one_arm_is_planned_as_such(tmp_path: Path) -> None:
    found = run(tmp_path, FakeLauncher(), purpose="replay", samples=("s3",), arms=("current",))
    assert told(found) == [("COMPLETE", None)] * 2
    (planned, _) = [e for e in chain(tmp_path) if e.kind == "planned"]
    assert (planned.body["sample_ids"], planned.body["arms"]) == (["s3"], ["current"])
    assert planned.body["purpose"] == "replay"


def test_events_are_told_as_they_come(tmp_path: Path) -> None:
    lines: list[str] = []
    script: Script = {0: raises(AttemptFailed("killed", "signal 9"))}
    run(tmp_path, FakeLauncher(script=script), ONE_RETRY, on_event=lines.append)
    assert "toy replay 0: killed: signal 9; again" in lines[1]
    assert [line.partition("toy replay ")[2][0] for line in lines] == ["0", "0", "0", "1"]


def test_campaign_ids_are_unique_and_sort_by_time() -> None:
    made = [new_campaign_id() for _ in range(50)]
    assert len(set(made)) == 50
    assert sorted(name[:16] for name in made) == [name[:16] for name in made]
