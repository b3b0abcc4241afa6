"""The determinism settings of a contract: put in force here, read back here, set nowhere else.

``environment`` names the variables that must be in place before the interpreter starts (Python and
several native libraries read theirs once); ``apply`` sets what torch lets a running process set;
``read_back`` asks Python, torch and the operating system what is in force and never echoes the
contract. Knows no model and no engine beyond its name. Keeps the law that requested is not
effective. The same code serves CPU and CUDA: flags of an absent backend are set and read as well.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleet.contract.model import Contract

if TYPE_CHECKING:
    from collections.abc import Callable

SEED_LIMIT = 2**64
"""torch.manual_seed takes 64 bits; larger seeds are taken modulo this."""

SDPA_KERNELS = ("math", "flash", "efficient", "cudnn")


def environment(contract: Contract) -> dict[str, str]:
    """Variables that must precede the interpreter, by name."""
    wanted = contract.determinism
    threads = str(wanted.num_threads)
    variables = {
        # Order of sets and dicts of str. Read once at start-up. Python docs, "PYTHONHASHSEED".
        "PYTHONHASHSEED": str(wanted.python_hash_seed),
        # cuBLAS picks algorithms by the workspace it can get; several streams share one.
        # cuBLAS docs, "Results Reproducibility"; torch.use_deterministic_algorithms needs it.
        "CUBLAS_WORKSPACE_CONFIG": wanted.cublas_workspace,
        # How a parallel reduction is split decides its order of addition. OpenMP 5.2, 21.1.2.
        "OMP_NUM_THREADS": threads,
        # The same for MKL's and OpenBLAS's own pools. oneMKL guide, "Setting the Number of
        # Threads"; OpenBLAS, "Runtime variables".
        "MKL_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        # Both runtimes may otherwise use fewer threads than asked when the machine is busy.
        # OpenMP 5.2, 21.1.1; oneMKL guide, "MKL_DYNAMIC".
        "OMP_DYNAMIC": "FALSE",
        "MKL_DYNAMIC": "FALSE",
        # Waiting threads sleep instead of spinning: spinning ones starve each other on a machine
        # with other work and turn seconds into minutes. Moves no bit. OpenMP 5.2, 21.1.7.
        "OMP_WAIT_POLICY": "PASSIVE",
        # A tokenizer's thread pool would fork with the process. tokenizers, "utils/parallelism".
        "TOKENIZERS_PARALLELISM": "false",
        # The hub could answer with newer files than those digested. huggingface_hub,
        # "Environment variables".
        "HF_HUB_OFFLINE": "1",
        # A kernel whose sources are fetched at first use would differ with the day, and asks the
        # network without a deadline. gptqmodel, utils/machete.py.
        "GPTQMODEL_OFFLINE": "1",
    }
    if not wanted.allow_tf32:
        # A node's own 1 would force TF32 on under every torch flag, and a variable cannot be
        # unset for a worker. NVIDIA, "Accelerating AI Training with TF32".
        variables["NVIDIA_TF32_OVERRIDE"] = "0"
    return variables


def seed_all(seed: int, engine: str = "transformers") -> None:
    """Seed Python's, NumPy's and torch's generators, on every device.

    The synthetic engine draws from Python's alone, and torch stays unimported with it.
    """
    random.seed(seed)
    if engine == "synthetic":
        return
    import numpy
    import torch

    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed % SEED_LIMIT)


def apply(contract: Contract) -> None:
    """Put the contract's settings in force in this process. May be called again."""
    _apply_threads(contract.determinism.num_threads)
    _apply_algorithms(contract)
    _apply_fp32_precision(contract.determinism.allow_tf32)
    _apply_sdpa(contract.attention.sdpa_kernels)
    seed_all(contract.determinism.seed, contract.model.engine)


def _apply_threads(num_threads: int) -> None:
    import torch

    # Splits of reductions follow the thread count. torch docs, "CPU threading".
    torch.set_num_threads(num_threads)
    if torch.get_num_interop_threads() != 1:
        # Ops that run side by side would meet in an order that the scheduler picks. torch allows
        # this once, before the first parallel work; too late shows in the read-back.
        with contextlib.suppress(RuntimeError):
            torch.set_num_interop_threads(1)


def _apply_algorithms(contract: Contract) -> None:
    import torch

    wanted = contract.determinism
    # Ops with atomic adds take their deterministic form, warn, or raise. torch docs,
    # "torch.use_deterministic_algorithms".
    torch.use_deterministic_algorithms(
        wanted.deterministic_algorithms != "off",
        warn_only=wanted.deterministic_algorithms == "warn",
    )
    # torch.empty returns NaN instead of what the memory held: an uninitialised read shows.
    # torch docs, "torch.utils.deterministic".
    memory: Any = torch.utils.deterministic
    memory.fill_uninitialized_memory = wanted.fill_uninitialized_memory
    # Benchmarking picks the convolution that was fastest this time. torch docs, "Reproducibility".
    torch.backends.cudnn.benchmark = wanted.cudnn_benchmark
    # Restricts cuDNN to algorithms without atomic adds. torch docs, "Reproducibility".
    torch.backends.cudnn.deterministic = wanted.cudnn_deterministic
    torch.set_default_dtype(torch.float32)


def _apply_fp32_precision(allow_tf32: bool) -> None:
    """TF32 keeps 10 bits of mantissa. torch docs, "CUDA semantics", "TensorFloat-32".

    The legacy flags go first, then the per-operator ones: in that order both agree, and third
    parties may read either (a disagreement raises in the reader).
    """
    import torch

    torch.backends.cudnn.allow_tf32 = allow_tf32
    torch.set_float32_matmul_precision("high" if allow_tf32 else "highest")
    for name, operator in _fp32_operators().items():
        precision = "tf32" if allow_tf32 and not name.startswith("mkldnn") else "ieee"
        operator.fp32_precision = precision


def _fp32_operators() -> dict[str, Any]:
    """Every switch of torch's per-operator precision of fp32 arithmetic."""
    import torch

    backends: Any = torch.backends
    cuda, cudnn, mkldnn = backends.cuda, backends.cudnn, backends.mkldnn
    return {
        "cuda.matmul": cuda.matmul,
        "cudnn.conv": cudnn.conv,
        "cudnn.rnn": cudnn.rnn,
        "mkldnn.matmul": mkldnn.matmul,
        "mkldnn.conv": mkldnn.conv,
        "mkldnn.rnn": mkldnn.rnn,
    }


def _apply_sdpa(kernels: tuple[str, ...]) -> None:
    """Which kernels scaled_dot_product_attention may choose from, on CPU and CUDA alike.

    torch docs, "torch.nn.attention.sdpa_kernel" (the context manager over these same flags; set
    for the whole process here so that they can be read back at any time).
    """
    from torch.backends import cuda

    switches: dict[str, Callable[[bool], None]] = {
        "math": cuda.enable_math_sdp,
        "flash": cuda.enable_flash_sdp,
        "efficient": cuda.enable_mem_efficient_sdp,
        "cudnn": cuda.enable_cudnn_sdp,
    }
    for name in SDPA_KERNELS:
        switches[name](name in kernels)


def read_back(contract: Contract) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is in force (``effective``) and what the contract asks for (``required``).

    Keys of ``required`` are all in ``effective``; a difference means the setting is not in force.
    """
    wanted = contract.determinism
    variables = environment(contract)
    effective = {f"env.{name}": os.environ.get(name) for name in variables} | _torch_state()
    effective["python.hash_seed"] = _variable_at_start("PYTHONHASHSEED")
    effective["python.hash_probe"] = hash("fleet")
    required: dict[str, Any] = {f"env.{name}": value for name, value in variables.items()}
    required |= {
        "python.hash_seed": str(wanted.python_hash_seed),
        "torch.initial_seed": wanted.seed % SEED_LIMIT,
        "torch.num_threads": wanted.num_threads,
        "torch.num_interop_threads": 1,
        "torch.deterministic_algorithms": wanted.deterministic_algorithms,
        "torch.fill_uninitialized_memory": wanted.fill_uninitialized_memory,
        "cudnn.benchmark": wanted.cudnn_benchmark,
        "cudnn.deterministic": wanted.cudnn_deterministic,
        "torch.sdpa_kernels": sorted(contract.attention.sdpa_kernels),
        "torch.default_dtype": "float32",
        "torch.autocast": [],
    }
    for name in _fp32_operators():
        tf32 = wanted.allow_tf32 and not name.startswith("mkldnn")
        required[f"fp32_precision.{name}"] = "tf32" if tf32 else "ieee"
    return effective, required


def _torch_state() -> dict[str, Any]:
    import torch

    memory: Any = torch.utils.deterministic
    state: dict[str, Any] = {
        "torch.initial_seed": torch.initial_seed(),
        "torch.num_threads": torch.get_num_threads(),
        "torch.num_interop_threads": torch.get_num_interop_threads(),
        "torch.deterministic_algorithms": ("off", "warn", "strict")[
            torch.get_deterministic_debug_mode()
        ],
        "torch.fill_uninitialized_memory": memory.fill_uninitialized_memory,
        "cudnn.benchmark": torch.backends.cudnn.benchmark,
        "cudnn.deterministic": torch.backends.cudnn.deterministic,
        "torch.sdpa_kernels": _sdpa_kernels(),
        "torch.default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "torch.autocast": [d for d in ("cpu", "cuda") if torch.is_autocast_enabled(d)],
    }
    for name, operator in _fp32_operators().items():
        state[f"fp32_precision.{name}"] = operator.fp32_precision
    return state | _undeclared_state()


def _undeclared_state() -> dict[str, Any]:
    """Switches that no contract key decides and that can move a bit."""
    import torch

    cuda: Any = torch.backends.cuda
    matmul = cuda.matmul
    return {
        "torch.cpu_capability": torch.backends.cpu.get_cpu_capability(),
        # The loader of another library may flip this for the whole process; it has no getter.
        "torch.flush_denormal": bool((torch.tensor(1e-40) * 1.0).item() == 0.0),
        "mkldnn.enabled": torch.backends.mkldnn.enabled,
        "mkldnn.deterministic": torch.backends.mkldnn.deterministic,
        "cudnn.enabled": torch.backends.cudnn.enabled,
        "cuda.matmul.fp16_reduced": matmul.allow_fp16_reduced_precision_reduction,
        "cuda.matmul.bf16_reduced": matmul.allow_bf16_reduced_precision_reduction,
        "cuda.matmul.fp16_accumulation": matmul.allow_fp16_accumulation,
        "sdpa.math_reduced": cuda.fp16_bf16_reduction_math_sdp_allowed(),
    }


def _sdpa_kernels() -> list[str]:
    import torch

    cuda: Any = torch.backends.cuda
    in_force = {
        "math": cuda.math_sdp_enabled(),
        "flash": cuda.flash_sdp_enabled(),
        "efficient": cuda.mem_efficient_sdp_enabled(),
        "cudnn": cuda.cudnn_sdp_enabled(),
    }
    return sorted(name for name, enabled in in_force.items() if enabled)


def _variable_at_start(name: str) -> str | None:
    """A variable as the interpreter found it: setting os.environ later changes nothing."""
    if not sys.platform.startswith("linux"):
        return os.environ.get(name)
    block = b"\0" + Path("/proc/self/environ").read_bytes()
    _, found, rest = block.partition(f"\0{name}=".encode())
    return rest.partition(b"\0")[0].decode(errors="surrogateescape") if found else None
