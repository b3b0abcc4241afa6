"""The platform: a closed, versioned list of facts readable without a model.

Its digest is the class key: attempts are compared inside one platform only. Knows no way to read
a fact (the replay room does). "Not applicable" is a value; an unreadable fact is unique to the
attempt, so it never equals another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fleet.contract.canonical import digest_json

PLATFORM_FORMAT = 1
NOT_APPLICABLE = "not applicable"

FACTS: tuple[str, ...] = (
    "gpu_model",
    "compute_capability",
    "sm_count",
    "mig_profile",
    "ecc_mode",
    "driver",
    "cuda",
    "cublas",
    "cudnn",
    "cpu_model",
    "cpu_isa",
    "os",
    "glibc",
    "python",
    "packages",
    "environment",
)

GPU_FACTS: tuple[str, ...] = FACTS[:9]

PACKAGES: tuple[str, ...] = (
    "torch",
    "triton",
    "transformers",
    "tokenizers",
    "safetensors",
    "numpy",
    "gptqmodel",
    "pillow",
    "torchvision",
)
"""Numerics-relevant packages; every installed ``nvidia-*`` distribution is added to them."""

ENV_PREFIXES: tuple[str, ...] = (
    "ATEN_",
    "AWQ_",
    "BITBLAS_",
    "CUBLAS",
    "CUDA_",
    "CUDNN_",
    "DNNL_",
    "GLIBC_TUNABLES",
    "GOTO_",
    "GPTQMODEL_",
    "GPTQ_TORCH_",
    "KMP_",
    "LD_BIND_NOW",
    "LD_PRELOAD",
    "MKL_",
    "NCCL_",
    "NVIDIA_",
    "OMP_",
    "ONEDNN_",
    "OPENBLAS_",
    "PYTHONHASHSEED",
    "PYTORCH_",
    "TOKENIZERS_",
    "TORCHDYNAMO_",
    "TORCHINDUCTOR_",
    "TORCH_",
    "TRANSFORMERS_",
    "TRITON_",
)
_PATH_ENDINGS = ("_DIR", "_PATH", "_HOME", "_CACHE", "_ROOT", "_FOLDER")


def numerics_environment(
    environ: Mapping[str, str], set_by_contract: Iterable[str]
) -> dict[str, str]:
    """The variables that can move a bit: absent, empty and "0" are three different things.

    Leaves out what the contract sets, device selectors and cache or directory paths (those are
    *effective*, not platform).
    """
    ours = set(set_by_contract)
    return {
        key: value
        for key, value in sorted(environ.items())
        if key.startswith(ENV_PREFIXES)
        and key not in ours
        and not key.endswith("_VISIBLE_DEVICES")
        and not key.endswith(_PATH_ENDINGS)
    }


def record_digest_lines(record: str) -> list[str]:
    """The lines of a wheel's RECORD that count: installed files with a hash.

    Left out: files without a hash (RECORD itself, what ran after installation), ``.pyc``, scripts
    outside site-packages (pip writes the interpreter's path into them) and pip's own notes.
    """
    kept = []
    for line in record.splitlines():
        path, _, rest = line.rpartition(",")
        path, _, digest = path.rpartition(",")
        generated = path.endswith((".pyc", "/INSTALLER", "/REQUESTED", "/direct_url.json"))
        if digest and not generated and not path.startswith(("..", "/")):
            kept.append(f"{path},{digest},{rest}")
    return sorted(kept)


def unreadable(attempt: str, why: str) -> dict[str, str]:
    """The value of a fact that could not be read: equal to no other attempt's."""
    return {"unreadable_in": attempt, "why": why}


@dataclass(frozen=True)
class Platform:
    """Exactly the facts of :data:`FACTS`."""

    facts: dict[str, Any]

    def __post_init__(self) -> None:
        if set(self.facts) != set(FACTS):
            odd = sorted(set(self.facts) ^ set(FACTS))
            raise ValueError(f"platform facts are a closed list; missing or unknown: {odd}")

    @property
    def digest(self) -> bytes:
        """The class key; 32 bytes."""
        return digest_json({"format": PLATFORM_FORMAT, "facts": self.facts})

    def unreadable_facts(self) -> list[str]:
        """Names of facts that could not be read."""
        return [k for k, v in self.facts.items() if isinstance(v, dict) and "unreadable_in" in v]

    def label(self) -> str:
        """A short name for a person: device and the torch version."""
        device = self.facts["gpu_model"]
        if device == NOT_APPLICABLE:
            device = str(self.facts["cpu_model"])
        packages = self.facts["packages"]
        torch = packages.get("torch", {}) if isinstance(packages, dict) else {}
        return f"{device}, torch {torch.get('version', 'none')}"
