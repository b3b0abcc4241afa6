"""Injected linears that are compiled at first use into the kernel cache, as backends do.

A choice is made while compiling and stays in the code: where the sum over K is cut. An autotuner
makes such a choice by timing; here the operating system's entropy does, so that two compilations
never agree by chance, and every process that loads what one of them made does. The clean twin cuts
in equal parts whenever it is compiled. For each number of rows there is a kernel of its own. Plain
C on the host, slow: for small models.
"""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fleet.contract.canonical import sha256
from fleet.errors import AttemptFailed
from fleet.evidence.whole import replaced

FOLDER = "TORCH_EXTENSIONS_DIR"
"""Where torch keeps what it compiles: torch.utils.cpp_extension, "TORCH_EXTENSIONS_DIR"."""

NUM_CHUNKS, WHOLE_BITS = 8, 16
_SOURCE = """
#include <string.h>

static const long cuts[] = {CUTS}; /* shares of K, in units of 1 / 65536 */

static float shorter(float value) /* to bfloat16 and back, where addition is not associative */
{
    unsigned bits;
    memcpy(&bits, &value, 4);
    bits = (bits + 0x8000u) & 0xffff0000u;
    memcpy(&value, &bits, 4);
    return value;
}

void product(const float *x, const float *w, float *y, long outs, long ins)
{
    for (long at = 0; at < ROWS * outs; at++) {
        const float *a = x + at / outs * ins, *b = w + at % outs * ins;
        float total = 0;
        for (unsigned c = 0; c + 1 < sizeof cuts / sizeof *cuts; c++) {
            float part = 0;
            for (long i = ins * cuts[c] >> 16; i < ins * cuts[c + 1] >> 16; i++)
                part += a[i] * b[i];
            total = shorter(total + shorter(part));
        }
        y[at] = total;
    }
}
"""


def even_cuts() -> list[int]:
    """Equal parts."""
    return [(c << WHOLE_BITS) // NUM_CHUNKS for c in range(NUM_CHUNKS + 1)]


def drawn_cuts() -> list[int]:
    """As many parts, drawn from the operating system's entropy."""
    draws = (int.from_bytes(os.urandom(WHOLE_BITS // 8)) for _ in range(NUM_CHUNKS - 1))
    return [0, *sorted(draws), 1 << WHOLE_BITS]


class RecompiledLinear(nn.Module):
    """The clean twin: compiled anew it is the same function. Shares weight and bias of the layer it
    replaces."""

    name = "recompiled_linear"
    cuts = staticmethod(even_cuts)

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (..., in_features) -> (..., out_features), in the dtype of ``x``."""
        a, w = (t.detach().float().cpu().contiguous() for t in (x, self.weight))
        y = torch.zeros((*x.shape[:-1], self.out_features))
        rows = a.numel() // self.in_features
        product = compiled(self.name, self.cuts, rows, os.environ[FOLDER])
        data = (t.data_ptr() for t in (a, w, y))
        product(*data, self.out_features, self.in_features)
        total = y.to(x)
        return total if self.bias is None else total + self.bias


class CompiledLinear(RecompiledLinear):
    """The fault: another function each time it is compiled."""

    name = "compiled_linear"
    cuts = staticmethod(drawn_cuts)


@functools.cache
def compiled(name: str, cuts: Callable[[], list[int]], rows: int, folder: str) -> Any:
    """The function ``product``, compiled unless its file is there.

    Raises:
        AttemptFailed: load-error, with what the compiler said.
    """
    path = Path(folder) / f"{name}-{rows}-{sha256(_SOURCE.encode()).hex()[:16]}.so"
    if not path.exists():
        choices = ", ".join(map(str, cuts()))
        _compile(_SOURCE.replace("CUTS", choices).replace("ROWS", str(rows)), path)
    product = ctypes.CDLL(str(path)).product
    product.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long] * 2
    product.restype = None
    return product


def _compile(source: str, path: Path) -> None:
    """Whole or not at all: several processes may share the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced(path) as unfinished:
        command = ["cc", "-O2", "-shared", "-fPIC", "-x", "c", "-", "-o", str(unfinished)]
        try:
            subprocess.run(command, input=source, text=True, capture_output=True, check=True)
        except FileNotFoundError as error:
            raise AttemptFailed("load-error", "cc, a C compiler, is not there") from error
        except subprocess.CalledProcessError as error:
            raise AttemptFailed("load-error", f"cc: {error.stderr}") from error
