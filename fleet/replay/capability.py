"""Which quantised backends and image processors this machine can run, and why not the others.

No model is loaded. Of backends the answer is gptqmodel's own: its table of kernels and their
validation decide, nothing is repeated here. Knows no contract of another kind and no cluster: the
answer is for the process that asks.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fleet.contract.model import Contract

FORMATS = {"awq": "gemm", "gptq": "gptq"}
"""The checkpoint format assumed where no checkpoint is named."""


@functools.cache
def environment_before_import() -> Mapping[str, str]:
    """Import gptqmodel, once and without its banner; the environment as it was before.

    Its import sets variables and prints. Whoever wants the difference compares with ``os.environ``.
    """
    before = dict(os.environ)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        import gptqmodel  # noqa: F401
    return before


def checkpoint_quantization(folder: Path) -> dict[str, Any]:
    """``method, bits, group_size, format, sym, desc_act`` as the checkpoint declares them."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    declared = config.get("quantization_config")
    beside = folder / "quantize_config.json"
    if declared is None and beside.exists():
        declared = json.loads(beside.read_text(encoding="utf-8"))
    declared = declared or {}
    method = declared.get("quant_method", "none")
    zero_point = declared.get("zero_point", True)
    return {
        "method": method,
        "bits": declared.get("bits", declared.get("w_bit")),
        "group_size": declared.get("group_size", declared.get("q_group_size")),
        "format": declared.get("checkpoint_format", declared.get("version", FORMATS.get(method))),
        "sym": declared.get("sym", not zero_point if method == "awq" else True),
        "desc_act": bool(declared.get("desc_act", False)),
    }


def disagreements(contract: Contract, folder: Path) -> list[str]:
    """Where the contract's [quantization] and the checkpoint differ."""
    wanted, found = contract.quantization, checkpoint_quantization(folder)
    return [
        f"the contract says {key} = {getattr(wanted, key)!r}, the checkpoint {found[key]!r}"
        for key in ("method", "bits", "group_size")
        if getattr(wanted, key) != found[key]
    ]


def cannot_run(contract: Contract, folder: Path) -> list[str]:
    """Reasons why this machine cannot run the contract's backend; empty when it can."""
    wanted = contract.quantization
    if wanted.method == "none" or wanted.backend is None:
        return []
    known = known_backends(wanted.method)
    if wanted.backend not in known:
        return [f"gptqmodel has no such {wanted.method} backend; it knows {', '.join(known)}"]
    if different := disagreements(contract, folder):
        return different
    declared = checkpoint_quantization(folder)
    dtype = contract.model.dtype
    reason = _refusal(wanted.backend, declared, dtype)
    if reason is not None:
        return [reason]
    return _shape_refusals(wanted.backend, declared, dtype, folder)


def known_backends(method: str) -> list[str]:
    """Names that gptqmodel has for this method, whether or not this machine can run them."""
    by_format = _table()[method]
    return sorted({backend for backends in by_format.values() for backend in backends})


def runnable_backends(method: str, bits: int, group_size: int) -> tuple[list[str], dict[str, str]]:
    """(those this machine can run, the others with the reason), for the usual format."""
    can, cannot = [], {}
    declared = {
        "method": method,
        "bits": bits,
        "group_size": group_size,
        "format": FORMATS[method],
        "sym": method == "gptq",
        "desc_act": False,
    }
    for backend in known_backends(method):
        reason = _refusal(backend, declared, None)
        if reason is None:
            can.append(backend)
        else:
            cannot[backend] = reason
    return can, cannot


PROCESSORS = {"slow": "PIL", "fast": "torchvision"}
"""What makes pixels under each ``model.processor``."""


def image_processors() -> dict[str, str]:
    """``model.processor`` -> why this machine does not have it, "" where it has."""
    found = {}
    for name, module in PROCESSORS.items():
        try:
            importlib.import_module(module)
        except (ImportError, OSError, RuntimeError) as error:  # one built for another torch
            found[name] = f"{module}: {str(error).splitlines()[0]}"
        else:
            found[name] = ""
    return found


def _table() -> dict[str, dict[str, list[str]]]:
    """method -> format -> backends."""
    environment_before_import()
    from gptqmodel.utils.importer import BACKEND_TO_METHOD_FORMAT_MAPPING as table

    return {
        method.value: {fmt.value: [b.value for b in backends] for fmt, backends in formats.items()}
        for method, formats in table.items()
    }


def _refusal(backend: str, declared: Mapping[str, Any], dtype: str | None) -> str | None:
    """Why gptqmodel would not select this backend; None when it would."""
    formats = _table()[declared["method"]]
    if backend not in formats.get(declared["format"], []):
        fitting = sorted(f for f, backends in formats.items() if backend in backends)
        return f"runs the checkpoint format {' or '.join(fitting)}, not {declared['format']}"
    with _quiet():
        try:
            _select(backend, declared, dtype)
        except (ValueError, NotImplementedError, ImportError, OSError, RuntimeError) as error:
            return _readable(error)
    return None


def _select(backend: str, declared: Mapping[str, Any], dtype: str | None) -> Any:
    """The kernel class; raises what gptqmodel raises."""
    from gptqmodel import BACKEND
    from gptqmodel.utils.importer import select_quant_linear

    return select_quant_linear(
        device=_device(),
        backend=BACKEND(backend),
        format=declared["format"],
        quant_method=declared["method"],
        dynamic=None,
        **_rule(declared, dtype),
    )


def _shape_refusals(
    backend: str, declared: Mapping[str, Any], dtype: str, folder: Path
) -> list[str]:
    """Why a layer of this checkpoint has a shape that the kernel refuses."""
    from gptqmodel.utils.importer import validate_quant_linear

    reasons = []
    with _quiet():
        kernel = _select(backend, declared, dtype)
        for name, (size_in, size_out) in _linear_shapes(folder, declared).items():
            fits, error = validate_quant_linear(
                kernel,
                in_features=size_in,
                out_features=size_out,
                device=_device(),
                **_rule(declared, dtype),
            )
            if not fits:
                reasons.append(f"{name}: {_readable(error)}")
    return reasons


def _rule(declared: Mapping[str, Any], dtype: str | None) -> dict[str, Any]:
    import torch

    return {
        "bits": declared["bits"],
        "group_size": declared["group_size"],
        "desc_act": declared["desc_act"],
        "sym": declared["sym"],
        "pack_dtype": torch.int32,
        "dtype": None if dtype is None else getattr(torch, dtype),
    }


def _linear_shapes(folder: Path, declared: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """One layer per distinct (in, out), read from the shapes of the packed weights."""
    from safetensors import safe_open

    from fleet.replay.checkpoint_tensors import weight_files

    packed = 32 // int(declared["bits"])
    shapes: dict[tuple[int, int], str] = {}
    for path in weight_files(folder):
        with safe_open(path, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (safe_open is no mapping)
                if name.endswith(".qweight"):
                    rows, columns = opened.get_slice(name).get_shape()
                    size = (rows, columns * packed)
                    if declared["method"] == "gptq":
                        size = (rows * packed, columns)
                    shapes.setdefault(size, name.removesuffix(".qweight"))
    return {name: size for size, name in shapes.items()}


def _device() -> Any:
    """The device of this process's slot."""
    import torch

    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """gptqmodel logs to both streams, which belong to whoever asked."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


_EXPLAINED = {
    "Machete runtime unavailable.": "it needs compute capability 9.0, and CUTLASS, which its build "
    "fetches from the network and no replay may: GPTQMODEL_CUTLASS_DIR names a copy",
    "Swordfish runtime unavailable.": "it needs compute capability 10 or 11",
}
"""What gptqmodel leaves out (7.7.0, utils/machete.py and utils/swordfish.py)."""


def _readable(error: BaseException | None) -> str:
    """The first line, classes by their bare names, with what it leaves out."""
    text = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", str(error)) or type(error).__name__
    first = text.splitlines()[0]
    return f"{first} ({_EXPLAINED[first]})" if first in _EXPLAINED else first
