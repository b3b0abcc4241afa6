"""Tensor digests: bytes per second on the host, and on a device where there is one.

    python -m tests.bench.bench_digests [--quick]

A device's rows come with its roofline: SHA-256 takes 16 shifts and logic operations a byte, which a
multiprocessor does 64 of a clock (CUDA C++ Programming Guide, "Arithmetic Instructions", capability
9.0), beside as many multiply-adds. Targets: 500 GB/s for 1 GiB, 60 us for 1 MiB.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from fleet.evidence.digests import tensor_digest
from fleet.replay.gpu.digests.device import DeviceDigests
from fleet.replay.gpu.digests.fixed import pattern
from fleet.replay.host_digest import host_digest
from tests.bench.result import Result

MIB = 1 << 20
OPERATIONS_PER_BYTE = 16
LANES = 64
TARGET_GB_S = 500.0
TARGET_US = 60.0
HOOKS = 667
"""Two thousand tensors; with their launches fewer than wait in a device's queue."""


def run(quick: bool = False) -> Iterator[Result]:
    """Host rows, then the device's; ``quick`` for a smoke test."""
    yield from host_rows(4 * MIB if quick else 64 * MIB, 3 if quick else 7)
    if torch.cuda.is_available():
        yield from device_rows(5 if quick else 50)


def host_rows(num_bytes: int, repeats: int) -> Iterator[Result]:
    """One thread, and as many as there are cores, each with a tensor of its own: what threads cost
    at leaves so short that the interpreter is handed over every microsecond."""
    data = pattern(num_bytes, torch.device("cpu")).numpy().data
    size = f"{num_bytes // MIB} MiB"
    threads = len(os.sched_getaffinity(0))

    def digest(_: int = 0) -> bytes:
        return tensor_digest("uint8", (num_bytes,), data)

    with ThreadPoolExecutor(threads) as pool:
        alone = [_seconds(digest) for _ in range(repeats)]
        each = [_seconds(lambda: list(pool.map(digest, range(threads)))) for _ in range(repeats)]
    side_by_side = [seconds / threads for seconds in each]
    for word, seconds in (("1 thread", alone), (f"{threads} threads", side_by_side)):
        name = f"digest on the host, {size}, {word}"
        yield Result(name, None, _rates(num_bytes, seconds), "GB/s", "higher")


def device_rows(repeats: int) -> Iterator[Result]:
    """The roofline, then the kernels, from a tensor of one step to 1 GiB."""
    device = torch.device("cuda", torch.cuda.current_device())
    facts = torch.cuda.get_device_properties(device)
    limit = facts.multi_processor_count * LANES * _clock_hz() / OPERATIONS_PER_BYTE / 1e9
    yield Result(f"roofline of {facts.name}", None, (limit,), "GB/s", "higher")
    digests = DeviceDigests(device, staged_bytes=0)
    yield from _throughput(digests, device, repeats)
    yield from _latency(digests, device, repeats * 4)
    yield from _hooks(DeviceDigests(device), device, repeats)


def _clock_hz() -> float:
    """The multiprocessors' highest clock (CUDA driver API, CU_DEVICE_ATTRIBUTE_CLOCK_RATE)."""
    clock_khz, device = ctypes.c_int(), torch.cuda.current_device()
    code = ctypes.CDLL("libcuda.so.1").cuDeviceGetAttribute(ctypes.byref(clock_khz), 13, device)
    if code != 0:
        raise RuntimeError(f"cuDeviceGetAttribute: CUDA error {code}")
    return clock_khz.value * 1e3


def _throughput(digests: DeviceDigests, device: torch.device, repeats: int) -> Iterator[Result]:
    for num_bytes, target in ((1024 * MIB, TARGET_GB_S), (64 * MIB, None)):
        tensor = pattern(64 * MIB, device).repeat(num_bytes // (64 * MIB))
        assert digests.digest(tensor) == host_digest(tensor)
        seconds = [_device_seconds(digests, [tensor]) for _ in range(repeats)]
        name = f"digest on the device, {num_bytes // MIB} MiB"
        yield Result(name, target, _rates(num_bytes, seconds), "GB/s", "higher")


def _latency(digests: DeviceDigests, device: torch.device, repeats: int) -> Iterator[Result]:
    """Time on the device, of a call that only enqueues, and of one that waits for the digest."""
    step = [pattern(7168 + i, device) for i in range(64)]
    cases = (("1 MiB", [pattern(MIB, device)], TARGET_US), ("7 KiB", step[:1], None),
             ("64 of 7 KiB", step, None))  # fmt: skip
    for size, tensors, target in cases:
        for _ in range(5):
            _waited(digests, tensors)
        kernel = [_device_seconds(digests, tensors) for _ in range(repeats)]
        yield Result(f"digest on the device, {size}", target, _us(kernel), "us")
        call = [_seconds(lambda given=tensors: digests.enqueue(given)) for _ in range(repeats)]
        digests.collect()
        yield Result(f"enqueue, {size}", None, _us(call), "us")
        waited = [_seconds(lambda given=tensors: _waited(digests, given)) for _ in range(repeats)]
        yield Result(f"enqueue and collect, {size}", None, _us(waited), "us")


def _hooks(digests: DeviceDigests, device: torch.device, repeats: int) -> Iterator[Result]:
    """What a traced step asks for, per hook of three tensors: time on the device of the copies and
    of the launches that follow, of a call, and of all of it with the wait at the end."""
    for rows in (1, 135):
        wide = pattern(rows * 3584 * 2, device).view(torch.bfloat16).view(rows, 3584)
        hook, name = [wide, wide + 1, wide + 2], f"hook of three {rows} x 3584 bf16"
        for _ in range(2):
            _hooks_seconds(digests, hook)
        found = [_hooks_seconds(digests, hook) for _ in range(max(3, repeats // 5))]
        on_device, calls, waited = zip(*found, strict=True)
        yield Result(f"{name}, on the device", None, _us(on_device), "us")
        yield Result(f"{name}, enqueue", None, _us(calls), "us")
        yield Result(f"{name}, enqueue and collect", None, _us(waited), "us")


def _hooks_seconds(digests: DeviceDigests, hook: list[torch.Tensor]) -> tuple[float, float, float]:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(HOOKS * 30_000)
    begin.record()
    call = _seconds(lambda: [digests.enqueue(hook) for _ in range(HOOKS)])
    end.record()
    digests.collect()
    waited = _seconds(lambda: [*(digests.enqueue(hook) for _ in range(HOOKS)), digests.collect()])
    return begin.elapsed_time(end) / 1e3 / HOOKS, call / HOOKS, waited / HOOKS


def _waited(digests: DeviceDigests, tensors: list[torch.Tensor]) -> None:
    digests.enqueue(tensors)
    digests.collect()


def _device_seconds(digests: DeviceDigests, tensors: list[torch.Tensor]) -> float:
    """Between two events around one launch, which the host is ahead of: the device is kept busy
    while it enqueues."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(1_000_000)
    begin.record()
    digests.enqueue(tensors)
    end.record()
    digests.collect()
    return begin.elapsed_time(end) / 1e3


def _seconds(action: Callable[[], object]) -> float:
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


def _rates(num_bytes: int, seconds: list[float]) -> tuple[float, ...]:
    return tuple(num_bytes / each / 1e9 for each in seconds)


def _us(seconds: Sequence[float]) -> tuple[float, ...]:
    return tuple(each * 1e6 for each in seconds)


def main() -> None:
    """Print one JSON line per result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    for result in run(parser.parse_args().quick):
        print(json.dumps(result.to_json()), flush=True)


if __name__ == "__main__":
    main()
