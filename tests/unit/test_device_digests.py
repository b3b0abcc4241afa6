"""The device's kernels, compiled as C++ and run on the host, give the host's digests.

What only a device shows (its memory model, its compiler, speed) is in ``tests/gpu``.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.errors import DeviceDigestsUnavailable
from fleet.evidence.digests import tensor_digest
from fleet.replay.gpu.digests.device import DeviceDigests
from fleet.replay.gpu.digests.fixed import fixed_tensors, pattern
from fleet.replay.gpu.digests.jobs import Copies, Table, grid
from fleet.replay.gpu.digests.staging import STAGED_BYTES
from fleet.replay.host_digest import host_digest
from tests.unit.host_kernels import COMPILER, STREAM, HostDriver, compiled
from tests.unit.test_digests import CASES, GOLDEN, content

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler here")

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]
LEAF = 2048
PROT_NONE = 0


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compiled(tmp_path_factory.mktemp("kernels"))


@pytest.fixture(
    scope="module",
    params=[(0, 0), (1, STAGED_BYTES), (10_000, 0), (10_000, STAGED_BYTES)],
    ids=["wide", "one-multiprocessor-staged", "narrow", "narrow-staged"],
)
def digests(library: ctypes.CDLL, request: pytest.FixtureRequest) -> DeviceDigests:
    """How many blocks run at once decides the kernel, the size whether it reads a copy."""
    return on_host(HostDriver(library), *request.param)


def on_host(driver: HostDriver, sm_count: int, staged_bytes: int = STAGED_BYTES) -> DeviceDigests:
    found = DeviceDigests(CPU, driver)
    driver.sm_count = found._sm_count = sm_count
    found._staged_bytes = staged_bytes
    driver.launched.clear()
    driver.gathered.clear()
    return found


def of_bytes(data: bytes, offset: int) -> torch.Tensor:
    """These bytes at an address that is so far from a multiple of 16."""
    room = torch.zeros(len(data) + 32, dtype=torch.uint8)
    start = offset + -room.data_ptr() % 16
    room[start : start + len(data)] = torch.tensor(list(data), dtype=torch.uint8)
    found = room[start : start + len(data)]
    assert not data or found.data_ptr() % 16 == offset
    return found


def golden_tensor(name: str) -> torch.Tensor:
    dtype, shape, size = CASES[name]
    data = torch.frombuffer(bytearray(content(name, size)) or bytearray(1), dtype=torch.uint8)
    return data[:size].view(getattr(torch, dtype)).reshape(shape)


def test_every_golden_vector(digests: DeviceDigests) -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))["tensors"]
    digests.enqueue([golden_tensor(name) for name in golden])
    assert [each.hex() for each in digests.collect()] == list(golden.values())


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
)
@given(
    sizes=st.lists(
        st.one_of(
            st.integers(0, 5000),
            st.builds(
                lambda leaves, more: max(0, leaves * LEAF + more),
                st.integers(1, 40),
                st.integers(-70, 70),
            ),
        ),
        min_size=1,
        max_size=6,
    ),
    offset=st.integers(0, 15),
)
def test_any_size_at_any_address(digests: DeviceDigests, sizes: list[int], offset: int) -> None:
    tensors = [
        of_bytes(random.Random(size).randbytes(size), (offset + i) % 16)
        for i, size in enumerate(sizes)
    ]
    digests.enqueue(tensors)
    assert digests.collect() == [host_digest(tensor) for tensor in tensors]


@pytest.mark.parametrize("leaves", [*range(1, 36), 127, 128, 129, 255, 256, 257, 513])
def test_any_number_of_leaves(digests: DeviceDigests, leaves: int) -> None:
    tensor = pattern(leaves * LEAF - leaves % 3, CPU)
    assert digests.digest(tensor) == host_digest(tensor)


def test_every_size_around_a_message_block(digests: DeviceDigests) -> None:
    sizes = [*range(201), *range(1970, 2120)]
    tensors = [of_bytes(random.Random(size).randbytes(size), size % 16) for size in sizes]
    digests.enqueue(tensors)
    assert digests.collect() == [host_digest(tensor) for tensor in tensors]


def test_five_mebibytes(library: ctypes.CDLL) -> None:
    driver = HostDriver(library)
    tensor = pattern((5 << 20) + 2, CPU)[2:]
    for sm_count, staged_bytes, kernel, threads in (
        (1, 0, "fleet_digest_wide", 256),
        (132, 0, "fleet_digest_wide", 128),
        (640, STAGED_BYTES, "fleet_digest_narrow", 128),
    ):
        assert on_host(driver, sm_count, staged_bytes).digest(tensor) == host_digest(tensor)
        (cut,) = driver.launched
        assert (cut.kernel, cut.num_threads) == (kernel, threads)
        assert driver.gathered == [1] * (staged_bytes > 0)


def test_a_copy_has_every_byte_and_nothing_beside_it_is_written(library: ctypes.CDLL) -> None:
    sizes = [*range(1, 70), 4080, 4095, 4096, 4097, 8191, 8192, 8193, 12_300]
    driver, copies, rounds = HostDriver(library), Copies(), -(-len(sizes) // 20)
    for offset in (0, 1, 2, 4, 8, 12):
        for part in (sizes[i::rounds] for i in range(rounds)):
            sources = [of_bytes(random.Random(size).randbytes(size), offset) for size in part]
            room = of_bytes(bytes([99]) * sum(size + 32 for size in part), 0)
            copies.clear()
            wanted = bytearray()
            for source, size in zip(sources, part, strict=True):
                copies.put(source.data_ptr(), room.data_ptr() + len(wanted), size)
                wanted += bytes(source.tolist()) + bytes(-size % 16)
                wanted += bytes([99]) * 16
            copies.finish()
            driver.gather(copies, STREAM)
            assert bytes(room.tolist())[: len(wanted)] == wanted


def test_the_order_of_blocks_and_threads_does_not_matter(library: ctypes.CDLL) -> None:
    driver = HostDriver(library)
    digests, tensor = on_host(driver, 0), pattern(700 * LEAF + 1, CPU)
    found = set()
    for seed in range(1, 20):
        driver.seed.value = seed
        found.add(digests.digest(tensor))
    assert found == {host_digest(tensor)}


@pytest.mark.parametrize("at_end", [True, False])
@pytest.mark.parametrize("size", [1, 2, 3, 63, 64, 65, 127, 2047, 2049, 4093])
def test_no_page_beside_the_tensor_is_read(digests: DeviceDigests, size: int, at_end: bool) -> None:
    """A read of one would end the process."""
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 3 * page)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for guarded in (begin, begin + 2 * page):
        assert protect(guarded, page, PROT_NONE) == 0
    start = 2 * page - size if at_end else page
    memory[start : start + size] = data = random.Random(size).randbytes(size)
    tensor = torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=start)
    assert digests.digest(tensor) == tensor_digest("uint8", (size,), data)


CHECKED = """
import ctypes, sys
import torch
from fleet.replay.gpu.digests.device import DeviceDigests
from fleet.replay.gpu.digests.fixed import pattern
from tests.unit.host_kernels import HostDriver
digests = DeviceDigests(torch.device("cpu"), HostDriver(ctypes.CDLL(sys.argv[1]), 132))
for digests._sm_count, digests._staged_bytes in ((0, 0), (132, 0), (132, 5000), (132, 9999)):
    digests.enqueue([pattern(9001, torch.device("cpu"))[i:] for i in range(33)])
    digests.collect()
print("all aligned")
"""


@pytest.mark.parametrize(
    "edits, words",
    [({}, "all aligned\n"), ({"((u64)data & 15) == 0": "((u64)data & 7) == 0"}, "")],
    ids=["as it is", "a read of 16 bytes at 8"],
)
def test_no_access_is_at_an_address_that_a_device_refuses(
    tmp_path: Path, edits: dict[str, str], words: str
) -> None:
    """Also: no shift by as many bits as a word has, no index past an array."""
    compiled(
        tmp_path, edits, "-fsanitize=alignment,bounds,shift", "-fsanitize-undefined-trap-on-error"
    )
    command = [sys.executable, "-c", CHECKED, str(tmp_path / "kernels.so")]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.stdout == words, run.stderr
    assert (run.returncode == 0) == (edits == {})


FAULTS = {
    "a round constant": {"0x428a2f98": "0x428a2f99"},
    "the last round constant": {"0xc67178f2": "0xc67178f3"},
    "a sum without its subtrahend": {"0 - one": "one"},
    "a rotation": {"rotr(e, 25)": "rotr(e, 24)"},
    "the padding of a pair": {"padding_after(2 * 32)": "padding_after(32)"},
    "bytes of an unaligned word": {"0x1111 * off": "0x1110 * off"},
    "the end of a message": {"? 0x80u": "? 0x81u"},
    "an odd last node": {"above[pairs] = nodes[num_nodes - 1]": "above[pairs] = nodes[0]"},
    "where an odd last node goes": {"above[pairs] = nodes[num": "nodes[pairs] = nodes[num"},
    "a barrier between reading and writing": {
        "        __syncthreads();\n        if (i < pairs) p": "        if (i < pairs) p"
    },
    "a barrier between two threads of a message": {
        "        __syncthreads();\n    }\n    add(s, before);": "    }\n    add(s, before);"
    },
    "rounds that come too early": {"kw + base - 16);": "kw + base % 64);"},
    "the row of a pair": {"rows[i < pairs ? i : 0].kw": "rows[i < pairs ? i / 2 : 0].kw"},
    "counters that stay": {"if (threadIdx.x == 0) *arrived = 0;": ""},
    "padding that only a whole leaf has": {"== LEAF_BYTES": "> LEAF_BYTES - 8"},
    "a tensor's own slot": {"[job.slot]": "[job.slot ^ 1]"},
    "where a copy goes": {"(u8*)job.to + at)": "(u8*)job.to + (at ^ 16))"},
    "where a copy comes from": {"job.from + at,": "job.from + at % 65536,"},
    "a whole part of a copy": {"*(const uint4*)data;": "((const uint4*)data)[-1];"},
    "words of an unaligned copy": {"w[i] = ((const u32*)data)[i]": "w[i] = ((const u32*)data)[0]"},
    "bytes of an unaligned copy": {"(u32)data[at] << 8 * j": "(u32)data[at ^ 1] << 8 * j"},
    "the end of a copy": {"at < num_bytes ? (u32)": "at + 1 < num_bytes ? (u32)"},
    "a copy that is not made": {"if (at >= job.num_bytes)": "if (at + 16 > job.num_bytes)"},
    "the tensor that a block copies": {
        "copies[of_this_block(gather.copies,": "copies[0 * of_this_block(gather.copies,"
    },
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_kernel_is_never_used(tmp_path: Path, fault: str) -> None:
    library = compiled(tmp_path, FAULTS[fault], "-Wno-unused")
    with pytest.raises(DeviceDigestsUnavailable, match=r"differ from the host's|no digest where"):
        DeviceDigests(CPU, HostDriver(library, 132))


def test_what_the_driver_refuses_is_said(library: ctypes.CDLL) -> None:
    driver = HostDriver(library)
    table, cut = Table(), grid([1], 1)
    with pytest.raises(DeviceDigestsUnavailable, match="cuStreamIsCapturing: CUDA error 400"):
        driver.launch(cut, table, 5)
    with pytest.raises(DeviceDigestsUnavailable, match="cuLaunchKernel: CUDA error 400"):
        driver.gather(Copies(), 5)
    with pytest.raises(DeviceDigestsUnavailable, match="cuModuleLoadData: CUDA error 200"):
        driver._load(b"another")


def test_the_fixed_tensors_take_every_kernel(library: ctypes.CDLL) -> None:
    driver = HostDriver(library, 132)
    DeviceDigests(CPU, driver)
    assert {(cut.kernel, cut.num_threads) for cut in driver.launched} == {
        ("fleet_digest_wide", 256),
        ("fleet_digest_wide", 128),
        ("fleet_digest_narrow", 128),
    }
    addresses = [t.data_ptr() % 16 for tensors in fixed_tensors(CPU, 132) for t in tensors]
    assert {1, 2, 3, 4, 8} <= set(addresses)
