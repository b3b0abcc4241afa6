"""Device digests against the host's, on a device; run in a process of its own, which holds a
context for as long as it lives and would be a neighbour to every other test.

    python -m tests.gpu.digest_checks [NAME...]

Prints one JSON line per check: its name and its error, or null.
"""

from __future__ import annotations

import json
import random
import re
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from fleet.errors import DeviceDigestsUnavailable
from fleet.evidence.digests import tensor_digest
from fleet.replay.gpu.digests import compiled
from fleet.replay.gpu.digests.device import DeviceDigests
from fleet.replay.gpu.digests.fixed import pattern
from fleet.replay.gpu.digests.staging import ARENA_BYTES, STAGED_BYTES
from fleet.replay.host_digest import host_digest

LEAF = 2048
BUSY_CYCLES = 200_000_000
"""A tenth of a second or so for a kernel that does nothing."""


def device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def on_device(data: bytes, offset: int = 0) -> torch.Tensor:
    """These bytes on the device, so far from an aligned address."""
    room = torch.zeros(len(data) + offset, dtype=torch.uint8, device=device())
    room[offset:] = torch.frombuffer(bytearray(data) or bytearray(1), dtype=torch.uint8)[
        : len(data)
    ]
    return room[offset:]


def assert_equal(digests: DeviceDigests, tensors: list[torch.Tensor]) -> None:
    digests.enqueue(tensors)
    assert digests.collect() == [host_digest(tensor) for tensor in tensors]


def dtypes() -> list[torch.dtype]:
    """All with bytes: without packed integers of less than a byte and quantised types."""
    every = {kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)}
    packed = re.compile(r"torch\.(u?int[1-7]|bits\w+|qu?int\w+)")
    return sorted((kind for kind in every if not packed.fullmatch(str(kind))), key=str)


def check_every_dtype(digests: DeviceDigests) -> None:
    for kind in dtypes():
        size, name = kind.itemsize, str(kind).removeprefix("torch.")
        data = random.Random(name).randbytes(37 * 130 * size)
        if kind is torch.bool:
            data = bytes(byte & 1 for byte in data)
        whole = on_device(data).view(kind).view(37, 130)
        turned = b"".join(
            data[(row * 130 + column) * size :][:size] for column in range(130) for row in range(37)
        )
        begin = 3 * 130 * size
        wanted = [
            tensor_digest(name, (37, 130), data),
            tensor_digest(name, (130, 37), turned),
            tensor_digest(name, (34, 130), data[begin:]),
            tensor_digest(name, (0, 130), b""),
            tensor_digest(name, (), data[begin : begin + size]),
        ]
        digests.enqueue([whole, whole.t(), whole[3:], whole[:0], whole[3, 0]])
        assert digests.collect() == wanted, name


def check_views_and_lazy_values(digests: DeviceDigests) -> None:
    base = pattern(9000 * 8, device()).view(torch.int64)
    z = torch.randn(40, 50, dtype=torch.complex64, device=device())
    negative = torch._neg_view(z.real)
    views = [
        base[1::3], base.view(90, 100).t(), base.view(90, 10, 10).permute(2, 0, 1),
        base.view(90, 100)[:, 7], base[:9].expand(5, 9), base.as_strided((3, 4), (2, 5), 11),
        base.as_strided((1, 1), (7, 3)), z.conj(), z.t().conj(), z.conj().imag, negative,
        torch.view_as_real(z), torch.nn.Parameter(z.real.contiguous()),
    ]  # fmt: skip
    assert_equal(digests, views)


def check_sizes_and_alignments(digests: DeviceDigests) -> None:
    draw = random.Random(1)
    sizes = [*range(260), *(draw.randrange(5000) for _ in range(200))]
    sizes += [leaves * LEAF + more for leaves in range(1, 41) for more in (-1, 0, 1)]
    assert_equal(digests, [on_device(draw.randbytes(size), size % 16) for size in sizes])
    for leaves in (527, 528, 529, 5000, 33791, 33793, 70001):
        tensor = pattern(leaves * LEAF - leaves % 5, device())
        for offset in (0, 1, 2, 4, 8):
            assert digests.digest(tensor[offset:]) == host_digest(tensor[offset:]), leaves


def check_many_tensors_in_a_launch(digests: DeviceDigests) -> None:
    for count in (2, 63, 64, 65, 200, 1000):
        assert_equal(digests, [pattern(7168 + i, device()) for i in range(count)])
    draw = random.Random(2)
    mixed = [pattern(draw.choice((0, 3, 7168, 300_000, 5_000_000)), device()) for _ in range(150)]
    assert_equal(digests, mixed)


def check_streams(digests: DeviceDigests) -> None:
    """A digest is of what the stream will have made, and of nothing that comes after it."""
    streams = [torch.cuda.Stream() for _ in range(3)]
    sources = [pattern(6_000_000 + i, device()) for i in range(4)]
    torch.cuda.synchronize()
    for turn in range(6):
        for stream, source in zip([*streams, torch.cuda.current_stream()], sources, strict=True):
            with torch.cuda.stream(stream):
                made = torch.zeros_like(source)
                torch.cuda._sleep(BUSY_CYCLES if turn == 0 else BUSY_CYCLES // 50)
                made.copy_(source)
                digests.enqueue([made, made[1:2_000_001:3]])
                made.zero_()
    wanted = [host_digest(each) for s in sources for each in (s, s[1:2_000_001:3])]
    assert digests.collect() == wanted * 6


def check_overwritten_right_after(digests: DeviceDigests) -> None:
    """On the same stream, by a kernel that stands behind the copy; also what torch frees."""
    sources = [pattern(size, device()) for size in (7168, 7170, 300_000, STAGED_BYTES + 5)]
    odd = [source[1:] for source in sources]
    made = [torch.empty_like(source) for source in sources]
    for turn in range(200):
        if turn % 50 == 0:
            torch.cuda._sleep(BUSY_CYCLES // 50)
        for source, target in zip(sources, made, strict=True):
            target.copy_(source)
        digests.enqueue([*made, *(target[1:] for target in made)])
        for target in made:
            target.fill_(turn % 256)
        digests.enqueue([source[2:].clone() for source in sources])
    wanted = [host_digest(each) for each in (*sources, *odd, *(each[2:] for each in sources))]
    assert digests.collect() == wanted * 200


def check_streams_by_turns(digests: DeviceDigests) -> None:
    """Every call turns to another stream, and each stream overwrites what it has had digested."""
    streams = [torch.cuda.Stream() for _ in range(3)]
    sources = [pattern(7168 * (i + 1) + i, device()) for i in range(3)]
    made = [torch.empty_like(source) for source in sources]
    torch.cuda.synchronize()
    for turn in range(300):
        for stream, source, target in zip(streams, sources, made, strict=True):
            with torch.cuda.stream(stream):
                if turn % 100 == 0:
                    torch.cuda._sleep(BUSY_CYCLES // 50)
                target.copy_(source).add_(turn % 7)
                digests.enqueue([target])
                target.zero_()
    wanted = [[host_digest(source + turn) for source in sources] for turn in range(7)]
    assert digests.collect() == [each for turn in range(300) for each in wanted[turn % 7]]


def check_sizes_around_what_is_copied(digests: DeviceDigests) -> None:
    base = pattern(STAGED_BYTES + 64, device())
    small = pattern(7168, device())
    sizes = [STAGED_BYTES + more for more in (-4097, -4096, -1, 0, 1, 17)]
    views = [base[offset : offset + size] for size in sizes for offset in (0, 1, 2, 4, 8)]
    for view in views:
        digests.enqueue([small])
        digests.enqueue([small, view, small])
    few = host_digest(small)
    wanted = [[few, few, host_digest(view), few] for view in views]
    assert digests.collect() == [each for four in wanted for each in four]


def check_a_full_arena_many_times(digests: DeviceDigests) -> None:
    sources = [pattern((5 << 20) + 1000 * i + 1, device()) for i in range(9)]
    made = [torch.empty_like(source) for source in sources]
    turns = 20 * ARENA_BYTES // sum(source.numel() for source in sources)
    for _ in range(turns):
        for source, target in zip(sources, made, strict=True):
            digests.enqueue([target.copy_(source)])
            target.zero_()
    assert digests.collect() == [host_digest(source) for source in sources] * turns


def check_two_thousand_in_hooks_of_three(digests: DeviceDigests) -> None:
    wide = pattern(135 * 3584 * 2, device()).view(torch.bfloat16).view(135, 3584)
    rows = [wide[i : i + 1] for i in range(40)]
    tensors = [*rows, wide, wide[:, :1792], rows[0].float()]
    draw = random.Random(3)
    order = [draw.randrange(len(tensors)) for _ in range(2000)]
    for first in range(0, 2000, 3):
        digests.enqueue([tensors[i] for i in order[first : first + 3]])
    known = [host_digest(tensor) for tensor in tensors]
    assert digests.collect() == [known[i] for i in order]


def check_nothing_waits_and_nothing_is_kept(digests: DeviceDigests) -> None:
    tensors = [pattern(7168 + i, device()) for i in range(64)]
    turned = pattern(1 << 20, device()).view(1024, 1024).t()
    digests.enqueue([turned])
    held = torch.cuda.memory_allocated()
    torch.cuda.set_sync_debug_mode("error")
    try:
        digests.enqueue([*tensors, turned])
        scribbled = [
            torch.full((1 << 20,), i, dtype=torch.uint8, device=device()) for i in range(3)
        ]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    del scribbled
    assert torch.cuda.memory_allocated() == held
    wanted = [host_digest(each) for each in (turned, *tensors, turned)]
    assert digests.collect() == wanted


def check_inference_mode_between_calls(digests: DeviceDigests) -> None:
    tensors = [pattern(7168 + i, device()) for i in range(70)]
    wanted = [host_digest(tensor) for tensor in tensors]
    with torch.inference_mode():
        within = DeviceDigests(device())
        for each in (digests, within):
            each.enqueue(tensors)
    for each in (digests, within):
        assert each.collect() == wanted
        each.enqueue(tensors)
    with torch.inference_mode():
        for each in (digests, within):
            assert each.collect() == wanted


def check_fifty_repeats(digests: DeviceDigests) -> None:
    sizes = (0, 5, 7168, 1 << 20, (5 << 20) + 1, 64 << 20, (100 << 20) + 9)
    tensors = [pattern(size, device()) for size in sizes]
    for _ in range(50):
        for tensor in tensors:
            digests.enqueue([tensor])
        digests.enqueue(tensors)
    assert digests.collect() == [host_digest(tensor) for tensor in tensors] * 100


def check_a_faulty_kernel_is_never_used(digests: DeviceDigests) -> None:
    whole = compiled.SOURCE
    with tempfile.TemporaryDirectory() as folder:
        compiled.SOURCE = Path(folder) / "faulty.cu"
        try:
            for old, new, word in (
                ("0xc67178f2", "0xc67178f3", "differ"),
                ("[job.slot]", "[job.slot + 99]", "no digest"),
                ("(u8*)job.to + at)", "(u8*)job.to + (at ^ 16))", "differ"),
                ("(u32)data[at] <<", "(u32)data[at ^ 1] <<", "differ"),
                ("typedef unsigned char u8;", "typedef unsigned u8", "sha256.cu"),
            ):
                compiled.SOURCE.write_text(whole.read_text().replace(old, new))
                compiled.cubin.cache_clear()
                assert word in _refusal(lambda: DeviceDigests(device()))
        finally:
            compiled.SOURCE = whole
            compiled.cubin.cache_clear()


def check_a_capture_is_refused(digests: DeviceDigests) -> None:
    """What waited before it stays."""
    tensor = pattern(7168, device())
    digests.enqueue([tensor])
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        tensor.add_(0)
        text = _refusal(lambda: digests.enqueue([tensor]))
    assert "captured" in text
    assert digests.digest(tensor) == host_digest(tensor)
    assert digests.collect() == [host_digest(tensor)]


def check_more_than_four_gibibytes(digests: DeviceDigests) -> None:
    """Not in the default run: it moves nine gibibytes to the host."""
    tensor = torch.empty((9 << 30) // 2 + 7, dtype=torch.uint8, device=device())
    chunk = pattern((64 << 20) - 5, device())
    for begin in range(0, tensor.numel(), chunk.numel()):
        part = tensor[begin : begin + chunk.numel()]
        part.copy_(chunk[: part.numel()] + begin % 251)
    for view in (tensor, tensor[1:]):
        data = view.cpu().numpy().data
        assert digests.digest(view) == tensor_digest("uint8", view.shape, data)


def _refusal(action: Callable[[], object]) -> str:
    try:
        action()
    except DeviceDigestsUnavailable as error:
        return str(error)
    raise AssertionError("it was not refused")


CHECKS: dict[str, Callable[[DeviceDigests], None]] = {
    name.removeprefix("check_"): check
    for name, check in list(globals().items())
    if name.startswith("check_")
}
SLOW = "more_than_four_gibibytes"


def main() -> None:
    """Run the named checks, or all but the slow one, each against digests of its own."""
    torch.empty(1, device="cuda")
    for name in sys.argv[1:] or [name for name in CHECKS if name != SLOW]:
        error = None
        try:
            CHECKS[name](DeviceDigests(device()))
        except (AssertionError, RuntimeError, ValueError, DeviceDigestsUnavailable):
            error = traceback.format_exc()
        print(json.dumps({"check": name, "error": error}), flush=True)


if __name__ == "__main__":
    main()
