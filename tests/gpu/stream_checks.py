"""What a neighbour stream does, and does not do, to the work beside it on a device; run in a
process of its own, as a replay is.

    python -m tests.gpu.stream_checks DEVICE_JSON

Prints one JSON object; the tests say what must be in it.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy
import torch

from fleet.contract.load import BUILTIN, load_contract
from fleet.contract.model import Contract
from fleet.replay import determinism
from fleet.replay.gpu.neighbour_stream import neighbour_stream
from fleet.replay.gpu.watch import DeviceWatch
from fleet.replay.task import Device

CONTRACT = "tiny-awq-torch"
SIDES = (1, 37, 512, 4096)
"""Rows of the product that is held against itself; its other sides are a layer's."""

PRODUCTS = 200
"""Of the main stream, enqueued while it sleeps, so that the host has no part in the time."""

SLEEP_CYCLES = 500_000_000
"""A quarter of a second or so for a kernel that does nothing."""

STEPS = 500
"""Of the loop that is made as decoding is: small kernels, and the host waits for each step."""


def settings(contract: Contract) -> dict[str, Any]:
    """As a replay reads them back."""
    return determinism.read_back(contract)[0]


def state() -> list[str]:
    """Every generator, and the stream that this thread enqueues to."""
    generators: list[Any] = [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]
    found = [tensor.numpy().tobytes().hex() for tensor in generators]
    current: Any = torch.cuda.current_stream()
    return [*found, repr(random.getstate()), repr(numpy.random.get_state()), repr(current)]


def operands() -> list[tuple[torch.Tensor, torch.Tensor]]:
    draw: Any = torch.Generator(device="cuda")
    draw.manual_seed(1)
    kinds = (torch.bfloat16, torch.float32)
    return [
        (
            torch.randn(rows, 4096, generator=draw, device="cuda").to(kind),
            torch.randn(4096, 1024, generator=draw, device="cuda").to(kind),
        )
        for kind in kinds
        for rows in SIDES
    ]


def products(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> list[str]:
    """SHA-256 of the bytes of each product."""
    raw = (torch.mm(a, b).view(torch.uint8).cpu().numpy().tobytes() for a, b in pairs)
    return [hashlib.sha256(data).hexdigest() for data in raw]


def device_ms(work: Callable[[], object]) -> float:
    """Milliseconds of the main stream for work that is all enqueued before it begins."""
    events: Any = torch.cuda.Event
    first, last = events(enable_timing=True), events(enable_timing=True)
    cuda: Any = torch.cuda
    cuda._sleep(SLEEP_CYCLES)
    first.record()
    work()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last))


def like_decoding() -> None:
    small = torch.ones(64, 64, device="cuda")
    for _ in range(STEPS):
        for _ in range(20):
            small = small * 1.0
        small[0, 0].item()


def main(device: Device) -> dict[str, Any]:
    contract = load_contract(CONTRACT, (BUILTIN,)).contract
    watch = DeviceWatch(device)
    free = watch.wait_free()
    determinism.apply(contract)
    pairs = operands()
    factor = torch.ones(4096, 4096, dtype=torch.bfloat16, device="cuda")
    product = torch.empty_like(factor)

    def big() -> None:
        for _ in range(PRODUCTS):
            torch.mm(factor, factor, out=product)

    device_ms(big)
    alone_ms, alone = device_ms(big), products(pairs)
    threads = threading.active_count()
    told, before = settings(contract), state()
    with neighbour_stream() as beside:
        during = settings(contract) == told, state() == before
        beside_ms = device_ms(big)
        again = [products(pairs) for _ in range(20)]
        after_products = beside.counters()
        begun = time.monotonic()
        like_decoding()
        decoding_s = time.monotonic() - begun
        counters = beside.counters()
        watch.sample()
    return {
        "not_free": free["not_free"],
        "counters": counters,
        "decoding": {key: counters[key] - after_products[key] for key in counters},
        "decoding_s": decoding_s,
        "ms": [alone_ms, beside_ms],
        "same_bytes": [each == alone for each in again],
        "distinct_products": len(set(alone)),
        "settings_same": [during[0], settings(contract) == told],
        "state_same": [during[1], state() == before],
        "threads_left": threading.active_count() - threads,
        "watch_samples": watch.close()["samples"],
    }


if __name__ == "__main__":
    print(json.dumps(main(Device(**json.loads(sys.argv[1])))))
