"""What the device is asked for and how its answers are put in order, without kernels.

The stand-in reads arguments as ``sha256.cu`` declares them; the host hashes. What waits, and how
long, is in ``test_device_digest_staging.py``.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fleet.errors import DeviceDigestsUnavailable
from fleet.evidence.digests import tensor_header
from fleet.replay.gpu.digests import device, driver, lanes
from fleet.replay.gpu.digests.device import DeviceDigests
from fleet.replay.gpu.digests.jobs import Copies, Grid, Scratch, Table, content, grid
from fleet.replay.host_digest import host_digest
from tests.unit.fake_device import CPU, CGather, CLaunch, FakeDriver, numbered, opened


def test_digests_come_in_the_order_they_were_asked_for() -> None:
    digests = opened(FakeDriver())
    tensors = numbered(5)
    assert digests.enqueue(tensors[:2]) == range(0, 2)
    assert digests.enqueue([]) == range(2, 2)
    assert digests.enqueue(tensors[2:]) == range(2, 5)
    assert digests.collect() == [host_digest(tensor) for tensor in tensors]
    assert digests.collect() == []
    assert digests.enqueue(tensors[:1]) == range(0, 1)


def test_one_digest_leaves_the_others_to_be_collected() -> None:
    digests = opened(FakeDriver())
    first, second, third = numbered(3)
    digests.enqueue([first])
    assert digests.digest(second) == host_digest(second)
    assert digests.enqueue([third]) == range(1, 2)
    assert digests.collect() == [host_digest(first), host_digest(third)]


def test_a_full_ring_is_fetched_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "RING_SLOTS", 100)
    fake = FakeDriver()
    digests = opened(fake)
    tensors = numbered(250)
    assert digests.enqueue(tensors) == range(0, 250)
    assert len(fake.waited) == 2
    assert max(job.slot for _, jobs in fake.launches for job in jobs) < 100
    assert digests.collect() == [host_digest(tensor) for tensor in tensors]


def test_streams_share_no_memory_and_all_are_waited_for() -> None:
    fake = FakeDriver()
    digests = opened(fake)
    told = fake.told
    tensors = numbered(3)
    for fake.current, tensor in zip((9, 5, 9), tensors, strict=True):
        digests.enqueue([tensor])
    assert digests.collect() == [host_digest(tensor) for tensor in tensors]
    assert [stream for stream, _ in fake.gathers] == [9, 5, 9]
    assert [stream for stream, _ in fake.launches] == [9, 5, 9]
    assert fake.scratch[0] == fake.scratch[2]
    assert not set(fake.scratch[0]) & set(fake.scratch[1])
    targets = [copies[0].target for _, copies in fake.gathers]
    assert targets[0] == targets[2] != targets[1]
    assert fake.waited == [[5, 9]]
    assert fake.told == told + 1


def test_scratch_grows_and_keeps_its_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "STAGED_NODES", 32 * 32)
    fake = FakeDriver(sm_count=1)
    digests = opened(fake)
    small, large = numbered(1)[0], torch.zeros(9 << 20, dtype=torch.uint8)
    assert digests.digest(small) == host_digest(small)
    fake.cuts.clear()
    assert digests.digest(large) == host_digest(large)
    assert digests.digest(small) == host_digest(small)
    (nodes, arrived), after, last = fake.scratch
    assert (after[0] != nodes, after[1]) == (fake.cuts[0].num_blocks > 32, arrived)
    assert last == after


def test_a_tensor_that_lies_in_order_is_copied_once() -> None:
    fake = FakeDriver()
    digests = opened(fake)
    base = torch.arange(60, dtype=torch.bfloat16).reshape(6, 10)
    digests.enqueue([base, base[2:], base.t()])
    sources = [copy.source for copy in fake.gathers[0][1]]
    assert sources[:2] == [base.data_ptr(), base.data_ptr() + 40]
    assert sources[2] != base.data_ptr()
    assert digests.collect() == [host_digest(t) for t in (base, base[2:], base.t())]


def test_values_are_digested_and_not_what_lies_below_them() -> None:
    digests = opened(FakeDriver())
    z = torch.tensor([[1 + 2j, 3 - 4j], [5j, -6 + 0j]])
    views = [z.conj(), z.conj().imag, z.t(), z.conj().t(), torch._neg_view(z.real), z[:, 1].conj()]
    lone = torch.as_strided(torch.arange(9.0), (1, 1), (7, 3))
    scalar, empty, expanded = torch.tensor(3.0), torch.zeros(3, 0), torch.ones(2).expand(4, 2)
    parameter = torch.nn.Parameter(torch.ones(2, 3)).t()
    tensors = [*views, lone, scalar, empty, expanded, parameter]
    digests.enqueue(tensors)
    assert digests.collect() == [host_digest(tensor) for tensor in tensors]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(2, device="meta"),
        torch.zeros(2, 2).to_sparse(),
        torch.zeros(4, dtype=torch.uint8).view(torch.int4),
    ],
    ids=["meta", "sparse", "packed"],
)
def test_a_tensor_without_bytes_here_is_refused(tensor: torch.Tensor) -> None:
    digests = opened(FakeDriver())
    with pytest.raises(ValueError, match="tensor"):
        digests.enqueue([tensor])
    assert digests.collect() == []


def test_a_device_that_answers_wrong_or_not_at_all_is_unavailable() -> None:
    with pytest.raises(DeviceDigestsUnavailable, match=r"fixed tensors \[0, 1, 2"):
        DeviceDigests(CPU, FakeDriver(wrong=True))
    with pytest.raises(DeviceDigestsUnavailable, match="wrote no digest"):
        DeviceDigests(CPU, FakeDriver(silent=True))


def test_without_a_device_there_are_none() -> None:
    with pytest.raises(DeviceDigestsUnavailable, match="no CUDA device"):
        DeviceDigests(CPU)


@dataclass
class FakeStream:
    """A stream of torch's, as far as the driver asks."""

    cuda_stream: int
    waited_for: list[int] = field(default_factory=list)
    synchronized: int = 0

    def wait_stream(self, other: FakeStream) -> None:
        self.waited_for.append(other.cuda_stream)

    def synchronize(self) -> None:
        self.synchronized += 1


@dataclass
class FakeTorchCuda:
    """What the driver asks ``torch.cuda``: device 0 of two, with streams 5 and 9."""

    streams: dict[int, FakeStream] = field(
        default_factory=lambda: {handle: FakeStream(handle) for handle in (5, 9)}
    )
    current: int = 5
    device: int = 0
    capturing: bool = False
    captured: set[int] = field(default_factory=set)
    objects_made: int = 0

    def current_stream(self, index: int) -> FakeStream:
        assert index == 0
        self.objects_made += 1
        return self.streams[self.current]

    def handle(self, index: int) -> int:
        assert index == 0
        return self.current

    def write_captured(self, stream: int, captured: Any) -> int:
        captured._obj.value = int(stream in self.captured)
        return 0

    def get_device_properties(self, index: int) -> SimpleNamespace:
        assert index == 0
        return SimpleNamespace(multi_processor_count=132, major=9, minor=0, name="fake")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeTorchCuda:
    fake = FakeTorchCuda()
    for name in ("current_stream", "get_device_properties"):
        monkeypatch.setattr(torch.cuda, name, getattr(fake, name))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: fake.device)
    for name, action in (
        ("_cuda_getDevice", lambda: fake.device),
        ("_cuda_isCurrentStreamCapturing", lambda: fake.capturing),
        ("_cuda_getCurrentRawStream", fake.handle),
    ):
        monkeypatch.setattr(torch._C, name, action, raising=False)
    library = SimpleNamespace(
        cuModuleLoadData=lambda module, image: 0 if image == b"for sm_90" else 200,
        cuModuleGetFunction=lambda function, module, name: 0,
        cuStreamIsCapturing=fake.write_captured,
    )
    monkeypatch.setattr(driver, "_library", lambda: library)
    monkeypatch.setattr(driver, "cubin", lambda architecture: f"for {architecture}".encode())
    return fake


def test_the_kernels_are_compiled_for_the_device(cuda: FakeTorchCuda) -> None:
    found = driver.CudaDriver(torch.device("cpu"))
    assert found.sm_count == 132
    assert set(found._functions) == set(driver.KERNELS)


def test_one_read_back_waits_for_every_stream(cuda: FakeTorchCuda) -> None:
    found = driver.CudaDriver(torch.device("cpu"))
    found._host = torch.zeros(100, dtype=torch.uint8)  # pinned memory needs a device
    handles = []
    for cuda.current in (9, 5, 9, 5):
        handles.append(found.stream())
    assert handles == [9, 5, 9, 5]
    assert cuda.objects_made == 2
    ring = torch.arange(64, dtype=torch.uint8)
    assert found.take(ring, [5, 9]) == bytes(range(64))
    assert cuda.streams[5].waited_for == [9]
    assert (cuda.streams[5].synchronized, cuda.streams[9].synchronized) == (1, 0)
    assert not ring.any()


def test_a_captured_stream_and_another_device_are_refused(cuda: FakeTorchCuda) -> None:
    found = driver.CudaDriver(torch.device("cpu"))
    cuda.capturing = True
    with pytest.raises(DeviceDigestsUnavailable, match="captured"):
        found.stream()
    cuda.capturing, cuda.device = False, 1
    with pytest.raises(DeviceDigestsUnavailable, match="not cuda:0"):
        found.stream()


def test_digests_that_waited_are_not_put_into_a_graph(cuda: FakeTorchCuda) -> None:
    found = driver.CudaDriver(torch.device("cpu"))
    cuda.captured = {9}
    with pytest.raises(DeviceDigestsUnavailable, match="captured"):
        found.launch(grid([1], 132), Table(), 9)


def test_grids_fill_the_device_and_no_block_is_without_a_leaf() -> None:
    assert grid([4, 1, 5], 132) == Grid("fleet_digest_narrow", 128, [1, 1, 2], 4)
    assert grid([528], 132) == Grid("fleet_digest_narrow", 128, [132], 132)
    assert grid([529], 132) == Grid("fleet_digest_wide", 128, [5], 5)
    assert grid([529, 1], 132) == Grid("fleet_digest_wide", 128, [5, 1], 6)
    assert grid([524288], 132) == Grid("fleet_digest_wide", 256, [2048], 2048)
    assert grid([1], 0) == Grid("fleet_digest_wide", 256, [1], 1)


def test_sizes_beyond_four_gibibytes_are_counted_in_64_bits() -> None:
    huge = content(b"h", (5 << 30) + 1)
    assert huge.num_leaves == (5 << 30) // 2048 + 1
    table, cut = Table(), grid([huge.num_leaves], 132)
    table.put(0, 1 << 47, huge)
    table.finish(cut, 3, Scratch(1, 2, 3))
    given = CLaunch.from_buffer_copy(ctypes.string_at(table.address, ctypes.sizeof(CLaunch)))
    job = given.jobs[0]
    assert (job.data, job.num_bytes, job.slot) == (1 << 47, (5 << 30) + 1, 3)
    assert job.num_blocks == cut.num_blocks == -(-huge.num_leaves // 256)


def test_copies_lie_one_after_the_other_in_blocks() -> None:
    copies = Copies()
    for size in (1, 4096, 4097, 8 << 20):
        copies.put(1 << 47, 1 << 46, size)
    copies.finish()
    given = CGather.from_buffer_copy(ctypes.string_at(copies.address, ctypes.sizeof(CGather)))
    assert [job.first_block for job in given.copies[: given.num_copies]] == [0, 1, 2, 4]
    assert (given.copies[3].source, given.copies[3].target) == (1 << 47, 1 << 46)
    assert copies.num_blocks == 4 + 2048


def test_the_longest_header_of_a_tensor_fits_and_a_longer_one_is_refused() -> None:
    sizes = [10] * 18 + [1] * 46
    assert content(tensor_header("float8_e4m3fnuz", sizes, 10**18), 0)
    with pytest.raises(ValueError, match="209 bytes"):
        content(b"x" * 209, 0)
