"""What waits for a launch, when that is made, and what becomes of it when one is refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

from fleet.errors import DeviceDigestsUnavailable
from fleet.replay.gpu.digests import staging
from fleet.replay.gpu.digests.device import DeviceDigests
from fleet.replay.gpu.digests.staging import STAGED_BYTES
from fleet.replay.host_digest import host_digest
from tests.unit.fake_device import FakeDriver, numbered, opened


def hooks(tensors: list[torch.Tensor], size: int) -> list[list[torch.Tensor]]:
    return [tensors[i : i + size] for i in range(0, len(tensors), size)]


def counts(fake: FakeDriver) -> list[int]:
    return [len(jobs) for _, jobs in fake.launches]


def large() -> torch.Tensor:
    return torch.arange(STAGED_BYTES // 4 + 1, dtype=torch.int32)


@pytest.mark.parametrize(
    "count, launches", [(1, []), (64, []), (65, [64]), (128, [64]), (129, [64, 64])]
)
@pytest.mark.parametrize("size", [1, 3, 200])
def test_sixty_four_tensors_take_one_launch(count: int, launches: list[int], size: int) -> None:
    """Which is made when one more comes, or when somebody waits."""
    fake = FakeDriver()
    digests = opened(fake)
    tensors = numbered(count)
    for hook in hooks(tensors, size):
        digests.enqueue(hook)
    assert counts(fake) == launches
    assert fake.waited == []
    assert digests.collect() == [host_digest(tensor) for tensor in tensors]
    assert counts(fake) == [*launches, count - sum(launches)]
    assert len(fake.waited) == 1


def test_a_hook_is_one_copy_whatever_it_holds() -> None:
    fake = FakeDriver()
    digests = opened(fake)
    tensors = [*numbered(2), torch.zeros(0, 3), torch.ones(3, 4).t()]
    digests.enqueue(tensors)
    digests.enqueue([torch.zeros(0)])
    digests.enqueue([])
    assert [len(copies) for _, copies in fake.gathers] == [3]
    wanted = [host_digest(tensor) for tensor in [*tensors, torch.zeros(0)]]
    assert digests.collect() == wanted


def test_what_is_digested_is_what_the_tensor_was() -> None:
    digests = opened(FakeDriver())
    tensors = [*numbered(3), torch.ones(3, 4).t(), large(), torch.arange(9)[1:]]
    wanted = [host_digest(tensor) for tensor in tensors]
    for hook in hooks(tensors, 2):
        digests.enqueue(hook)
        for tensor in hook:
            tensor.fill_(77)
    assert digests.collect() == wanted


def test_a_full_arena_is_launched_and_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "ARENA_BYTES", 10 * 256)
    fake = FakeDriver()
    digests = opened(fake)
    tensors = numbered(35, size=100)  # 400 bytes, which take 512
    wanted = [host_digest(tensor) for tensor in tensors]
    for hook in hooks(tensors, 2):
        digests.enqueue(hook)
        for tensor in hook:
            tensor.zero_()
    assert counts(fake) == [5] * 6
    assert len({copy.target for _, copies in fake.gathers for copy in copies}) == 5
    assert digests.collect() == wanted


def test_another_stream_launches_what_waits_on_its_own() -> None:
    fake = FakeDriver()
    digests = opened(fake)
    tensors = numbered(4)
    for fake.current, tensor in zip((5, 5, 9, 5), tensors, strict=True):
        digests.enqueue([tensor])
    assert [(stream, len(jobs)) for stream, jobs in fake.launches] == [(5, 2), (9, 1)]
    fake.current = 9
    assert digests.collect() == [host_digest(tensor) for tensor in tensors]
    assert [stream for stream, _ in fake.launches] == [5, 9, 5]
    assert fake.waited == [[5, 9]]


def test_one_digest_launches_what_waits_before_it() -> None:
    fake = FakeDriver()
    digests = opened(fake)
    first, second = numbered(2)
    digests.enqueue([first])
    assert digests.digest(second) == host_digest(second)
    assert counts(fake) == [2]
    assert digests.collect() == [host_digest(first)]


def test_a_large_tensor_is_read_where_it_is_before_the_call_returns() -> None:
    fake = FakeDriver()
    digests = opened(fake)
    before, beside, after = numbered(3)
    tensor = large()
    turned = tensor[: STAGED_BYTES // 4].view(2, -1)
    digests.enqueue([before])
    digests.enqueue([tensor, beside])
    assert counts(fake) == [3]
    assert [job.data == tensor.data_ptr() for job in fake.launches[0][1]] == [False, True, False]
    digests.enqueue([turned, after])  # just small enough
    assert counts(fake) == [3]
    wanted = [host_digest(each) for each in (before, tensor, beside, turned, after)]
    assert digests.collect() == wanted


def test_a_refused_copy_leaves_what_was_enqueued_before() -> None:
    fake = FakeDriver()
    digests = opened(fake)
    before, refused, after = numbered(3)
    digests.enqueue([before])
    fake.refuses = {"gather"}
    with pytest.raises(DeviceDigestsUnavailable, match="700"):
        digests.enqueue([refused])
    assert (fake.launches, fake.waited) == ([], [])
    fake.refuses = set()
    assert digests.enqueue([after]) == range(1, 2)
    assert digests.collect() == [host_digest(before), host_digest(after)]


def turn(digests: DeviceDigests, fake: FakeDriver) -> None:
    fake.current = 9
    digests.enqueue(numbered(1))


TRIGGERS: dict[str, Callable[[DeviceDigests, FakeDriver], object]] = {
    "one too many": lambda digests, fake: digests.enqueue(numbered(64)),
    "a large one": lambda digests, fake: digests.enqueue([large()]),
    "another stream": turn,
    "one digest": lambda digests, fake: digests.digest(numbered(1)[0]),
}


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_a_launch_refused_later_is_said_then_and_by_collect(trigger: str) -> None:
    """What waited is lost: neither a wrong digest nor a shorter answer takes its place."""
    fake = FakeDriver()
    digests = opened(fake)
    first, lost, after = numbered(3)
    digests.digest(first)
    digests.enqueue([lost])
    fake.refuses = {"launch"}
    with pytest.raises(DeviceDigestsUnavailable, match="719"):
        TRIGGERS[trigger](digests, fake)
    fake.refuses = set()
    assert digests.enqueue([after]) == range(1, 2)
    assert digests.digest(after) == host_digest(after)
    with pytest.raises(DeviceDigestsUnavailable, match="wrote no digest"):
        digests.collect()
    assert digests.enqueue([after]) == range(0, 1)
    assert digests.collect() == [host_digest(after)]


def test_a_launch_that_collect_is_refused_is_said_by_collect() -> None:
    fake = FakeDriver()
    digests = opened(fake)
    lost, after = numbered(2)
    digests.enqueue([lost])
    fake.refuses = {"launch"}
    with pytest.raises(DeviceDigestsUnavailable, match="719"):
        digests.collect()
    fake.refuses = set()
    assert digests.enqueue([after]) == range(0, 1)
    assert digests.collect() == [host_digest(after)]


def test_one_digest_that_is_refused_costs_nothing_but_itself() -> None:
    fake = FakeDriver()
    digests = opened(fake)
    before, refused, after = numbered(3)
    digests.enqueue([before])
    digests.digest(after)
    fake.refuses = {"launch"}
    with pytest.raises(DeviceDigestsUnavailable, match="719"):
        digests.digest(refused)
    fake.refuses = set()
    digests.enqueue([after])
    assert digests.collect() == [host_digest(before), host_digest(after)]


def test_a_call_that_fails_before_its_copy_has_asked_for_nothing() -> None:
    fake = FakeDriver()
    digests = opened(fake)
    before, other = numbered(2)
    digests.enqueue([before])
    with pytest.raises(ValueError, match="meta"):
        digests.enqueue([other, torch.zeros(2, device="meta")])
    assert (len(fake.gathers), fake.launches, fake.waited) == (1, [], [])
    assert digests.enqueue([other]) == range(1, 2)
    assert digests.collect() == [host_digest(before), host_digest(other)]


def test_a_call_that_fails_halfway_leaves_nothing_behind() -> None:
    fake = FakeDriver()
    digests = opened(fake)
    before, *others = numbered(66)
    digests.enqueue([before])
    with pytest.raises(ValueError, match="meta"):
        digests.enqueue([*others, torch.zeros(2, device="meta")])
    assert counts(fake) == [64]
    assert digests.enqueue(others[:1]) == range(1, 2)
    assert digests.collect() == [host_digest(before), host_digest(others[0])]


def test_an_interrupt_in_a_call_leaves_nothing_that_waits_for_its_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tensor may be gone by the next call."""
    fake = FakeDriver()
    digests = opened(fake)
    one, two = numbered(2)
    with monkeypatch.context() as patch:
        patch.setattr(
            fake, "gather", lambda copies, stream: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            digests.enqueue([one])
    assert digests.enqueue([two]) == range(0, 1)
    assert [len(copies) for _, copies in fake.gathers] == [1]
    assert digests.collect() == [host_digest(two)]


def test_two_thousand_tensors_in_hooks_of_three() -> None:
    fake = FakeDriver()
    digests = opened(fake)
    tensors = numbered(2000)
    places = [digests.enqueue(hook) for hook in hooks(tensors, 3)]
    assert list(itertools.chain(*places)) == list(range(2000))
    assert digests.collect() == [host_digest(tensor) for tensor in tensors]
    assert counts(fake) == [64] * 31 + [16]
    assert len(fake.gathers) > 2000 // 3


@pytest.mark.parametrize("opened_in", [True, False])
@pytest.mark.parametrize("collected_in", [True, False])
def test_inference_mode_may_begin_and_end_between_any_two_calls(
    opened_in: bool, collected_in: bool
) -> None:
    """Memory that torch gave out in it may not be written outside of it, unless asked for so."""
    with torch.inference_mode(opened_in):
        digests = opened(FakeDriver())
        tensors = numbered(3)
        digests.enqueue(tensors)
    with torch.inference_mode(collected_in):
        assert digests.collect() == [host_digest(tensor) for tensor in tensors]
        digests.enqueue(tensors)
    assert digests.collect() == [host_digest(tensor) for tensor in tensors]
